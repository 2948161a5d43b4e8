"""`glm52 verify`: whether a run's files are whole, and whether two runs are one, to the bit."""

from collections.abc import Callable
from pathlib import Path

from ...config.errors import UserError
from ...config.identity import IDENTITY_FILE, load_identity
from ...config.paths import command
from ...config.schema import Device, Mode
from ...config.words import counted
from ..run_files import RunFiles
from .compare import Compared, Difference, compare
from .step_files import Damaged
from .whole import check

_BEFORE = {
    "batch": "in the batch, before the trainer and the weights",
    "batch metrics": "in the metrics of a batch that is the same",
    "trainer": "in the trainer, on a batch that is the same",
    "trainer metrics": "in the trainer's metrics, its log-probs being the same",
    "weights": "in the update, on a batch and log-probs that are the same",
    "evaluation": "in the evaluation of weights that were made the same way",
    "evaluation metrics": "in the metrics of an evaluation that is the same",
}


def verify_one(run_dir: Path, tell: Callable[[str], None] = print) -> int:
    """Tells whether every file of a run is whole: 0, or 1 when one is not.

    Raises UserError when it is no run folder.
    """
    found = check(run_dir)
    tell(f"{found.run.path}: {found.run.state}")
    for name, text in found.counted.items():
        tell(f"  {name:<13} {text}")
    for note in found.notes:
        tell(f"  {'note':<13} {note}")
    for problem in found.problems:
        tell(f"  {'DAMAGED':<13} {problem}")
    tell(_verdict_on_one(len(found.problems)))
    for again in _reruns(found.run):
        tell(f"It was run again; compare the two with: {command('verify', run_dir, again)}")
    return 1 if found.problems else 0


def verify_two(
    run_dir: Path,
    other_dir: Path,
    everything: bool = False,
    tell: Callable[[str], None] = print,
) -> int:
    """Tells where two runs part first: 0 when nowhere, as far as both go, else 1.

    `everything`: all files in which they differ. Raises UserError when one is no run folder, and
    when they have nothing in common to compare.
    """
    one, other = RunFiles.open(run_dir), RunFiles.open(other_dir)
    if one.path == other.path:
        raise UserError(f"{run_dir} and {other_dir} are one folder; name another run.")
    for label, run in (("A", one), ("B", other)):
        last = max(run.steps("rollouts"), default=0)
        tell(f"{label}  {run.path}: {run.state}, {last} of {run.config.steps} steps")
    same = _told_identities(one, other, tell)
    try:
        found = compare(one, other, everything)
    except Damaged as error:
        tell(f"Not comparable: {error}. What is whole in a run is told by: glm52 verify RUN")
        return 1
    if not (found.steps or found.evaluations):
        raise UserError(
            f"{run_dir} and {other_dir} have no step in common yet; let them run further."
        )
    if not found.differences:
        if one.state == other.state == "finished" and one.config.steps != other.config.steps:
            tell("One has steps that the other has not.")
            return 1
        tell(_identical(found, one, other))
        return 0
    _told_differences(found, everything, tell)
    for reason in _reasons(one, other, same):
        tell(reason)
    return 1


def _reruns(run: RunFiles) -> list[Path]:
    """Folders beside it that say they are a rerun of it."""
    found = []
    for path in sorted(run.path.parent.glob(f"*/{IDENTITY_FILE}")):
        try:
            made = load_identity(path.parent)[0].made
        except UserError:
            continue
        if made is not None and (made.origin or {}).get("rerun_of") == run.name:
            found.append(path.parent)
    return found


def _verdict_on_one(problems: int) -> str:
    if not problems:
        return "Every file is whole."
    return f"Not whole: {counted(problems, 'problem')}."


def _told_identities(one: RunFiles, other: RunFiles, tell: Callable[[str], None]) -> bool:
    """Whether the runs have one identity; tells what differs."""
    mine, theirs = load_identity(one.path)[0], load_identity(other.path)[0]
    differences = mine.differences(theirs)
    if not differences:
        tell(f"One identity, {mine.hash}.")
    else:
        tell(f"Two identities, {mine.hash} and {theirs.hash}:")
    for line in differences:
        tell(f"  {line}")
    if mine.made and theirs.made and mine.made.machine != theirs.made.machine:
        ours, others = (
            ", ".join(f"{name} {value}" for name, value in made.machine.items())
            for made in (mine.made, theirs.made)
        )
        tell(f"Made on two machines: {ours} | {others}")
    return not differences


def _identical(found: Compared, one: RunFiles, other: RunFiles) -> str:
    parts = [
        f"{found.steps} batches ({found.samples:,} samples, {found.tokens:,} generated tokens)",
        "the trainer's log-probs",
        f"{found.evaluations} evaluations",
        "all metrics but those of time and load",
    ]
    if found.checkpoints:
        steps = ", ".join(map(str, found.checkpoints))
        parts.append(f"weights and optimizer state after step {steps}")
    whole = one.state == other.state == "finished"
    extent = "" if whole else f" as far as both go, which is step {found.steps}"
    return f"Bit-identical{extent}: {', '.join(parts)}."


def _told_differences(found: Compared, everything: bool, tell: Callable[[str], None]) -> None:
    first = found.differences[0]
    tell(f"They part at step {first.step}, {_BEFORE[first.kind]}:")
    for difference in found.differences:
        tell(f"  {difference.text}")
    _told_distance(found.differences, tell)
    if not everything:
        tell("Every file that differs: --all")


def _told_distance(differences: list[Difference], tell: Callable[[str], None]) -> None:
    measured = [(d.distance, d) for d in differences if d.distance is not None]
    if not measured:
        return
    distance, difference = measured[0]
    tell(f"Step {difference.step}, {difference.kind}: {distance}")
    farthest, difference = max(measured, key=lambda pair: pair[0].logprob)
    if farthest is not distance:
        tell(f"Farthest at step {difference.step}, {difference.kind}: {farthest}")


def _reasons(one: RunFiles, other: RunFiles, same_identity: bool) -> list[str]:
    """Why the runs need not be identical to the bit; what it means when they should be."""
    configs = (one.config, other.config)
    found = []
    if any(config.rollout.mode is not Mode.sync for config in configs):
        found.append("rollout.mode=fully_async: which weights make which token depends on timing")
    for knob in ("parallel", "engine"):
        if any(getattr(config, knob).device is not Device.cpu for config in configs):
            found.append(f"{knob}.device=cuda: kernels add in an order that varies")
    if found:
        return [f"Such runs cannot be bit-identical ({'; '.join(found)})."]
    if same_identity:
        return [
            "One identity in rollout.mode=sync on one machine's CPU must be bit-identical: a "
            "fault, unless a time limit ended a command or a sample, or one was lost twice."
        ]
    return ["Two identities need not give the same."]
