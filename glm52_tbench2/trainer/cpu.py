"""What Megatron-core takes for granted and a machine without CUDA lacks.

Call :func:`install` before the first import of anything under ``megatron.core``. It does nothing
where CUDA is present, so that a machine with GPUs runs Megatron unmodified.
"""

import functools
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

_CPU = torch.device("cpu")
_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "zeros_like", "empty_like")


@functools.cache
def install() -> bool:
    """Makes megatron-core 0.16 run on the CPU. Returns whether it had to: False with CUDA."""
    if torch.cuda.is_available():
        return False
    # Megatron announces at import that Apex and Transformer Engine are not there.
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    _replace_device_queries()
    _replace_streams()
    _send_cuda_factories_to_cpu()
    _replace_generator()
    _name_dtypes_as_on_cuda()
    _import_uncompiled()
    _complete_missing_names()
    return True


def install_alone() -> None:
    """The same on a machine with GPUs as on others, for what needs none of them."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    install()


def _replace(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _replace_device_queries() -> None:
    # Asked for at construction of every layer and buffer.
    _replace(torch.cuda, current_device=lambda: _CPU)
    # Called around pipeline communication and checkpoint staging.
    _replace(torch.cuda, synchronize=lambda device=None: None)
    # Checkpoint loading moves what it reads to the accelerator.
    _replace(torch.Tensor, cuda=lambda self, *args, **kwargs: self)


class _Stream(torch.cpu.Stream):
    """torch's own stream of a CPU, which has nothing to wait for, with an event to give away."""

    def record_event(self) -> torch.cpu.Event:  # type: ignore[override]
        return torch.cpu.Event()


def _replace_streams() -> None:
    # The all-to-all token dispatcher copies its split sizes to the host on a stream of its own.
    _replace(
        torch.cuda,
        Stream=_Stream,
        stream=torch.cpu.stream,
        current_stream=torch.cpu.current_stream,
    )


def _send_cuda_factories_to_cpu() -> None:
    # Schedules and optimizers write device="cuda". Wrapping the factories costs nothing elsewhere;
    # a TorchFunctionMode would slow every operation down.
    def on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(factory)
        def call(*args: Any, **kwargs: Any) -> Any:
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = _CPU
            return factory(*args, **kwargs)

        return call

    # `with torch.device(...)` knows factories by identity: let it note the originals, which the
    # wrappers call, or transformers would load models with buffers left unset.
    torch.utils._device._device_constructors()
    _replace(torch, **{name: on_cpu(getattr(torch, name)) for name in _FACTORIES})


def _replace_generator() -> None:
    # Weight initialisation and recomputation fork "the CUDA generator": on a CPU that is the CPU's.
    _replace(torch.cuda, manual_seed=torch.manual_seed)
    for module in (torch.cuda, torch.cuda.random):
        _replace(module, get_rng_state=lambda device=None: torch.get_rng_state())


def _name_dtypes_as_on_cuda() -> None:
    # Optimizers sort parameters by the name Tensor.type() gives, and clipping asserts on it.
    type_or_cast = torch.Tensor.type

    def cuda_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = type_or_cast(self, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found

    _replace(torch.Tensor, type=cuda_type)


def _import_uncompiled() -> None:
    # Fused operations are decorated with torch.compile at import: compiling them would take 20 s
    # of the first step and gain nothing on a CPU.
    compile_ = torch.compile
    _replace(torch, compile=lambda model=None, **kwargs: model)
    try:
        import megatron.core.models.gpt
        import megatron.core.optimizer  # noqa: F401
    finally:
        _replace(torch, compile=compile_)


def _complete_missing_names() -> None:
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # True although Transformer Engine is not there: isinstance would be asked about a stand-in.
    _replace(multi_latent_attention, HAVE_TE=False)
    # The router asks whether it is None, but the failed import left it undefined.
    _replace(moe_utils, te_general_gemm=None)
    # Sets a CUDA generator through torch's C layer, past torch.cuda.
    _replace(random, _set_cuda_rng_state=_set_rng_state)
    # Split sizes must become numpy integers for the all-to-all; those already on the host do not.
    _replace(token_dispatcher, maybe_move_tensor_to_cpu=_on_host)


def _set_rng_state(state: torch.Tensor, device: int = -1, graph_safe: bool = False) -> None:
    torch.set_rng_state(state)


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
