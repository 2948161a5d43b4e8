"""Whether a run that was struck came out whole, by its files alone."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from markupsafe import escape

from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.verify import verify_one
from glm52_tbench2.config.schema import Mode

Place = tuple[int, int]
"""Group and index of a sample."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    wrong: str
    """What does not; empty: it holds."""


def checks(run_dir: Path) -> list[Check]:
    """Of a run that has finished; in synchronous mode there is no ledger to look at."""
    run = RunFiles.open(run_dir)
    batches = {
        step: [(row["group"], row["index"]) for row in run.rows("rollouts", step, _PLACE)]
        for step in run.steps("rollouts")
    }
    told: list[str] = []
    code = verify_one(run_dir, told.append)
    found = [
        Check("glm52 verify says that it is whole", "" if code == 0 else "; ".join(told)),
        Check("each step's batch is complete", _incomplete(run, batches)),
        Check("no group is in two batches", _twice(batches)),
        Check("the report names what happened", _untold(run)),
    ]
    if run.config.rollout.mode is Mode.fully_async:
        ledger = _ledger(run_dir)
        pending = list((run_dir / "rollouts" / "pending").iterdir())
        found += [
            Check("each sample started is in a batch, lost or dropped", _lost(ledger, batches)),
            Check("the metrics count what the ledger lost", _miscounted(run, ledger)),
            Check("nothing waits for a batch any more", ", ".join(path.name for path in pending)),
        ]
    return found


def lost(run: RunFiles) -> Counter[str]:
    """Reason -> samples that were played again, as the metrics have it."""
    return _counted(run, "rollout/replaced/")


_PLACE = ("group", "index")


def _ledger(run_dir: Path) -> list[dict]:
    found = []
    for line in (run_dir / "rollouts" / "ledger.jsonl").read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # cut short by a kill
            continue
    return found


def _incomplete(run: RunFiles, batches: dict[int, list[Place]]) -> str:
    rollout = run.config.rollout
    wanted = [rollout.samples_per_prompt] * rollout.prompts_per_step
    wrong = [
        f"step {step}"
        for step in range(1, run.config.steps + 1)
        if sorted(Counter(group for group, _ in set(batches.get(step, []))).values()) != wanted
        or len(set(batches[step])) != len(batches[step])
    ]
    return ", ".join(wrong)


def _twice(batches: dict[int, list[Place]]) -> str:
    count = Counter(group for places in batches.values() for group in {g for g, _ in places})
    return ", ".join(f"group {group}" for group, times in count.items() if times > 1)


def _lost(ledger: list[dict], batches: dict[int, list[Place]]) -> str:
    """Follows every sample from its start to its end."""
    playing: set[Place] = set()
    taken: dict[int, list[int]] = {}
    wrong = []
    for entry in ledger:
        place = (entry.get("group"), entry.get("index"))
        match entry["event"]:
            case "start":
                if place in playing:
                    wrong.append(f"{place} was started twice")
                playing.add(place)
            case "lost" if place not in playing:
                wrong.append(f"{place} was lost and never started")
            case "lost" if entry["reason"] == "driver":
                playing.discard(place)
            case "dropped":
                playing = {other for other in playing if other[0] != entry["group"]}
            case "batch":
                taken[entry["step"]] = entry["groups"]
    trained = {place for places in batches.values() for place in places}
    wrong += [f"{place} is nowhere" for place in sorted(playing - trained)]
    wrong += [f"{place} was never started" for place in sorted(trained - playing)]
    wrong += [
        f"step {step} holds other groups than were taken for it"
        for step, places in batches.items()
        if {group for group, _ in places} != set(taken.get(step, []))
    ]
    return "; ".join(wrong)


def _miscounted(run: RunFiles, ledger: list[dict]) -> str:
    for event, prefix in (("lost", "rollout/replaced/"), ("dropped", "rollout/dropped/")):
        wanted = Counter(entry["reason"] for entry in ledger if entry["event"] == event)
        if (found := _counted(run, prefix)) != wanted:
            return f"{event}: {dict(found)}, not {dict(wanted)}"
    return ""


def _counted(run: RunFiles, prefix: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for metrics in run.metrics.get("driver", {}).values():
        for name, value in metrics.items():
            if name.startswith(prefix) and value:
                found[name.removeprefix(prefix)] += int(value)
    return found


def _untold(run: RunFiles) -> str:
    page = (run.path / "report.html").read_text()
    names = {f"replaced/{reason}" for reason in lost(run)}
    log = (run.path / "logs" / "supervisor.log").read_text().splitlines()
    names |= {line[20:] for line in log if "restarted," in line or "starts again" in line}
    return "; ".join(sorted(name for name in names if str(escape(name)) not in page))
