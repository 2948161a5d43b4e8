"""The sentinel of one run: observes each step, opens alarms, says what to do about them.

What it knows lies in RUN/sentinel/ and RUN/eval/, what it said in RUN/alarms.jsonl. It decides by
the steps alone, so that a resumed run decides as the uninterrupted one.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config.files import append_line
from ...config.schema import RunConfig, SentinelAction, Sign
from ..run_files import RunFiles
from . import facts as facts_of
from .detectors import DETECTORS
from .facts import Sample, StepFacts, near_cap
from .files import ALARMS_FILE, Alarm, facts_at, rewards_at
from .history import History
from .sketch import sketch

log = logging.getLogger(__name__)

PROGRESS_FILE = "progress.json"
QUIET = 10
"""Steps without a finding after which an alarm is closed."""


class Judge:
    """Alarms from facts, step by step."""

    def __init__(self, config: RunConfig) -> None:
        self.history = History(config.sentinel.similarity)
        self._config = config.sentinel
        self._found: dict[Sign, int] = {}
        """Sign whose alarm is open -> step at which it was last found."""

    def add(self, facts: StepFacts) -> list[Alarm]:
        """The next step's facts; the alarms that open with it."""
        self.history.add(facts)
        opened = []
        for sign, detect in DETECTORS.items():
            action = self.action(sign)
            if action is SentinelAction.ignore:
                continue
            try:
                found = detect(self.history, self._config)
            except Exception:  # one sign less, and not a run unwatched
                log.exception("%s cannot be judged at step %d", sign.name, facts.step)
                continue
            if found is not None:
                if sign not in self._found:
                    opened.append(Alarm(facts.step, sign.name, action.name, **vars(found)))
                self._found[sign] = facts.step
            elif facts.step - self._found.get(sign, facts.step) >= QUIET:
                del self._found[sign]
        return opened

    def take_up(self, run: RunFiles, step: int) -> list[Alarm]:
        """A step that is trained, by the run's files; the alarms that open with it."""
        self.know_evals(run, step)
        known = facts_at(run, step)
        return [] if known is None else self.add(known)

    def know_evals(self, run: RunFiles, step: int) -> None:
        """Those before `step`: while the batch of a step is made, no evaluation is under way."""
        known = self.history.evals
        for number in run.steps("eval"):
            if number < step and number not in known:
                known[number] = rewards_at(run, number)

    @property
    def open(self) -> list[Sign]:
        """Signs whose alarm is open."""
        return list(self._found)

    def action(self, sign: Sign) -> SentinelAction:
        """What an alarm does."""
        action = self._config.actions.get(sign.name)
        return self._config.action if action is None else SentinelAction[action]


class Sentinel:
    """Inside a run: the trainer tells it every step."""

    def __init__(self, run_dir: Path, config: RunConfig, step: int) -> None:
        """Takes up a run after `step` steps."""
        self._run = RunFiles(run_dir, config)
        self._judge = Judge(config)
        self._config = config
        self._progress: tuple[Any, float] = None, time.monotonic()
        """What the driver said of its progress last, and when it was new."""
        self._stalled: int | None = None
        """Step after which an alarm of a long wait was opened last."""
        (run_dir / ALARMS_FILE).touch()
        for number in range(1, step + 1):
            self._judge.take_up(self._run, number)

    def observe(
        self,
        step: int,
        samples: Sequence[Sample],
        trainer_logprobs: Sequence[NDArray[np.floating]],
        metrics: Mapping[str, float],
    ) -> tuple[list[Alarm], dict[str, float]]:
        """Judges a step that is trained. Arguments as of :func:`.facts.observe`.

        Returns the alarms that open, also written to RUN/alarms.jsonl, and metrics of the
        sentinel: for each task of the step, and one for each alarm that is open.
        """
        self._judge.know_evals(self._run, step)
        cap = self._config.rollout.max_turn_tokens
        found = facts_of.observe(step, samples, trainer_logprobs, metrics, cap)
        facts_of.write(self._run.path, found)
        alarms = self._judge.add(found)
        for alarm in alarms:
            append_line(self._run.path / ALARMS_FILE, json.dumps(asdict(alarm)))
        told = {f"sentinel/alarm/{sign.name}": 1.0 for sign in self._judge.open}
        return alarms, told | task_metrics(self._judge.history, found)

    def waiting(self, step: int, seconds: float) -> Alarm | None:
        """The alarm of a wait of `seconds` for the batch after `step`, once no episode has got a
        verdict for longer than two, the making of their sandboxes included, may take.
        """
        config, now = self._config, time.monotonic()
        most = 2 * (config.rollout.episode_timeout_s + config.sandbox.start_timeout_s)
        if (told := self._driver_told()) != self._progress[0]:
            self._progress = told, now
        seconds = min(seconds, now - self._progress[1])
        action = self._judge.action(Sign.stalled)
        if seconds < most or self._stalled == step or action is SentinelAction.ignore:
            return None
        self._stalled = step
        alarm = Alarm(
            step,
            Sign.stalled.name,
            action.name,
            f"No episode has got a verdict for {seconds / 60:.0f} minutes after step {step}; two "
            f"may take {most / 60:.0f} minutes: look at logs/driver.log and the engines'.",
            evidence={"seconds": seconds},
        )
        append_line(self._run.path / ALARMS_FILE, json.dumps(asdict(alarm)))
        return alarm

    def _driver_told(self) -> Any:
        """Phase, step and episodes that have a verdict, as the driver tells them every second."""
        try:
            told = json.loads((self._run.path / PROGRESS_FILE).read_text())
            return told["phase"], told["step"], told["samples_done"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def masked(self, samples: Sequence[Sample]) -> list[int]:
        """Samples of the next batch to leave out of the loss, by place.

        While an alarm with the action mask is open: those with A < 0 that hold a giant turn which
        is near-identical to an earlier one.
        """
        judge, cap = self._judge, self._config.rollout.max_turn_tokens
        if not any(judge.action(sign) is SentinelAction.mask for sign in judge.open):
            return []
        return [
            place
            for place, sample in enumerate(samples)
            if sample.advantage < 0
            and any(self._repeats(sample, t) for t in sample.turns if near_cap(t, cap))
        ]

    def _repeats(self, sample: Sample, turn: Any) -> bool:
        said = np.asarray(sample.tokens)[turn.start : turn.end]
        return self._judge.history.family(sketch(said)) is not None


def judge(run: RunFiles) -> tuple[list[Alarm], History]:
    """The alarms of a run by its files alone, whether or not a sentinel watched it, and the
    history they were found in."""
    found = Judge(run.config)
    alarms = [alarm for step in run.steps("rollouts") for alarm in found.take_up(run, step)]
    return alarms, found.history


def task_metrics(history: History, facts: StepFacts) -> dict[str, float]:
    """Metrics `task/ID/...` of the tasks of a step."""
    found: dict[str, float] = {}
    for task, visit in facts.visits.items():
        past = [one for _, one in history.visits[task]]
        found |= {
            f"task/{task}/reward_mean": float(np.mean(visit.rewards)),
            f"task/{task}/reward_std": float(np.std(visit.rewards)),
            f"task/{task}/visits": float(len(past)),
            f"task/{task}/pull": visit.pull,
            f"task/{task}/pull_streak": float(_streak([one.pull for one in past])),
            f"task/{task}/mismatch_abs_mean": visit.drift,
            f"task/{task}/truncated": float(visit.truncated),
            f"task/{task}/giant_turns": float(visit.giant_turns),
        }
    return found


def _streak(pulls: Sequence[float]) -> int:
    """How many of the last visits had the sign of the last one, with that sign; 0 at 0."""
    sign, count = float(np.sign(pulls[-1])), 0
    for pull in reversed(pulls):
        if not sign or np.sign(pull) != sign:
            break
        count += 1
    return int(sign * count)
