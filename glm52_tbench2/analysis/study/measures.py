"""What one run of a study came to, a number a step, on two clocks: steps, and visits a task.

D = log p_trainer - log p_rollout of a generated token, before the update. A turn of NEAR_CAP of the
per-turn cap or more is a capped one. Finished runs are read once: what they came to is kept in
STUDY/measures/, where that of runs made elsewhere lies too (see recorded.py).
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config.files import atomic_write_bytes
from ...config.schema import NEAR_CAP
from ..run_files import RunFiles
from ..sentinel.detectors import reward_lost
from ..sentinel.files import rewards_at
from ..stats import task_means

WINDOW = 6
"""Steps in a row of which a drift is the mean."""
PROBABILITIES = (0.1, 0.5, 0.9, 0.99)
"""Between these, the classes of a token's probability as it was sampled."""
VISITS = 10
"""Visits a task of one class of time."""
_COLUMNS = ("sample_id", "task_id", "turns", "loss_mask", "rollout_logprobs", "advantage")
_MADE = ("revision", "changes", "machine")
_FORMAT = 2
"""Of the files in measures/: those of another are read from the runs again."""

Cells = dict[str, tuple[float, int]]
"""VISITS/PROBABILITY/SIGN/CAPPED, each a class's number -> (sum of |D|, tokens)."""


@dataclass
class Measures:
    """One run. Lists have an entry a step, from step 1 on."""

    visits: list[float] = field(default_factory=list)
    """Steps that have trained on a task, mean over the tasks of the set."""
    drift_sum: list[float] = field(default_factory=list)
    """Sum of |D| over the tokens of capped turns."""
    drift_tokens: list[int] = field(default_factory=list)
    """How many these are."""
    kl: list[float] = field(default_factory=list)
    """train_rollout_kl."""
    reward: list[float] = field(default_factory=list)
    """Training reward."""
    truncated: list[float] = field(default_factory=list)
    """Share of samples."""
    held_out: dict[int, dict[str, float]] = field(default_factory=dict)
    """Trained steps -> held-out task -> mean reward."""
    cells: Cells = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    """The run's identity.json, without what it says file by file."""

    @property
    def steps(self) -> int:
        return len(self.visits)

    def turns(self, step: int) -> int:
        """Capped turns of a step and the five before it, by their tokens: exact up to nine; of
        more, or where the cap is unknown, at least so many."""
        tokens = sum(self.drift_tokens[step - WINDOW : step])
        cap = self.identity.get("config", {}).get("rollout.max_turn_tokens", tokens)
        return math.ceil(tokens / max(1, cap))

    def drift(self, least: int = 1) -> dict[int, float]:
        """Step -> mean |D| on the capped turns of it and the five steps before, where these are
        `least` or more."""
        return {
            step: sum(self.drift_sum[step - WINDOW : step])
            / sum(self.drift_tokens[step - WINDOW : step])
            for step in range(WINDOW, self.steps + 1)
            if self.turns(step) >= least
        }

    def peak(self, upto: int, least: int = 1) -> float | None:
        """The largest drift in the first `upto` steps; None without a window of `least` turns."""
        return max((d for step, d in self.drift(least).items() if step <= upto), default=None)

    def peak_turns(self, upto: int) -> int:
        """Capped turns that the peak rests on, as :meth:`turns`; 0 without any."""
        drift = {step: d for step, d in self.drift().items() if step <= upto}
        return self.turns(max(drift, key=drift.__getitem__)) if drift else 0

    def onset(self, above: float, upto: int) -> float | None:
        """Visits a task at which the drift first is `above`; None: not in the first `upto`."""
        steps = (step for step, d in self.drift().items() if step <= upto and d > above)
        first = next(steps, None)
        return None if first is None else self.visits[first - 1]

    def lost_since(self, count: int, upto: int) -> int | None:
        """Step since which training reward is lost at the end of the first `upto` steps, after a
        best mean over `count` steps; None: it is not lost."""
        found = reward_lost(dict(enumerate(self.reward[:upto], 1)), count)
        return None if found is None else found[0]

    def lost_at(self, count: int, upto: int) -> float | None:
        """Visits a task at :meth:`lost_since`."""
        step = self.lost_since(count, upto)
        return None if step is None else self.visits[step - 1]

    def held_out_mean(self, step: int) -> float | None:
        """Held-out reward after `step` steps, every task weighing the same."""
        found = self.held_out.get(step)
        return None if not found else float(np.mean(list(found.values())))


def measured(run_dir: Path, keep: Path) -> Measures:
    """The measures of a run; of a finished one from the file `keep`, which is made where it is
    missing or of another run, as one that was recorded elsewhere."""
    run = RunFiles.open(run_dir)
    if run.state != "finished":
        return measure(run)
    known = kept(keep)
    if known is not None and known.identity == _identity(run):
        return known
    found = measure(run)
    atomic_write_bytes(keep, json.dumps({"format": _FORMAT, **asdict(found)}).encode())
    return found


def kept(path: Path) -> Measures | None:
    """The measures in a file; None where there are none that this code reads."""
    try:
        content = json.loads(path.read_text())
        if content.pop("format") != _FORMAT:
            return None
        held_out = {int(step): tasks for step, tasks in content.pop("held_out").items()}
        cells = {name: (float(total), int(n)) for name, (total, n) in content.pop("cells").items()}
        return Measures(**content, held_out=held_out, cells=cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def measure(run: RunFiles) -> Measures:
    """Reads a run's step files, up to the last step that is trained and whole."""
    found, seen = Measures(identity=_identity(run)), Counter[str]()
    kl, reward = run.series("trainer/train_rollout_kl"), run.series("rollout/reward_mean")
    truncated = run.series("rollout/truncated_share")
    known = (run.identity.get("made") or {}).get("task_ids") or {}
    num_tasks = len(known.get(run.config.data.train, ()))
    cells: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    steps: list[int] = []
    for step in sorted(set(run.steps("rollouts")) & set(run.steps("train")) & set(kl)):
        if step != len(steps) + 1:
            break
        columns = run.columns("rollouts", step, _COLUMNS)
        trained = run.trained(step)
        if not columns or trained.keys() != set(columns["sample_id"]):
            break
        seen.update(set(columns["task_id"]))
        steps.append(step)
        visits = seen.total() / (num_tasks or len(seen))
        d, probability, sign, capped = _tokens(run, columns, trained)
        found.visits.append(visits)
        found.drift_sum.append(float(d[capped].sum()))
        found.drift_tokens.append(int(capped.sum()))
        found.kl.append(kl[step])
        found.reward.append(reward[step])
        found.truncated.append(truncated[step])
        time = int(max(0.0, visits - 1e-9) // VISITS)
        keys = (np.searchsorted(PROBABILITIES, probability, "right") * 3 + sign) * 2 + capped
        sums, counts = np.bincount(keys, d, 30), np.bincount(keys, minlength=30)
        for key in np.flatnonzero(counts):
            cell = cells[f"{time}/{key // 6}/{key // 2 % 3}/{key % 2}"]
            cell[0] += float(sums[key])
            cell[1] += int(counts[key])
    found.cells = {name: (total, int(n)) for name, (total, n) in cells.items()}
    for step in run.steps("eval"):
        found.held_out[step] = task_means(rewards_at(run, step))
    return found


def _identity(run: RunFiles) -> dict[str, Any]:
    identity = dict(run.identity)
    made = identity.get("made") or {}
    return identity | {"made": {name: made.get(name) for name in _MADE}}


def _tokens(
    run: RunFiles, columns: dict[str, Sequence[Any]], trained: dict[str, Any]
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Of each generated token of a step: |D|, probability, sign of A as 0, 1, 2, and capped."""
    least = NEAR_CAP * run.config.rollout.max_turn_tokens
    parts: list[tuple[NDArray, NDArray, NDArray, NDArray]] = []
    rows = zip(*(columns[name] for name in _COLUMNS), strict=True)
    for sample_id, _, turns, mask, rollout_logp, advantage in rows:
        mask, capped = np.asarray(mask, bool), np.zeros(len(mask), bool)
        for turn in turns:
            capped[turn["start"] : turn["end"]] = turn["end"] - turn["start"] >= least
        d = np.abs(np.asarray(trained[sample_id], np.float64) - rollout_logp)[mask]
        sign = np.full(len(d), int(np.sign(advantage)) + 1)
        parts.append((d, np.exp(rollout_logp[mask]), sign, capped[mask]))
    d, probability, sign, capped = (np.concatenate(part) for part in zip(*parts, strict=True))
    known = np.isfinite(d)
    return d[known], probability[known], sign[known], capped[known]
