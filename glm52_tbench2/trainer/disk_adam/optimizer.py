"""Megatron's optimizer over a state file: what it computes is Adam in memory, bit for bit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensorFactory
from megatron.core.dist_checkpointing.optimizer import (
    get_param_id_to_sharded_param_map,
    make_sharded_optimizer_tensor,
)
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.optimizer.optimizer import FP32Optimizer
from torch import Tensor

from ..update_norm import counts_once, squares
from .state_file import StateFile
from .stream import Stream, make_buffers

MASTER = "fp32_param"
MOMENTS = ("exp_avg", "exp_avg_sq")
_IN_CACHE = 2**17
"""Elements that a CPU updates before it goes on to the next: they stay in its cache."""


def on_disk(optimizer: ChainedOptimizer, folder: Path, bucket_bytes: int) -> ChainedOptimizer:
    """The same optimizer with its state in files in `folder`, one for each that is chained.

    Args:
        optimizer: FP32Optimizers of parameters in any precision, which have made no step yet.
        bucket_bytes: bytes of state in one bucket; three are in memory at one time.

    Raises UserError when the folder cannot take the files.
    """
    parts = optimizer.chained_optimizers
    sets = [[p for group in part.param_groups for p in group["params"]] for part in parts]
    in_float32 = all(p.dtype is torch.float32 for one in sets for p in one)
    names = MOMENTS if in_float32 else (MASTER, *MOMENTS)
    longest = max(sum(p.numel() for p in one) for one in sets)
    buffers = make_buffers(len(names), bucket_bytes, longest, pinned=torch.cuda.is_available())
    return ChainedOptimizer([DiskAdam(part, names, folder, buffers) for part in parts])


@dataclass
class _Parameter:
    """Where a parameter is in memory and in the state's vectors."""

    model: Tensor
    """The model's own, updated in place."""
    carrier: Tensor
    """What Megatron takes for the master weight: it has the gradient, and no memory of its own."""
    group: int
    start: int
    end: int


class DiskAdam(FP32Optimizer):
    """Adam on one set of parameters, its moments and, of a bfloat16 model, master weights on disk.

    Megatron's Adam runs on each bucket as it would on the whole. A parameter may lie in several
    buckets, which changes nothing: every operation is element by element.
    """

    def __init__(
        self, inner: FP32Optimizer, names: tuple[str, ...], folder: Path, buffers: list[Tensor]
    ) -> None:
        """`names`: of the state's vectors, the master weights among them or not."""
        super().__init__(inner.optimizer, inner.config, lambda *_: None)
        self.grad_stats_parallel_group = inner.get_grad_stats_parallel_group()
        self.tp_group = inner.tp_group
        self.updates = 0
        """Updates made since the start of training."""
        self.squares = torch.zeros(2, dtype=torch.float64)
        """[2], of the last update's change and of the weights, over what this rank speaks for."""
        self.before_overwriting: Callable[[], None] = lambda: None
        """Called before an update overwrites the version that `sharded_state_dict` gave out."""
        self._parameters: list[_Parameter] = []
        end = 0
        for number, group in enumerate(self.param_groups):
            for index, model in enumerate(group["params"]):
                carrier = _carrier(model) if MASTER in names else model
                group["params"][index] = carrier
                start, end = end, end + model.numel()
                self._parameters.append(_Parameter(model, carrier, number, start, end))
        self._names, self._device = names, torch.device(torch.cuda.current_device())
        self._file = StateFile(folder, len(names), end)
        self._stream = Stream(self._file, buffers)
        self._version = 0
        self._lent: int | None = None

    @torch.no_grad()
    def prepare_grads(self) -> bool:
        """Hands the gradients over; none is ever found to be infinite here."""
        for parameter in self._parameters:
            parameter.carrier.grad = parameter.model.main_grad  # type: ignore[attr-defined]
        return False

    @torch.no_grad()
    def step_with_ready_grads(self) -> bool:
        """One update of every parameter. Raises OSError."""
        if self._lent == 1 - self._version:
            self.before_overwriting()
            self._lent = None
        self.squares = self.squares.new_zeros(2, device=self._device)
        self._stream.run(self._version, self._update)
        self._version = 1 - self._version
        self.updates += 1
        return True

    @torch.no_grad()
    def reload_model_params(self, state_dict: Any = None) -> None:
        """Makes the model's weights the master weights."""
        if MASTER in self._names:
            for parameter, master in zip(self._parameters, self._views()[MASTER], strict=True):
                master.copy_(parameter.model)
            self._file.sync()

    def state_dict(self) -> dict[str, Any]:
        """What is not in the file."""
        return {"updates": self.updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what is not in the file; the rest is already in `sharded_state_dict`'s tensors."""
        self.updates = state_dict["updates"]
        self._file.sync()

    def sharded_state_dict(
        self,
        model_sharded_state_dict: ShardedStateDict,
        is_loading: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> ShardedStateDict:
        """The file's tensors, under the keys that the state has in memory. Nothing is copied.

        They stay as they are until the second update from now, before which `before_overwriting`
        is called.
        """
        shards = get_param_id_to_sharded_param_map(
            model_sharded_state_dict, (p.model for p in self._parameters)
        )
        found = {
            name: {
                index: make_sharded_optimizer_tensor(shards[index], view, f"optimizer.state.{name}")
                for index, view in enumerate(views)
            }
            for name, views in self._views().items()
        }
        if is_loading:
            # Parts of a tensor are loaded where they belong: united, they would be in memory.
            dict_list_map_inplace(_never_united, found)
        else:
            self._lent = self._version
        return found

    def _views(self) -> dict[str, list[Tensor]]:
        """name -> of every parameter the state of that name, on the disk."""
        return {
            name: [vector[p.start : p.end].view(p.model.shape) for p in self._parameters]
            for name, vector in zip(self._names, self._file.mapped(self._version), strict=True)
        }

    def _update(self, start: int, bucket: Tensor) -> None:
        """Adam on the state's elements from `start` on, [vectors, elements]."""
        state = bucket.to(self._device, non_blocking=True)  # on a CPU, the bucket itself
        groups = [{**group, "params": [], "step": self.updates} for group in self.param_groups]
        states: dict[Tensor, dict[str, Tensor]] = {}
        to_round: list[tuple[Tensor, Tensor]] = []
        counted: list[tuple[Tensor, int]] = []
        for parameter, first, last in self._parts(start, start + bucket.size(1)):
            part = slice(first - parameter.start, last - parameter.start)
            named = dict(zip(self._names, state[:, first - start : last - start], strict=True))
            in_model = parameter.model.detach().view(-1)[part]
            weight = named.pop(MASTER, in_model)
            if weight is not in_model:
                to_round.append((in_model, weight))
            assert parameter.carrier.grad is not None
            weight.grad = parameter.carrier.grad.view(-1)[part]
            groups[parameter.group]["params"].append(weight)
            if counts_once(parameter.carrier, self):
                counted.append((weight, parameter.group))
            # torch's Adam counts a parameter's updates, Transformer Engine's a group's.
            states[weight] = {"step": torch.tensor(float(self.updates)), **named}
        adam, whole = self.optimizer, self.param_groups
        try:
            adam.param_groups, adam.state = [g for g in groups if g["params"]], states
            adam.step()
        finally:
            adam.param_groups, adam.state = whole, {}
        for weight, number in counted:
            self.squares += squares(weight, states[weight], self.updates + 1, groups[number])
        for in_model, weight in to_round:
            in_model.copy_(weight)
        if state is not bucket:
            bucket.copy_(state)

    def _parts(self, start: int, end: int) -> Iterator[tuple[_Parameter, int, int]]:
        """The state's elements from `start` to `end` by parameter: which, from, to."""
        most = _IN_CACHE if self._device.type == "cpu" else end - start
        for parameter in self._parameters:
            low, high = max(start, parameter.start), min(end, parameter.end)
            for first in range(low, high, most):
                yield parameter, first, min(first + most, high)


def _carrier(model: Tensor) -> Tensor:
    carrier = torch.zeros((), device=model.device).expand(model.shape)
    tensor_parallel.copy_tensor_model_parallel_attributes(carrier, model)
    if hasattr(model, "shared"):
        carrier.shared = model.shared  # type: ignore[attr-defined]
    return carrier


def _never_united(item: Any) -> Any:
    if isinstance(item, ShardedTensorFactory):
        return replace(item, merge_fn=lambda parts: None)
    return item
