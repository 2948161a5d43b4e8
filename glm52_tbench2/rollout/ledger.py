"""What fully asynchronous rollout must not forget: RUN/rollouts/ledger.jsonl and pending/.

An evaluation keeps its samples in the same way, see :mod:`.evaluation`.

The ledger tells every sample that was started, lost or dropped and every batch; pending/ holds the
samples that are finished and in no batch yet. A driver that is killed and started again plays only
what was in flight, and knows what that cost.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..config.files import append_line, atomic_write_bytes
from .batch import TOKEN_COLUMNS, Sample, Turn, check_sample
from .outcome import EndReason
from .stats import count_waste, judged_tokens

_FACTS = [one.name for one in fields(Sample) if one.name not in TOKEN_COLUMNS]

log = logging.getLogger(__name__)


@dataclass
class Left:
    """What a driver left."""

    samples: dict[int, list[Sample]] = field(default_factory=dict)
    """Group -> its finished samples, of groups that no batch holds."""
    dropped: set[int] = field(default_factory=set)
    """Groups that no batch takes."""
    stats: Counter[str] = field(default_factory=Counter)
    """What was counted since the last batch."""


class Ledger:
    """The books of one run's driver."""

    def __init__(self, run_dir: Path, identity: str, kind: str = "rollouts", step: int = 0) -> None:
        """`kind`: the folder in `run_dir`; `step`: what samples have until a batch takes them."""
        self._path = run_dir / kind / "ledger.jsonl"
        self._pending = run_dir / kind / "pending"
        self._identity, self._step = identity, step
        self._pending.mkdir(parents=True, exist_ok=True)

    # --- what happens ---------------------------------------------------------------------------

    def started(self, group: int, index: int, task_id: str, version: int) -> None:
        """A sample was started while the engines served `version`."""
        self._note("start", group=group, index=index, task=task_id, version=version)

    def keep(self, sample: Sample) -> None:
        """A sample is finished: it survives whatever happens to the driver."""
        # Tokens as they lie in memory: a row of Arrow or parquet takes several times as long.
        facts = orjson.dumps(
            {name: getattr(sample, name) for name in _FACTS}, option=orjson.OPT_SERIALIZE_NUMPY
        )
        data = save(
            {name: getattr(sample, name) for name in TOKEN_COLUMNS},
            {"identity": self._identity, "facts": facts.decode()},
        )
        name = f"{sample.group:06d}-{sample.index}.safetensors"
        atomic_write_bytes(self._pending / name, data)

    def lost(self, sample: Sample) -> None:
        """A sample got no verdict; it may be tried again."""
        self._note(
            "lost",
            group=sample.group,
            index=sample.index,
            reason=sample.end_reason,
            tokens=sample.num_generated + sample.discarded_tokens,
            error=sample.error,
        )

    def dropped(self, group: Sequence[Sample], cause: str) -> None:
        """No batch takes a group."""
        tokens = judged_tokens(group)
        self._note("dropped", group=group[0].group, reason=cause, tokens=tokens)
        self.forget([group[0].group])

    def batch(self, step: int, groups: Sequence[int]) -> None:
        """The batch of `step` is put together, and counting starts anew; its file is to follow."""
        self._note("batch", step=step, groups=list(groups))

    def forget(self, groups: Sequence[int]) -> None:
        """A file holds these groups, or no batch takes them: what was kept of them may go."""
        for group in groups:
            for path in self._pending.glob(f"{group:06d}-*.safetensors"):
                path.unlink(missing_ok=True)

    # --- what is left ---------------------------------------------------------------------------

    def left(self, batches: Mapping[int, Collection[int]]) -> Left:
        """Takes stock after a driver; what was in flight is noted as lost.

        `batches`: step -> numbers of its groups, of the step files that are there.
        """
        found, started = Left(), set()
        for entry in self._entries():
            place = (entry.get("group"), entry.get("index"))
            match entry["event"]:
                case "start":
                    started.add(place)
                case "lost":
                    found.stats[f"replaced/{entry['reason']}"] += 1
                    count_waste(found.stats, entry["reason"], entry["tokens"])
                    if entry["reason"] == EndReason.driver:
                        started.discard(place)
                case "dropped":
                    found.dropped.add(entry["group"])
                    found.stats[f"dropped/{entry['reason']}"] += 1
                    count_waste(found.stats, entry["reason"], entry["tokens"])
                case "batch" if entry["step"] in batches:
                    found.stats.clear()
        over = found.dropped.union(*batches.values())
        found.samples = self._kept(over)
        kept = {(s.group, s.index) for samples in found.samples.values() for s in samples}
        for group, index in sorted(p for p in started - kept if p[0] not in over):
            self._note("lost", group=group, index=index, reason=EndReason.driver, tokens=0)
            found.stats[f"replaced/{EndReason.driver}"] += 1
        return found

    def _entries(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        for line in self._path.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # cut short by a kill
                continue
            if isinstance(entry, dict) and "event" in entry:
                yield entry

    def _kept(self, over: Collection[int]) -> dict[int, list[Sample]]:
        found: dict[int, list[Sample]] = defaultdict(list)
        for path in sorted(self._pending.glob("*.safetensors")):
            try:
                sample = self._read(path)
            except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
                log.warning("%s is left out, and played again: %s", path, error)
                path.unlink()
                continue
            if sample.group in over:
                path.unlink()
            else:
                found[sample.group].append(sample)
        return dict(found)

    def _read(self, path: Path) -> Sample:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata()
            if about["identity"] != self._identity:
                raise ValueError("it belongs to another run")
            tokens = {name: file.get_tensor(name) for name in TOKEN_COLUMNS}
        facts = orjson.loads(about["facts"])
        facts["turns"] = [Turn(**turn) for turn in facts["turns"]]
        sample = Sample(**facts, **tokens)
        check_sample(sample, self._step)
        return sample

    def _note(self, event: str, **facts: Any) -> None:
        append_line(self._path, json.dumps({"event": event, **facts}))
