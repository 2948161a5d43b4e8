"""A row of a foreign dump, checked: what of it does not fit together is not read."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .source import are_tokens

_TASK_KEYS = ("task_id", "task", "task_name", "instance_id")


class Malformed(Exception):
    """A row that can't be read; the text says why."""


@dataclass
class Sample:
    """A row of a rollout dump whose parts fit together: T tokens, R of them the response."""

    place: int
    """In its file."""
    tokens: NDArray[np.int64]
    """[T]"""
    said: NDArray[np.bool_]
    """[R] True on generated tokens."""
    logps: NDArray[np.float32] | None
    """[R] nats."""
    versions: list[int]
    """[] where they are not known."""
    group: str | None
    index: int | None
    row: dict[str, Any]

    def whole(self, response: NDArray[Any] | None, otherwise: Any) -> NDArray[Any]:
        """[T] from what is [R]; `otherwise` elsewhere."""
        found = np.full(len(self.tokens), otherwise)
        if response is not None:
            found[len(found) - len(response) :] = response
        return found


def sample(place: int, row: Any) -> Sample:
    """The row at `place` of a rollout dump. Raises Malformed."""
    if not isinstance(row, dict):
        raise Malformed("have no names")
    if missing := [name for name in ("tokens", "response_length") if row.get(name) is None]:
        raise Malformed(f"lack {', '.join(missing)}")
    tokens, size = _integers(row["tokens"]), _integer(row["response_length"])
    if tokens is None or not are_tokens(tokens):
        raise Malformed("have tokens that are no token ids")
    if size is None or not 0 < size <= len(tokens):
        raise Malformed("contradict their response_length")
    mask = row.get("loss_mask")
    said = _of_length(np.ones(size, np.float32) if mask is None else _floats(mask), size)
    if said is None or not np.isfinite(said).all():
        raise Malformed("contradict their response_length by their loss_mask")
    versions = [_integer(one) for one in items(row.get("weight_versions"))]
    return Sample(
        place=place,
        tokens=tokens,
        said=said != 0,
        logps=_of_length(_floats(row.get("rollout_log_probs")), size),
        versions=[] if None in versions else [one for one in versions if one is not None],
        group=None if row.get("group_index") is None else str(row["group_index"]),
        index=_integer(row.get("index")),
        row=row,
    )


def match(
    known: Mapping[int | bytes, list[Sample]], item: Mapping[str, Any], matched: set[int]
) -> Sample | None:
    """The sample that a row of a train dump tells of: by index, else by tokens.

    `known`: index, and bytes of tokens -> samples; `matched`: places of those that have a row.
    """
    index, tokens = _integer(item.get("sample_indices")), _integers(item.get("tokens"))
    found = known.get(index, []) if index is not None else []
    if len(found) != 1:  # indices are not there, of another numbering, or not of one sample each
        found = known.get(tokens.tobytes(), []) if tokens is not None else []
        found = [one for one in found if one.place not in matched] or found
    return found[0] if found else None


def keep(
    kept: Mapping[str, dict[int, NDArray[np.float32]]], item: Mapping[str, Any], sample: Sample
) -> list[str]:
    """Files what a row of a train dump tells of a sample; why what is left out is."""
    wrong = []
    for name in (name for name in kept if name in item):
        values = _floats(item[name])
        if values is None:
            wrong.append(f"have {name} that are not numbers, one a token")
        elif len(values) != len(sample.said):
            wrong.append(
                f"have {name} of another length than their responses, as of ranks that share a "
                "sequence"
            )
        else:
            kept[name][sample.place] = values
    return wrong


def joined(
    samples: Sequence[Sample], parts: Sequence[NDArray[np.float32] | None]
) -> NDArray[np.float32] | None:
    """[N] from what each sample has of its response; NaN elsewhere, None where none has any."""
    if all(part is None for part in parts):
        return None
    nothing = np.float32(np.nan)
    return np.concatenate(
        [one.whole(part, nothing) for one, part in zip(samples, parts, strict=True)]
    )


def items(values: Any) -> list[Any]:
    """The items of a list, an array or a tensor; [] of anything else."""
    return list(values) if isinstance(values, list | tuple) or np.ndim(values) else []


def _array(values: Any, dtype: Any = None) -> NDArray[Any] | None:
    """[T] from a list, an array or a tensor, of bfloat16 too; None for what is no row of values."""
    try:
        if hasattr(values, "is_floating_point"):
            values = values.detach()
            values = (values.float() if values.is_floating_point() else values).numpy()
        found = np.asarray(values, dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return found if found.ndim == 1 else None


def _floats(values: Any) -> NDArray[np.float32] | None:
    return _array(values, np.float32)


def _integers(values: Any) -> NDArray[np.int64] | None:
    found = _array(values)
    return found.astype(np.int64) if found is not None and found.dtype.kind in "iu" else None


def _integer(value: Any) -> int | None:
    """Of a number or a text; None for what is none, or has no room in 64 bits."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return found if abs(found) < 2**62 else None


def _of_length(values: NDArray[np.float32] | None, size: int) -> NDArray[np.float32] | None:
    return values if values is not None and len(values) == size else None


def task(row: Mapping[str, Any]) -> str:
    """What the metadata call it, else a digest of the prompt, which is the same every time."""
    metadata = row.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    for key in _TASK_KEYS:
        if known.get(key):
            return str(known[key])
    prompt = repr(row.get("prompt"))
    return f"prompt {hashlib.sha256(prompt.encode(errors='replace')).hexdigest()[:8]}"
