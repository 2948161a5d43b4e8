"""Runs of others: the rollout and train dumps of slime and miles, torch-saved .pt files.

Nothing in a file is executed: what is not tensors, arrays and plain values is refused.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .source import About, Step, spans

_ROLLOUT = re.compile(r"(?:.*[^0-9])?(\d+)\.pt")
_TRAIN = re.compile(r"(\d+)(?:_\d+)?\.pt")
_TASK_KEYS = ("task_id", "task", "task_name", "instance_id")
_REWARD_KEYS = ("score", "reward", "acc")


def is_dump(path: Path) -> bool:
    """Whether a folder holds rollout dumps."""
    return bool(_rollouts(path))


@dataclass
class DumpSource:
    """FOLDER/rollout_data/N.pt and FOLDER/train_data/N.pt or N_RANK.pt; or FOLDER/…N.pt alone.

    Steps are their rollout ids.
    """

    path: Path
    warnings: list[str] = field(default_factory=list)

    def about(self) -> About:
        """As of :class:`.source.Source`."""
        evals: dict[int, dict[str, list[float]]] = {}
        for path in sorted(_folder(self.path).glob("*eval_*.pt")):
            match = _ROLLOUT.fullmatch(path.name)
            for row in self._samples(path) if match else ():
                found = evals.setdefault(int(match[1]) if match else 0, {})
                if np.isfinite(reward := self._reward(row)):
                    found.setdefault(_task(row), []).append(reward)
        return About(self.path.resolve().name, "dumps of slime or miles", None, evals=dict(evals))

    def steps(self) -> list[int]:
        """As of :class:`.source.Source`."""
        return sorted(_rollouts(self.path))

    def size(self) -> int:
        """As of :class:`.source.Source`."""
        files = [*_rollouts(self.path).values(), *(self.path / "train_data").glob("*.pt")]
        return sum(file.stat().st_size for file in files)

    def read(self, step: int, tokens_only: bool = False) -> Step | None:
        """As of :class:`.source.Source`."""
        path = _rollouts(self.path)[step]
        rows = [row for row in self._samples(path) if self._usable(path, row)]
        if not rows:
            return None
        lengths = [len(row["tokens"]) for row in rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        mask = np.concatenate([_mask(row) for row in rows])
        rewards = np.array([self._reward(row) for row in rows])
        groups = [str(row.get("group_index", place)) for place, row in enumerate(rows)]
        trained = {} if tokens_only else self._trained(step, rows)
        advantages = trained.get("advantages")
        if advantages is None:
            advantages = self._centred(rewards, groups)
        known = [row.get("status") for row in rows]
        return Step(
            step=step,
            sample_ids=[
                f"{step}-{groups[place]}-{row.get('index', place)}"
                for place, row in enumerate(rows)
            ],
            tasks=[_task(row) for row in rows],
            groups=groups,
            rewards=rewards,
            advantages=advantages,
            truncated=np.array([one == "truncated" for one in known]) if any(known) else None,
            offsets=offsets,
            tokens=np.concatenate([np.asarray(row["tokens"], np.int64) for row in rows]),
            mask=mask,
            rollout=None if tokens_only else self._joined(rows, "rollout_log_probs"),
            trainer=trained.get("log_probs"),
            entropy=None,
            versions=None if tokens_only else self._versions(rows, mask, offsets),
            version=None,
        )

    def _samples(self, path: Path) -> list[dict[str, Any]]:
        found = self._load(path)
        rows = found.get("samples") if isinstance(found, dict) else None
        if found is not None and not isinstance(rows, list):
            self._warn(f"{path.name} holds no samples; left out")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def _usable(self, path: Path, row: dict[str, Any]) -> bool:
        missing = [name for name in ("tokens", "response_length") if row.get(name) is None]
        if missing:
            self._warn(f"{path.name}: samples lack {', '.join(missing)}; they are left out")
            return False
        size = int(row["response_length"])
        if not 0 < size <= len(row["tokens"]) or _length(row.get("loss_mask"), size) != size:
            self._warn(f"{path.name}: samples contradict their response_length; they are left out")
            return False
        return True

    def _load(self, path: Path) -> Any:
        """What a file holds; None, with a warning, where it is not whole or not plain."""
        import torch

        made: Any = np._core.multiarray  # type: ignore[attr-defined]
        plain = [made._reconstruct, made.scalar, np.ndarray, np.dtype]
        kinds = [type(np.dtype(name)) for name in ("i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8")]
        try:
            with torch.serialization.safe_globals([*plain, *kinds, type(np.dtype(bool))]):
                return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle can raise anything
            refused = re.search(r"Unsupported (?:global|operand|class)[^\n]*", str(error))
            reason = refused[0] if refused else (str(error).splitlines() or [repr(error)])[0]
            self._warn(f"{path.name} is not readable without running it, or cut: {reason[:160]}")
            return None

    def _trained(self, step: int, rows: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
        """log_probs [N] and advantages [S] of the train dumps; NaN for samples not in them."""
        by_index = {row.get("index"): place for place, row in enumerate(rows)}
        by_tokens = {_bytes(row["tokens"]): place for place, row in enumerate(rows)}
        scores: dict[int, Any] = {}
        pushed: dict[int, float] = {}
        for path in sorted((self.path / "train_data").glob("*.pt")):
            match = _TRAIN.fullmatch(path.name)
            if match is None or int(match[1]) != step:
                continue
            found = self._load(path)
            data = found.get("rollout_data") if isinstance(found, dict) else None
            if not isinstance(data, Mapping):
                continue
            indices = data.get("sample_indices")
            for i in range(len(data.get("tokens", []))):
                place = (
                    by_index.get(int(indices[i]))
                    if indices is not None
                    else by_tokens.get(_bytes(data["tokens"][i]))
                )
                if place is None:
                    continue
                said = _mask(rows[place])[-int(rows[place]["response_length"]) :]
                for name in ("log_probs", "advantages"):
                    if name not in data:
                        self._warn(f"train_data: {name} is missing")
                        continue
                    values = _floats(data[name][i])
                    if len(values) != len(said):
                        self._warn(
                            f"train_data: {name} and responses differ in length, as of ranks that "
                            "share a sequence; left out"
                        )
                    elif name == "log_probs":
                        scores[place] = values
                    elif said.any():
                        pushed[place] = float(values[said].mean())
        result: dict[str, NDArray[Any]] = {}
        if scores:
            result["log_probs"] = np.concatenate(
                [_padded(scores.get(place), row) for place, row in enumerate(rows)]
            )
        if pushed:
            result["advantages"] = np.array([pushed.get(i, np.nan) for i in range(len(rows))])
        return result

    def _centred(self, rewards: NDArray[Any], groups: list[str]) -> NDArray[Any] | None:
        if not np.isfinite(rewards).any():
            return None
        self._warn(
            "Advantages are not in the dumps of every step: there, a reward minus the mean of its "
            "group is taken for one."
        )
        names = np.array(groups)
        return np.array(
            [r - rewards[names == g].mean() for r, g in zip(rewards, groups, strict=True)]
        )

    def _joined(self, rows: list[dict[str, Any]], name: str) -> NDArray[np.float32] | None:
        size = [int(row["response_length"]) for row in rows]
        right = [
            row.get(name) if _length(row.get(name), 0) == n else None
            for row, n in zip(rows, size, strict=True)
        ]
        if any(one is None for one in right):
            self._warn(f"{name} is missing in samples, or of another length than their responses")
        if all(one is None for one in right):
            return None
        return np.concatenate(
            [
                _padded(None if one is None else _floats(one), row)
                for one, row in zip(right, rows, strict=True)
            ]
        )

    def _versions(
        self, rows: list[dict[str, Any]], mask: NDArray[np.bool_], offsets: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """[N]; a version a call of the engine: that of the turn, where there are as many."""
        versions = np.full(len(mask), -1, np.int64)
        starts, ends = spans(mask, offsets)
        owner = np.searchsorted(offsets, starts, side="right") - 1
        for place, row in enumerate(rows):
            try:
                calls = [int(one) for one in row.get("weight_versions") or []]
            except (TypeError, ValueError):
                calls = []
            turns = np.flatnonzero(owner == place)
            if len(set(calls)) == 1:
                calls = calls[:1] * len(turns)
            if len(calls) != len(turns):
                self._warn("weight_versions do not name one version a turn; staleness is unknown")
                return None
            for turn, version in zip(turns, calls, strict=True):
                versions[starts[turn] : ends[turn]] = version
        return versions

    def _reward(self, row: dict[str, Any]) -> float:
        reward = row.get("reward")
        if isinstance(reward, dict):
            reward = next((reward[key] for key in _REWARD_KEYS if key in reward), None)
        if not isinstance(reward, int | float):
            self._warn("samples have no reward that is a number, or one named score, reward or acc")
            return float("nan")
        return float(reward)

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def _folder(path: Path) -> Path:
    return path / "rollout_data" if (path / "rollout_data").is_dir() else path


def _rollouts(path: Path) -> dict[int, Path]:
    """Rollout id -> its file."""
    files = {file: _ROLLOUT.fullmatch(file.name) for file in _folder(path).glob("*.pt")}
    return {int(m[1]): file for file, m in files.items() if m and "eval_" not in file.name}


def _length(values: Any, otherwise: int) -> int:
    return otherwise if values is None else len(values)


def _mask(row: dict[str, Any]) -> NDArray[np.bool_]:
    """[T] True on generated tokens; without a loss_mask the whole response is."""
    size = int(row["response_length"])
    mask = np.zeros(len(row["tokens"]), bool)
    mask[-size:] = True if row.get("loss_mask") is None else np.asarray(row["loss_mask"], bool)
    return mask


def _padded(values: NDArray[np.float32] | None, row: dict[str, Any]) -> NDArray[np.float32]:
    """[T] from those of the response; NaN elsewhere."""
    found = np.full(len(row["tokens"]), np.nan, np.float32)
    if values is not None:
        found[len(found) - len(values) :] = values
    return found


def _floats(values: Any) -> NDArray[np.float32]:
    if hasattr(values, "float"):  # a tensor, of bfloat16 too
        values = values.float().numpy()
    return np.asarray(values, np.float32)


def _bytes(tokens: Any) -> bytes:
    return np.asarray(tokens, np.int64).tobytes()


def _task(row: dict[str, Any]) -> str:
    """What the metadata call it, else a digest of the prompt, which is the same every time."""
    metadata = row.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    for key in _TASK_KEYS:
        if known.get(key):
            return str(known[key])
    prompt = json.dumps(row.get("prompt", ""), sort_keys=True, default=str)
    return f"prompt {hashlib.sha256(prompt.encode()).hexdigest()[:8]}"
