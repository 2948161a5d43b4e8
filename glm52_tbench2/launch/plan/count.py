"""Counts parameters by building the trainer's own model, without memory for its weights.

Every pipeline stage is built as one of its ranks, on torch's meta device, in a process group that
only pretends: whatever build_model makes is what is counted. In a process of its own, because that
group, and what replaces CUDA, would stay.
"""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...config.errors import UserError
from ...config.schema import Device, RunConfig
from .parameters import StageParameters

_TIMEOUT_S = 600


def count(configs: Sequence[RunConfig]) -> list[list[StageParameters]]:
    """Of each config the parameters of each pipeline stage.

    Raises UserError when the model cannot be built.
    """
    # Only our own process writes what is unpickled here.
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=pickle.dumps(list(configs)),
        capture_output=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise UserError(f"The trainer's model cannot be built for this layout: {lines[-1]}")
    found: list[list[StageParameters]] = pickle.loads(done.stdout)
    return found


def main() -> None:
    """Reads pickled configs from stdin, writes what :func:`count` returns to stdout."""
    configs = pickle.load(sys.stdin.buffer)
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # Megatron may print
    from ...trainer.cpu import install

    install()
    import torch

    from ...trainer.model import shapes_only

    with shapes_only(), torch.device("meta"):
        found = [[_stage(_here(one), n) for n in range(one.parallel.pipeline)] for one in configs]
    out.write(pickle.dumps(found))


def _here(config: RunConfig) -> RunConfig:
    """The same for a CPU: what computes on a GPU holds as much, and need not be installed here."""
    return replace(config, parallel=replace(config.parallel, device=Device.cpu))


def _stage(config: RunConfig, stage: int) -> StageParameters:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ...trainer import ranks
    from ...trainer.model import build_model

    parallel = config.parallel
    size = parallel.nodes * parallel.gpus_per_node
    # A stage's ranks are neighbours, and all of them hold as much.
    rank = stage * (size // parallel.pipeline)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    ranks.make_groups(parallel, create_gloo_process_groups=False)
    try:
        ranks.seed(config.seed, 0)
        return _counted(build_model(config))
    finally:
        ranks.disconnect()


def _counted(model: Any) -> StageParameters:
    sharded = whole = experts = frozen = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            frozen += parameter.numel()
        elif ".mlp.experts." in name:
            experts += parameter.numel()
        elif getattr(parameter, "tensor_model_parallel", False):
            sharded += parameter.numel()
        else:
            whole += parameter.numel()
    return StageParameters(sharded, whole, experts, frozen)


if __name__ == "__main__":
    main()
