"""The sentinel beside the trainer: rank 0 judges, every rank does what follows."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch.distributed as dist

from glm52_tbench2.analysis.sentinel.files import Alarm
from glm52_tbench2.analysis.sentinel.watch import Sentinel
from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import atomic_write_bytes
from glm52_tbench2.config.schema import RunConfig, SentinelAction, SentinelConfig
from glm52_tbench2.rollout.batch import Sample

from .microbatch import Scores
from .paused import PAUSED, paused

log = logging.getLogger(__name__)


class Watch:
    """A sentinel that is wrong about a run must not end it: its own errors are only logged."""

    def __init__(self, run_dir: Path, config: RunConfig, rank: int, step: int) -> None:
        """Takes up after `step` steps."""
        self._run_dir = run_dir
        self._paused = False
        self._sentinel: Sentinel | None = None
        if rank == 0:
            try:
                self._sentinel = Sentinel(run_dir, config, step)
            except Exception:
                log.exception("the sentinel does not start; the run goes on unwatched")

    def masked(self, batch: Sequence[Sample]) -> Collection[int]:
        """Samples to leave out of the loss, by place. A collective."""
        found: list[list[int]] = [[]]
        if self._sentinel is not None:
            try:
                found = [self._sentinel.masked(batch)]
            except Exception:
                log.exception("the sentinel cannot judge this batch; nothing is masked")
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def observe(
        self,
        step: int,
        batch: Sequence[Sample],
        scores: Sequence[Scores],
        metrics: Mapping[str, float],
    ) -> list[Alarm]:
        """The alarms that a trained step opens; the same on every rank. A collective."""
        alarms: list[Alarm] = []
        if self._sentinel is not None:
            try:
                logps = [one.logp for one in scores]
                alarms, told = self._sentinel.observe(step, batch, logps, metrics)
                metrics_log.append(self._run_dir, step, "sentinel", told)
            except Exception:
                log.exception("the sentinel cannot judge step %d", step)
        for alarm in alarms:
            log.warning("sentinel, step %d, %s: %s", alarm.step, alarm.sign, alarm.sentence)
        told_all = [alarms]
        dist.broadcast_object_list(told_all, src=0)
        return told_all[0]

    def paused(self) -> bool:
        """Whether the run is paused, which is logged when it begins. On rank 0 alone."""
        go_on = paused(self._run_dir)
        if go_on and not self._paused:
            log.warning("paused; %s", go_on)
        self._paused = bool(go_on)
        return self._paused

    def waiting(self, step: int, seconds: float) -> list[Alarm]:
        """The alarm that a long wait for the batch after `step` opens. On rank 0 alone."""
        try:
            alarm = self._sentinel.waiting(step, seconds) if self._sentinel is not None else None
        except Exception:
            log.exception("the sentinel cannot judge the wait after step %d", step)
            return []
        if alarm is None:
            return []
        metrics_log.append(self._run_dir, step, "stalled", {"sentinel/alarm/stalled": 1.0})
        log.warning("sentinel, step %d, %s: %s", alarm.step, alarm.sign, alarm.sentence)
        return [alarm]


def wants_checkpoint(alarms: Sequence[Alarm]) -> bool:
    """Whether an alarm asks for a checkpoint now."""
    actions = {SentinelAction[alarm.action] for alarm in alarms}
    return bool(actions & {SentinelAction.checkpoint, SentinelAction.pause, SentinelAction.stop})


def pause(run_dir: Path, alarms: Sequence[Alarm]) -> None:
    """Writes RUN/paused with what pauses the run, unless an alarm stops it. On rank 0 alone.

    Before any checkpoint of the step: a run that goes on from there does not see its alarms again.
    """
    told = [alarm for alarm in alarms if alarm.action == SentinelAction.pause.name]
    if told and not _stopping(alarms):
        lines = "".join(f"{alarm.sign}: {alarm.sentence}\n" for alarm in told)
        atomic_write_bytes(run_dir / PAUSED, lines.encode())


def stop(config: SentinelConfig, alarms: Sequence[Alarm]) -> None:
    """Raises UserError where an alarm stops the run; its checkpoint is written."""
    for alarm in _stopping(alarms):
        own = f"s.{alarm.sign}" if alarm.sign in config.actions else ""
        raise UserError(
            f"The sentinel stopped the run after step {alarm.step} ({alarm.sign}, with "
            f"sentinel.action{own}=stop): {alarm.sentence} Its checkpoint is written; resume the "
            "run to go on all the same."
        )


def _stopping(alarms: Sequence[Alarm]) -> list[Alarm]:
    return [alarm for alarm in alarms if alarm.action == SentinelAction.stop.name]
