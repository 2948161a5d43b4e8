"""Runs of others: the rollout and train dumps of slime and miles, torch-saved .pt files.

Nothing in a file is executed: what is not tensors, arrays and plain values is refused.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..stats import finite
from .dump_rows import Malformed, Sample, items, joined, keep, match, sample, task
from .source import About, Step, spans

_ROLLOUT = re.compile(r"(?:.*[^0-9])?(\d+)\.pt")
_TRAIN = re.compile(r"(\d+)(?:_\d+)?\.pt")
_REWARD_KEYS = ("score", "reward", "acc")
_LISTED = 5
"""Rows that a warning names."""


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
            for row in self._rows(path) if match else ():
                if not isinstance(row, dict):
                    continue
                found = evals.setdefault(int(match[1]) if match else 0, {})
                if np.isfinite(reward := self._reward(row)):
                    found.setdefault(task(row), []).append(reward)
        return About(self.path.resolve().name, "dumps of slime or miles", None, evals=dict(evals))

    def steps(self) -> list[int]:
        """As of :class:`.source.Source`."""
        return sorted(self._files)

    def size(self) -> int:
        """As of :class:`.source.Source`."""
        files = [*self._files.values(), *(self.path / "train_data").glob("*.pt")]
        return sum(file.stat().st_size for file in files)

    def read(self, step: int, tokens_only: bool = False) -> Step | None:
        """As of :class:`.source.Source`."""
        samples = self._samples(self._files[step])
        if not samples:
            self._warn(f"{self._name(self._files[step])} has no sample that can be read")
            return None
        offsets = np.append(0, np.cumsum([len(one.tokens) for one in samples]))
        mask = np.concatenate([one.whole(one.said, False) for one in samples])
        rewards = np.array([self._reward(one.row) for one in samples])
        groups = self._groups(samples)
        trained = {} if tokens_only else self._trained(step, samples)
        advantages = trained.get("advantages")
        if advantages is None and groups is not None:
            advantages = self._centred(rewards, groups)
        known = [one.row.get("status") for one in samples]
        named = any(isinstance(one, str) for one in known)
        return Step(
            step=step,
            sample_ids=[
                "-".join(
                    str(part)
                    for part in (step, one.group, one.place if one.index is None else one.index)
                    if part is not None
                )
                for one in samples
            ],
            tasks=[task(one.row) for one in samples],
            groups=groups,
            rewards=rewards,
            advantages=advantages,
            truncated=np.array([one == "truncated" for one in known]) if named else None,
            offsets=offsets,
            tokens=np.concatenate([one.tokens for one in samples]),
            mask=mask,
            rollout=None if tokens_only else joined(samples, [one.logps for one in samples]),
            trainer=trained.get("log_probs"),
            entropy=None,
            versions=None if tokens_only else self._versions(samples, mask, offsets),
            version=None,
        )

    @cached_property
    def _files(self) -> dict[int, Path]:
        return _rollouts(self.path)

    @cached_property
    def _train_files(self) -> dict[int, list[str]]:
        """Rollout id -> names, which other processes are handed faster than paths."""
        found: dict[int, list[str]] = {}
        for path in (self.path / "train_data").glob("*.pt"):
            if match := _TRAIN.fullmatch(path.name):
                found.setdefault(int(match[1]), []).append(path.name)
        return found

    def _rows(self, path: Path) -> list[Any]:
        found = self._load(path)
        rows = found.get("samples") if isinstance(found, dict) else None
        if found is not None and not isinstance(rows, list):
            self._warn(f"{self._name(path)} holds no samples; left out")
        return rows if isinstance(rows, list) else []

    def _samples(self, path: Path) -> list[Sample]:
        found: list[Sample] = []
        lost: dict[str, list[int]] = {}
        for place, row in enumerate(self._rows(path)):
            try:
                found.append(sample(place, row))
            except Malformed as error:
                lost.setdefault(f"{error}; they are left out", []).append(place)
                continue
            if row.get("rollout_log_probs") is None:
                self._warn("rollout_log_probs is missing in samples")
            elif found[-1].logps is None:
                told = "have other rollout_log_probs than one a token of the response"
                lost.setdefault(f"{told}; these are left out", []).append(place)
        self._tell(path, lost)
        return found

    def _tell(self, path: Path, lost: dict[str, list[int]]) -> None:
        """Warns of rows of a file, by what is wrong with them."""
        for why, places in lost.items():
            rows = ", ".join(map(str, places[:_LISTED]))
            more = f" and {len(places) - _LISTED} more" if len(places) > _LISTED else ""
            self._warn(f"{self._name(path)}: samples {rows}{more} {why}")

    def _groups(self, samples: list[Sample]) -> list[str] | None:
        groups = [one.group for one in samples if one.group is not None]
        if len(groups) == len(samples):
            return groups
        self._warn(
            "group_index is missing in samples: which of them share a baseline is not known there, "
            "nor are groups without signal, nor advantages that are in no train dump."
        )
        return None

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

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
            self._warn(
                f"{self._name(path)} is not readable without running it, or cut: {reason[:160]}"
            )
            return None

    def _trained(self, step: int, samples: list[Sample]) -> dict[str, NDArray[Any] | None]:
        """log_probs [N] and advantages [S] of the train dumps; NaN for samples not in them."""
        known: dict[int | bytes, list[Sample]] = {}
        for one in samples:
            known.setdefault(one.tokens.tobytes(), []).append(one)
            if one.index is not None:
                known.setdefault(one.index, []).append(one)
        matched: set[int] = set()
        kept: dict[str, dict[int, NDArray[np.float32]]] = {"log_probs": {}, "advantages": {}}
        for name in sorted(self._train_files.get(step, [])):
            path = self.path / "train_data" / name
            columns = self._columns(path)
            lost: dict[str, list[int]] = {}
            for row in range(max(map(len, columns.values()), default=0)):
                item = {key: (rows[row : row + 1] or [None])[0] for key, rows in columns.items()}
                if (of := match(known, item, matched)) is None:
                    why = ["are of no sample of the rollouts, by index or tokens"]
                else:
                    matched.add(of.place)
                    why = keep(kept, item, of)
                for reason in why:
                    lost.setdefault(f"{reason}; left out", []).append(row)
            self._tell(path, lost)
        scores, pushed = kept["log_probs"], kept["advantages"]
        means = [
            pushed[one.place][one.said].mean() if one.place in pushed and one.said.any() else np.nan
            for one in samples
        ]
        return {
            "log_probs": joined(samples, [scores.get(one.place) for one in samples]),
            "advantages": np.array(means) if np.isfinite(means).any() else None,
        }

    def _columns(self, path: Path) -> dict[str, list[Any]]:
        """The columns that are read of a train dump, a value a sample; {} with a warning."""
        found = self._load(path)
        data = found.get("rollout_data") if isinstance(found, dict) else None
        if not isinstance(data, Mapping):
            if found is not None:
                self._warn(f"{self._name(path)} holds no rollout_data; left out")
            return {}
        for name in ("log_probs", "advantages"):
            if name not in data:
                self._warn(f"train_data: {name} is missing")
        names = ("sample_indices", "tokens", "log_probs", "advantages")
        return {name: items(data[name]) for name in names if name in data}

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

    def _versions(
        self, samples: list[Sample], mask: NDArray[np.bool_], offsets: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """[N]; a version a call of the engine: that of the turn, where there are as many."""
        versions = np.full(len(mask), -1, np.int64)
        starts, ends = spans(mask, offsets)
        owner = np.searchsorted(offsets, starts, side="right") - 1
        for place, one in enumerate(samples):
            turns = np.flatnonzero(owner == place)
            calls = one.versions
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
        with suppress(AttributeError, ValueError, RuntimeError):
            reward = cast(Any, reward).item()  # of a tensor or an array of one number
        if (known := finite(reward)) is not None:
            return float(known)
        self._warn("samples have no reward that is a number, or one named score, reward or acc")
        return float("nan")

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def _folder(path: Path) -> Path:
    return path / "rollout_data" if (path / "rollout_data").is_dir() else path


def _rollouts(path: Path) -> dict[int, Path]:
    """Rollout id -> its file."""
    files = {file: _ROLLOUT.fullmatch(file.name) for file in _folder(path).glob("*.pt")}
    return {int(m[1]): file for file, m in files.items() if m and "eval_" not in file.name}
