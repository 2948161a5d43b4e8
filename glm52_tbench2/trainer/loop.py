"""The trainer's loop: weights to the engines, a batch from the driver, a step, and again.

Files are the queue: the loop trains rollouts/step_N in order, whether the driver has just written
it or a run before the last kill has. What it needs to go on after a kill is in the run folder.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import pyarrow as pa
import pyarrow.parquet as pq
import torch.distributed as dist

from glm52_tbench2.analysis.sentinel.files import Alarm
from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import atomic_path
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.config.signals import Signals
from glm52_tbench2.engines.client import EngineError
from glm52_tbench2.engines.weights import forget_after, weights_dir
from glm52_tbench2.engines.weights.sender import serving
from glm52_tbench2.engines.weights.transports import make_sender
from glm52_tbench2.rollout.batch import (
    SCHEMA_VERSION,
    CorruptBatchError,
    ForeignBatchError,
    Sample,
    batch_path,
    read_batch,
)

from . import checkpoint, ranks
from .checkpoint_files import disk_full
from .convert import export_hf
from .hf import check_hf_config
from .microbatch import Scores
from .model import build_model, wrap
from .optimizer import build_optimizer
from .saver import Saver
from .step import TrainStep
from .watch import Watch, pause, stop, wants_checkpoint

_POLL_S = 0.05
# Other ranks wait inside a collective, which must not time out during a long rollout.
_REPORT_S = 60.0
_RETRY_S = 2.0
_LOOK_S = 1.0

log = logging.getLogger(__name__)


class BatchDamaged(Exception):
    """A step file cannot be read and was moved aside.

    The driver may be past it and would not look again: only a restart of the job makes it anew.
    """


@dataclass
class _Seen:
    """What rank 0 sees while the next batch is waited for."""

    batch: bool = False
    """It is there, and the run is not paused."""
    gone: bool = False
    """It was there at start-up, and is not any more."""
    checkpoint_wanted: bool = False
    """The job is about to end."""
    save_failed: bool = False
    """A checkpoint could not be written."""
    engine_without: bool = False
    """An engine needs the weights."""
    alarms: list[Alarm] = field(default_factory=list)


class TrainingLoop:
    """One rank of a run's trainer, from start-up to the last step."""

    def __init__(self, run_dir: Path, run: RunConfig, rank: int, world_size: int) -> None:
        """Builds the model and fills it from the newest checkpoint, else from run.model.path.

        Raises UserError, SignalsLost.
        """
        started = perf_counter()
        self.run_dir, self.config, self.rank = run_dir, run, rank
        self.identity = load_identity(run_dir)[0].hash
        self.signals = Signals.from_env()
        store = dist.PrefixStore("trainer", Signals.at(self.signals.address).store)
        ranks.connect(run, store, rank, world_size)
        self.start_weights = resolve(run.model.path)
        check_hf_config(run.model, self.start_weights)
        self.model = build_model(run)
        wrapped = wrap(self.model)
        optimizer = build_optimizer(run, wrapped)
        begun = checkpoint.start(run_dir, run, self.model, optimizer)
        self.train_step = TrainStep(run, wrapped, optimizer)
        self.saver = Saver(run_dir, run.checkpoint, self.model, optimizer)
        self.sender = None if rank else make_sender(run, run_dir, self.signals)
        self.step = self.saved = begun
        """Steps trained, which is the version of the weights."""
        self.watch = Watch(run_dir, run, rank, self.step)
        self.recorded = self._recorded()
        """The last of the batches that follow and were there at start-up."""
        log.info("ready at step %d after %.1f s", self.step, perf_counter() - started)

    def run(self) -> None:
        """Until the last step is trained.

        Raises UserError, BatchDamaged, SignalsLost, EngineError, TimeoutError.
        """
        try:
            if self.rank == 0:
                self.signals.publish("trainer/ready", "1")
            self._push()
            while self.step < self.config.steps:
                self._train_next()
            self.saver.wait()
            if self.rank == 0:
                self.signals.publish("done", "1")
            ranks.disconnect()
        except OSError as error:
            if not disk_full(error):
                raise
            raise UserError(
                f"The disk of {self.run_dir} or of engine.weights_dir is full at step "
                f"{self.step}; nothing was half-written. Free some space, then resume the run."
            ) from error

    def _train_next(self) -> None:
        """Waits for the next batch, trains it, and hands the new weights out."""
        step, started = self.step + 1, perf_counter()
        batch = self._next_batch(step)
        waited = perf_counter() - started
        ranks.seed(self.config.seed, step)
        result = self.train_step(batch, step, self.watch.masked(batch))
        self.step = step
        self._write_scores(batch, result.scores)
        pushed = self._push()
        metrics = {
            **result.metrics,
            "time/train_wait": waited,
            **pushed,
            "time/train_step": perf_counter() - started,
        }
        if self.rank == 0:
            log.info(
                "step %d: loss %.4f, gradient %.3f, %d micro-batches; waited %.1f s, computed "
                "%.1f s, pushed %.1f s",
                step,
                metrics["trainer/loss"],
                metrics["trainer/grad_norm"],
                metrics["trainer/micro_batches"],
                waited,
                metrics["time/train_compute"],
                pushed.get("time/train_push", 0.0),
            )
        # Before the checkpoint: a run that goes on from there would not come back for them.
        self._log_metrics("trainer", metrics)
        alarms = self.watch.observe(step, batch, result.scores, metrics)
        due = step % self.config.checkpoint.every == 0 or step == self.config.steps
        self._heed(alarms, due)

    def _save(self) -> None:
        """Starts to write the checkpoint of the last step trained, unless that is begun."""
        if self.saved != self.step:
            saving = perf_counter()
            self.saver.save(self.step)
            self.saved = self.step
            self._log_metrics("checkpoint", {"time/train_checkpoint": perf_counter() - saving})

    def _heed(self, alarms: list[Alarm], checkpoint_due: bool = False) -> None:
        """Does what alarms ask for, and writes the checkpoint. Raises UserError to stop."""
        if self.rank == 0:
            pause(self.run_dir, alarms)
        if checkpoint_due or wants_checkpoint(alarms):
            self._save()
        if wants_checkpoint(alarms):
            self.saver.wait()
        stop(self.config.sentinel, alarms)

    # --- batches -------------------------------------------------------------------------------

    def _recorded(self) -> int:
        step = self.step
        while batch_path(self.run_dir, "rollouts", step + 1).exists():
            step += 1
        found = [step]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def _next_batch(self, step: int) -> list[Sample]:
        path, started = batch_path(self.run_dir, "rollouts", step), perf_counter()
        seen = [_Seen()]
        while not seen[0].batch:
            if self.rank == 0:
                seen = [self._look_for(path, started)]
            dist.broadcast_object_list(seen, src=0)
            now = seen[0]
            if now.gone:
                # The driver has found it damaged, and makes it anew of these weights.
                self.recorded = self.step
                self._push()
            if now.save_failed:
                self.saver.wait()
            if now.checkpoint_wanted:
                self._save()
                self.saver.wait()
                if self.rank == 0:
                    self.signals.publish("checkpoint/saved", str(self.step))
            self._heed(now.alarms)
            if now.engine_without:
                pauses = self._update_engines(self._engines_behind, self._engines_behind)
                log.warning("version %d once more for an engine: paused %s s", self.step, pauses)
        while not _appears(path, _REPORT_S):
            log.info("%s is there on rank 0 and not here yet", path)
        try:
            return read_batch(path, self.identity, step)
        except (CorruptBatchError, FileNotFoundError) as error:  # another reader may be first
            aside = path.with_name(f"{path.name}.corrupt")
            with suppress(FileNotFoundError):
                path.replace(aside)
            self.saver.wait()  # the restart goes on from there
            raise BatchDamaged(f"{error}; moved to {aside.name}, to be made again.") from error
        except ForeignBatchError as error:
            raise UserError(f"{error}; move it away or start a new run.") from error

    def _look_for(self, path: Path, started: float) -> "_Seen":
        until, answered = time.monotonic() + _REPORT_S, self.signals.get("checkpoint/saved")
        look = time.monotonic() + _LOOK_S
        while True:
            there, paused = path.exists(), self.watch.paused()
            wanted = self.signals.get("checkpoint/wanted") is not None
            seen = _Seen(
                batch=there and not paused,
                gone=not there and self.step < self.recorded,
                checkpoint_wanted=wanted and not answered,
                save_failed=self.saver.failed,
            )
            if time.monotonic() > look:
                seen.engine_without = bool(self._engines_behind())
                if not (there or paused):
                    seen.alarms = self.watch.waiting(self.step, perf_counter() - started)
                look = time.monotonic() + _LOOK_S
            if any(vars(seen).values()) or time.monotonic() > until:
                return seen
            time.sleep(_POLL_S)

    # --- results -------------------------------------------------------------------------------

    def _write_scores(self, batch: list[Sample], scores: list[Scores]) -> None:
        if self.rank != 0:
            return
        table = pa.table(
            {
                "sample_id": pa.array([s.sample_id for s in batch], pa.string()),
                "trainer_logprobs": pa.array([s.logp for s in scores], pa.list_(pa.float32())),
                "entropy": pa.array([s.entropy for s in scores], pa.list_(pa.float32())),
            }
        ).replace_schema_metadata(
            {
                "schema_version": SCHEMA_VERSION,
                "identity": self.identity,
                "step": str(self.step),
            }
        )
        with atomic_path(batch_path(self.run_dir, "train", self.step)) as temporary:
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)

    def _log_metrics(self, source: str, metrics: dict[str, float]) -> None:
        if self.rank == 0:
            metrics_log.append(self.run_dir, self.step, source, metrics)

    # --- weights -------------------------------------------------------------------------------

    def _push(self) -> dict[str, float]:
        """Makes every engine serve the weights and says so; metrics of what it took.

        Not while batches of a run before the last kill are trained again: no engine needs the
        versions in between, and one that serves a later version must not be taken back.
        """
        if self.step < self.recorded:
            return {}
        started = perf_counter()
        pauses = self._update_engines(self._all_engines, self._engines_without)
        if self.rank == 0:
            self.signals.publish("weights/version", str(self.step))
        found = {"time/train_push": perf_counter() - started}
        return found | ({"time/engine_pause_max": max(pauses)} if pauses else {})

    def _update_engines(
        self, first: Callable[[], list[str]], then: Callable[[], list[str]]
    ) -> list[float]:
        """Gives the weights to the engines in `first`, then to those in `then` until it has none.

        Returns how long engines did not generate, seconds; nothing on other ranks than 0.
        """
        pauses: list[float] = []
        until = time.monotonic() + self.config.cluster.deadlines.engine
        choose = first
        while True:
            urls: list[list[str]] = [[]]
            if self.rank == 0:
                urls[0] = choose()
                # Now that they are ready, none is loading what is removed here.
                forget_after(weights_dir(self.config, self.run_dir), self.step)
            dist.broadcast_object_list(urls, src=0)
            if not urls[0]:
                return pauses
            tensors = export_hf(self.model, self.start_weights)
            failed = None
            if self.sender is not None:
                try:
                    pauses += self.sender.push(urls[0], tensors, self.step)
                except EngineError as error:
                    failed = error
            for _ in tensors:  # all ranks take part to the end
                pass
            if failed is not None:
                if time.monotonic() > until:
                    raise failed
                log.warning("%s; trying again", failed)
                time.sleep(_RETRY_S)
            choose = then

    def _all_engines(self) -> list[str]:
        """Every engine, once it is ready."""
        deadline_s = self.config.cluster.deadlines.engine
        return [
            self.signals.wait(f"engine/{number}", deadline_s)
            for number in range(self.config.engine.num_engines)
        ]

    def _engines_without(self) -> list[str]:
        """Engines that do not serve the weights or do not answer, once every engine is ready."""
        urls = self._all_engines()
        served = serving(urls)
        return [url for url in urls if served.get(url) != self.step]

    def _engines_behind(self) -> list[str]:
        """Engines that answer now and serve other weights; one that is down is not waited for."""
        if self.step < self.recorded:
            return []
        found = (self.signals.get(f"engine/{n}") for n in range(self.config.engine.num_engines))
        served = serving(list(filter(None, found)))
        return [url for url, version in served.items() if version != self.step]


def _appears(path: Path, timeout_s: float) -> bool:
    until = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True
