"""RUN/progress.json: what the driver is doing right now, for the display of a running job."""

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

PROGRESS_FILE = "progress.json"
_PERIOD_S = 1.0


@dataclass
class Progress:
    """The file's keys. Counts are of the phase under way."""

    phase: str = "start"
    """start, wait (for weights), eval, generate or done."""
    step: int = 0
    """Training step the phase belongs to; of an evaluation: steps trained before it."""
    steps: int = 0
    """Training steps of the run."""
    samples_done: int = 0
    """Samples with a verdict."""
    samples_total: int = 0
    """Samples the phase needs, those of dropped groups included as they are dropped."""
    in_flight: int = 0
    """Episodes being played, of whatever phase."""
    groups_waiting: int = 0
    """Finished groups that no batch holds yet (fully_async)."""
    generated_tokens: int = 0
    """Tokens of finished samples, discarded ones included."""
    reward_sum: float = 0.0
    """Sum of the verdicts of the samples done."""
    phase_started: float = 0.0
    """Unix time, seconds."""
    time: float = 0.0
    """Unix time of this record, seconds."""

    def enter(self, phase: str, step: int, samples_total: int = 0) -> None:
        """Starts a phase, its counts at 0."""
        self.phase, self.step, self.samples_total = phase, step, samples_total
        self.samples_done = self.generated_tokens = 0
        self.reward_sum = 0.0
        self.phase_started = time.time()

    def write(self, run_dir: Path) -> None:
        """Writes the file now, whole. A full disk is left to those whose files matter."""
        self.time = time.time()
        temporary = run_dir / f".{PROGRESS_FILE}.tmp"
        # No fsync: nobody reads it after a crash, and the event loop must not wait for a disk.
        with suppress(OSError):
            temporary.write_text(json.dumps(asdict(self)))
            temporary.replace(run_dir / PROGRESS_FILE)

    async def keep_writing(self, run_dir: Path) -> None:
        """Writes the file every second, until cancelled."""
        while True:
            self.write(run_dir)
            await asyncio.sleep(_PERIOD_S)
