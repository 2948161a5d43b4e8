"""The driver role: ``python -m glm52_tbench2.rollout.driver --run RUN``.

Turns weight versions into step files, ahead of the trainer, and evaluates. All that it knows lies
in the run folder, so one that is killed and started again goes on where files end.
"""

import argparse
import asyncio
import errno
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..config import load_run_config, metrics_log
from ..config.errors import UserError
from ..config.identity import load_identity
from ..config.paths import resolve
from ..config.schema import Mode, RunConfig
from ..config.signals import Signals, SignalsLost
from ..tasks.sets import load_set
from .batch import (
    BatchError,
    CorruptBatchError,
    ForeignBatchError,
    Sample,
    batch_path,
    read_batch,
    read_columns,
    read_info,
    write_batch,
)
from .chat import ChatLayout
from .collect import Collector
from .endpoints import POLL_S, Endpoints
from .evaluation import Evaluation
from .external import ExternalEndpoints
from .groups import Judge
from .ledger import Ledger
from .player import Player, RolloutError
from .progress import Progress
from .stats import eval_metrics, rollout_metrics
from .stream import Stream

log = logging.getLogger(__name__)


class Driver:
    """One run's driver.

    In synchronous mode it generates step N with version N - 1 (or rollout.lag versions before it),
    waits, and goes on; in fully asynchronous mode it generates all the time, and a batch is written
    when its groups are there.
    """

    def __init__(
        self,
        run_dir: Path,
        config: RunConfig,
        identity: str,
        endpoints: Endpoints,
        chat: ChatLayout,
    ) -> None:
        self.run_dir, self.config, self.identity = run_dir, config, identity
        self.endpoints = endpoints
        self.progress = Progress(steps=config.steps)
        self.player = Player(config, chat, endpoints, self.progress)
        self.judge = Judge(config, self.player)
        self.collector = Collector(config, self.player, self.judge)
        self.train_tasks = load_set(config.data.train).ids
        self.eval_tasks = load_set(config.data.eval).ids
        self.logged = {source: set(steps) for source, steps in metrics_log.read(run_dir).items()}

    async def run(self) -> None:
        """Until the last evaluation. Raises RolloutError, UserError, OSError or SignalsLost."""
        writing = asyncio.create_task(self.progress.keep_writing(self.run_dir))
        try:
            if self.config.rollout.mode is Mode.sync:
                await self._take_turns()
            else:
                await self._stream()
            await self._evaluate_if_due(self.config.steps)
            self.progress.enter("done", self.config.steps)
        except BaseExceptionGroup as group:  # of one task, which ended the others
            raise group.exceptions[0] from None
        finally:
            writing.cancel()
            self.progress.write(self.run_dir)

    async def _take_turns(self) -> None:
        rollout = self.config.rollout
        for step in range(1, self.config.steps + 1):
            if self._have("rollouts", step):
                continue
            await self._evaluate_if_due(step - 1)
            if not await self._wait_for(step - 1, step):
                log.warning("step %d has no batch and is trained: nothing to do", step)
                continue
            made = self._held(step) or await self._make(step, step - 1)
            for ahead in range(step + 1, 1 + min(step + rollout.lag, self.config.steps)):
                if not self._held(ahead):
                    samples, stats = await self._make(ahead, step - 1)
                    write_batch(self._held_path(ahead), samples, self.identity, ahead, stats)
            # Last: with its file the weights may change, and what is made ahead is of these.
            self._write(step, *made)
            self._held_path(step).unlink(missing_ok=True)

    async def _make(self, step: int, version: int) -> tuple[list[Sample], dict[str, float]]:
        return await self.collector.step(self.train_tasks, step, version)

    def _held(self, step: int) -> tuple[list[Sample], dict[str, float]] | None:
        """The batch of `step` if it is made already, ahead of its turn (rollout.lag)."""
        path = self._held_path(step)
        try:
            return read_batch(path, self.identity, step), read_info(path).stats
        except (FileNotFoundError, CorruptBatchError):
            return None

    def _held_path(self, step: int) -> Path:
        return batch_path(self.run_dir, "rollouts/held", step)

    async def _stream(self) -> None:
        there = [step for step in range(1, self.config.steps + 1) if self._have("rollouts", step)]
        missing = [step for step in range(1, self.config.steps + 1) if step not in there]
        batches = {step: self._groups(step) for step in there}
        if missing:
            self.progress.enter("wait", missing[0])
            version = await self._served(0)
            for step in [step for step in missing if step <= version]:
                log.warning("step %d has no batch and is trained: nothing to do", step)
                missing.remove(step)
        if not missing:
            Ledger(self.run_dir, self.identity).left(batches)  # of one killed just before its end
            return
        stream = Stream(
            self.run_dir,
            self.config,
            self.identity,
            self.train_tasks,
            self.player,
            self.judge,
            self.endpoints,
        )
        stream.open(missing, batches, version)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(stream.run(tasks.create_task))
            for step in missing:
                # Its batch is held back meanwhile, so that the weights stay what is measured.
                await self._evaluate_if_due(step - 1)
                samples, stats = await stream.take()
                await asyncio.to_thread(self._write, step, samples, stats)
                # Removing files that were just synced takes milliseconds each.
                await asyncio.to_thread(stream.written, samples)
            running.cancel()

    def _groups(self, step: int) -> set[int]:
        """Numbers of the groups that the batch of `step` holds."""
        path = batch_path(self.run_dir, "rollouts", step)
        return set(map(int, read_columns(path, ["group"])["group"]))

    def _write(self, step: int, samples: Sequence[Sample], stats: dict[str, float]) -> None:
        path = batch_path(self.run_dir, "rollouts", step)
        write_batch(path, samples, self.identity, step, stats)
        self._log_metrics("rollouts", step, samples, stats)

    async def _evaluate_if_due(self, step: int) -> None:
        """Evaluates the weights after `step` steps, where that is due and no file has it."""
        every = self.config.eval.every
        due = every > 0 and (step % every == 0 or step == self.config.steps)
        if not due or self._have("eval", step):
            return
        if not await self._wait_for(step, step):
            log.warning("evaluation after step %d is missing and its weights are gone", step)
            return
        path = batch_path(self.run_dir, "eval", step)
        evaluation = Evaluation(self.run_dir, self.config, self.identity, self.eval_tasks, step)
        samples, stats = await evaluation.run(self.collector)
        write_batch(path, samples, self.identity, step, stats)
        evaluation.written()
        self._log_metrics("eval", step, samples, stats)

    async def _wait_for(self, version: int, step: int) -> bool:
        """Whether the engines came to serve `version`; False: they are past it."""
        self.progress.enter("wait", step)
        return await self._served(version) == version

    async def _served(self, least: int) -> int:
        """The version that engines serve, once it is at least that."""
        while (served := await self.endpoints.weights()) is None or served < least:
            await asyncio.sleep(POLL_S)
        return served

    def _have(self, kind: str, step: int) -> bool:
        """Whether the file of `step` is there and good; a damaged one is moved aside."""
        path = batch_path(self.run_dir, kind, step)
        try:
            samples = read_batch(path, self.identity, step)
        except FileNotFoundError:
            return False
        except CorruptBatchError as error:
            aside = path.with_name(f"{path.name}.corrupt")
            with suppress(FileNotFoundError):  # the trainer, who reads it too, was first
                path.replace(aside)
            log.warning("%s; moved to %s and made again", error, aside.name)
            return False
        except ForeignBatchError as error:
            raise UserError(f"{error}; move it away or start a new run.") from error
        source = _SOURCES[kind]
        if step not in self.logged.get(source, ()):
            self._log_metrics(kind, step, samples, read_info(path).stats)
        return True

    def _log_metrics(
        self, kind: str, step: int, samples: Sequence[Sample], stats: dict[str, float]
    ) -> None:
        if kind == "eval":
            metrics = eval_metrics(samples, stats)
        else:
            cap = self.config.rollout.max_turn_tokens
            metrics = rollout_metrics(samples, stats, step - 1, cap)
        metrics_log.append(self.run_dir, step, _SOURCES[kind], metrics)
        prefix = "eval" if kind == "eval" else "rollout"
        log.info(
            "%s %d: reward %.3f, truncated %.2f, %.1f turns, %.0f tokens, %.1f s",
            prefix,
            step,
            metrics[f"{prefix}/reward_mean"],
            metrics[f"{prefix}/truncated_share"],
            metrics[f"{prefix}/turns_mean"],
            metrics[f"{prefix}/generated_tokens"],
            stats["wall_s"],
        )


_SOURCES = {"rollouts": "driver", "eval": "eval"}


async def drive(run_dir: Path) -> None:
    """Runs the driver of `run_dir` under its supervisor's signals."""
    config = load_run_config(run_dir)
    identity = load_identity(run_dir)[0].hash
    signals = Signals.from_env()
    chat = ChatLayout.load(resolve(config.model.path))
    external = config.engine.url is not None
    endpoints = ExternalEndpoints(config, signals, chat) if external else Endpoints(config, signals)
    driver = Driver(run_dir, config, identity, endpoints, chat)
    # OpenEnv takes seconds to import: now, while the engines load, not in the first episode.
    importlib.import_module("glm52_tbench2.envs.wire")
    signals.publish("driver/ready", "1")
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, task.cancel)
    try:
        await driver.run()
    finally:
        await endpoints.close()


def main() -> int:
    """Exit code: 0 finished, 2 bad input, 1 a failure told in one sentence, 143 stopped."""
    parser = argparse.ArgumentParser(prog="python -m glm52_tbench2.rollout.driver")
    parser.add_argument("--run", type=Path, required=True, help="run folder")
    run_dir = parser.parse_args().run
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(drive(run_dir))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except (RolloutError, SignalsLost, BatchError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(
            f"The disk of {run_dir} is full: nothing was half-written. Free some space, then "
            "resume the run.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking torch and OpenEnv apart takes seconds, and everything is on disk.
    os._exit(code)
