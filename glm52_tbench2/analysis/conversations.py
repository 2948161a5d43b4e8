"""Episodes as the report's page shows them: token by token, packed until somebody opens one."""

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .run_files import Row, RunFiles

MOST_BYTES = 16_000_000
"""Of conversations in one page, packed: a browser reads as much in well under a second."""
_ABOUT = ("sample_id", "task_id", "reward", "advantage", "end_reason", "truncated")


@dataclass
class Conversations:
    """Those that fit into a page."""

    packed: dict[str, str] = field(default_factory=dict)
    """Sample -> base64 of gzip of its JSON, see :func:`pack`."""
    ids: set[int] = field(default_factory=set)
    """Every token that occurs."""
    left_out: int = 0

    def add(self, run: RunFiles, wanted: Iterable[tuple[int, str]]) -> None:
        """Packs the samples `wanted`, (step, id) by importance, until MOST_BYTES are full."""
        size = 0
        by_step: dict[int, list[str]] = {}
        for step, sample in dict.fromkeys(wanted):
            by_step.setdefault(step, []).append(sample)
        for step, samples in by_step.items():
            if size > MOST_BYTES:
                self.left_out += len(samples)
                continue
            for sample, row in _rows(run, step, samples):
                text = "" if size > MOST_BYTES else pack(row)
                if not text or (size := size + len(text)) > MOST_BYTES:
                    self.left_out += 1
                    continue
                self.packed[sample] = text
                self.ids.update(np.unique(row["tokens"]).tolist())


def _rows(run: RunFiles, step: int, samples: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Every column of some samples of a step, with `trainer_logprobs` where it has been trained."""
    found = run.columns(
        "rollouts",
        step,
        (*_ABOUT, "tokens", "loss_mask", "rollout_logprobs", "weight_versions", "turns"),
    )
    scores = run.columns("train", step, ("sample_id", "trainer_logprobs"))
    trained = dict(
        zip(scores.get("sample_id", []), scores.get("trainer_logprobs", []), strict=True)
    )
    for place, sample in enumerate(found.get("sample_id", [])):
        if sample in samples:
            row = {name: values[place] for name, values in found.items()}
            yield sample, row | {"trainer_logprobs": trained.get(sample)}


def pack(row: Row) -> str:
    """One conversation: facts, token ids, and of generated tokens both log-probs and versions.

    Arrays are base64 of little-endian numbers: tokens and versions int32 [T], the engine's and the
    trainer's log-probs float32 [T] ("" where the sample is not trained).
    """
    told: dict[str, Any] = {name: row.get(name) for name in _ABOUT}
    told["turns"] = [[turn["start"], turn["end"]] for turn in row.get("turns", [])]
    for name, kind in (
        ("tokens", "<i4"),
        ("rollout_logprobs", "<f4"),
        ("trainer_logprobs", "<f4"),
        ("weight_versions", "<i4"),
    ):
        values = row.get(name)
        told[name] = "" if values is None else _text(np.asarray(values).astype(kind).tobytes())
    return _text(gzip.compress(json.dumps(told).encode(), 5, mtime=0))


def vocabulary(model_dir: Path, ids: Iterable[int]) -> dict[int, str]:
    """Token -> base64 of its bytes, of a tokenizer whose tokens are bytes of UTF-8.

    Raises ValueError, in one sentence, when the folder holds no usable tokenizer.
    """
    from tokenizers import Tokenizer

    path = model_dir / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is not readable: {error}") from error
    whole = {one.content for one in tokenizer.get_added_tokens_decoder().values()}
    byte_of = {letter: byte for byte, letter in enumerate(_letters())}
    found = {}
    for number in ids:
        token = tokenizer.id_to_token(number) or f"<{number}>"
        known = token not in whole and all(letter in byte_of for letter in token)
        said = bytes(byte_of[letter] for letter in token) if known else token.encode()
        found[number] = _text(said)
    return found


def _letters() -> list[str]:
    """The letter that a byte-level tokenizer writes for each byte: itself where it can be printed,
    else the next one from 256 on."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
