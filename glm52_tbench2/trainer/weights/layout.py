"""What a checkpoint of a model is made of, without a model: nothing but shapes is held."""

from dataclasses import dataclass
from typing import Any

from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
)

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import RunConfig

from .. import limits, ranks
from ..convert import hf_names
from ..model import build_model, shapes_only


@dataclass(frozen=True)
class Part:
    """A tensor of transformers' files, and where it lies in a checkpoint."""

    name: str
    """In transformers' files."""
    key: str
    """Of the checkpoint's tensor that it is a part of: of all experts' stacked, of gate and up."""
    whole: tuple[int, ...]
    """That tensor's shape."""
    offset: tuple[int, ...]
    """Where in it this part begins."""
    shape: tuple[int, ...]
    """Of the part, by which `whole` may have further dimensions in front."""
    split: int | None
    """The dimension along which tensor-parallel ranks share it; None: each has it whole."""
    shares: int
    """Ranks that share it in the layout of the run."""

    @property
    def size(self) -> tuple[int, ...]:
        """Its shape in as many dimensions as `whole` has."""
        return (1,) * (len(self.whole) - len(self.shape)) + self.shape


@dataclass(frozen=True)
class Layout:
    """Everything that a checkpoint of the model holds."""

    parts: list[Part]
    """In the order of the model."""
    objects: dict[str, Any]
    """Small things beside the tensors that loading asks for, by key."""


def describe(run: RunConfig) -> Layout:
    """The layout of run.model, each tensor cut for the tensor-parallel ranks of run.parallel.

    Raises UserError for a model that the trainer cannot build.
    """
    # A checkpoint has the same tensors whichever layout and device its model is built for.
    run_alone = ranks.on_one_rank(run)
    if problems := limits.problems(run_alone):
        raise UserError(problems[0])
    with ranks.one_rank(), shapes_only():
        model = build_model(run_alone)
        parameters = dict(model.named_parameters())
        parts, objects = [], {}
        for name, found in model.sharded_state_dict().items():
            if isinstance(found, ShardedObject):
                objects[found.unique_key] = found.data
                continue
            tensor = parameters.get(name)
            split = getattr(tensor, "tensor_model_parallel", False)
            dim = tensor.partition_dim if tensor is not None and split else None
            expert = ".local_experts." in name
            shares = run.parallel.expert_tensor if expert else run.parallel.tensor
            made = found.build() if isinstance(found, ShardedTensorFactory) else [found]
            for hf_name, sharded in zip(hf_names(name, model), made, strict=True):
                parts.append(_part(hf_name, sharded, dim, shares if dim is not None else 1))
    return Layout(parts, objects)


def _part(name: str, sharded: ShardedTensor, dim: int | None, shares: int) -> Part:
    return Part(
        name=name,
        key=sharded.key,
        whole=tuple(sharded.global_shape),
        offset=tuple(sharded.global_offset),
        shape=tuple(sharded.local_shape),
        split=dim,
        shares=shares,
    )
