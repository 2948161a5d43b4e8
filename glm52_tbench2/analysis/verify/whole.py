"""Whether every file of one run is whole, and whether they agree with each other."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ...config.compose import leaves
from ...config.errors import UserError
from ...config.identity import Identity, load_identity
from ...config.metrics_log import METRICS_FILE
from ...config.words import counted
from ..run_files import RunFiles
from .step_files import TOKEN_COLUMNS, TRAIN_COLUMNS, Damaged, StepFile

SOURCES = {"rollouts": "driver", "train": "trainer", "eval": "eval"}
"""Kind of step file -> who logs its metrics."""
_COUNTED = {
    "rollouts": "rollout/generated_tokens",
    "train": "trainer/generated_tokens",
    "eval": "eval/generated_tokens",
}
_COLUMNS = ("sample_id", "step", "group", "index", "task_id", "reward", "penalty", "advantage")


@dataclass
class Findings:
    """What was looked at in one run, and what is wrong with it."""

    run: RunFiles
    counted: dict[str, str] = field(default_factory=dict)
    """What was looked at -> how much of it there is, in words."""
    problems: list[str] = field(default_factory=list)
    """Each names the file; empty: everything is whole."""
    notes: list[str] = field(default_factory=list)
    """What a kill leaves behind, which is no damage."""


def check(run_dir: Path) -> Findings:
    """Reads every file of a run. Raises UserError when it is no run folder."""
    found = Findings(RunFiles.open(run_dir))
    identity = _identity(found)
    _batches(found, identity)
    _evaluations(found, identity)
    _metrics(found)
    _checkpoints(found)
    _left_over(found)
    return found


# --- identity ----------------------------------------------------------------------------------


def _identity(found: Findings) -> str | None:
    """The hash that step files must carry; None when it is not known."""
    run = found.run
    try:
        identity, history = load_identity(run.path)
    except UserError as error:
        found.problems.append(str(error))
        return None
    if identity.made is None:
        found.notes.append("identity.json does not record the contents of code and tasks")
    elif identity.expected_hash() != identity.hash:
        found.problems.append(
            f"identity.json says {identity.hash}, but its facts are those of "
            f"{identity.expected_hash()}"
        )
    accepted = {line for entry in history for line in entry.get("differences", [])}
    found.problems += [
        f"config.yaml is not what identity.json records: {line}"
        for line in identity.differences(_with_knobs(identity, run))
        if line not in accepted
    ]
    if history:
        times = "once" if len(history) == 1 else f"{len(history)} times"
        found.notes.append(f"resumed as another run {times}; see identity.json")
    found.counted["identity"] = identity.hash
    return identity.hash


def _with_knobs(identity: Identity, run: RunFiles) -> Identity:
    """The identity, with the knobs of config.yaml in the place of the recorded ones."""
    knobs = {name: getattr(value, "name", value) for name, value in leaves(run.config).items()}
    return replace(identity, config={name: knobs.get(name) for name in identity.config})


# --- step files --------------------------------------------------------------------------------


def _batches(found: Findings, identity: str | None) -> None:
    run = found.run
    rollouts, train = run.steps("rollouts"), run.steps("train")
    finished = run.state == "finished"
    _expect(found, "rollouts", range(1, 1 + (run.config.steps if finished else _last(rollouts))))
    _expect(found, "train", range(1, 1 + (run.config.steps if finished else _last(train))))
    if _last(train) > _last(rollouts):
        found.problems.append(f"train/ has step {_last(train)}, which rollouts/ has not")
    samples = tokens = 0
    for step in range(1, 1 + max(_last(rollouts), _last(train))):
        batch = scored = None
        if step in rollouts:
            batch = _read(found, "rollouts", step, identity, _batch_problem)
        if step in train:
            scored = _read(found, "train", step, identity, _columns_of_train)
        if batch is not None:
            samples, tokens = samples + batch.rows, tokens + _generated(batch)
            expected = run.config.rollout.prompts_per_step * run.config.rollout.samples_per_prompt
            if batch.rows != expected:
                found.problems.append(f"{batch.name} holds {batch.rows} samples, not {expected}")
            _logged(found, "rollouts", step, _generated(batch))
        if scored is not None and batch is not None:
            if problem := _train_problem(scored, batch):
                found.problems.append(f"{scored.name} {problem}")
            _logged(found, "train", step, _generated(batch))
    found.counted["rollouts"] = (
        f"{len(rollouts)} steps, {samples:,} samples, {tokens:,} generated tokens"
    )
    found.counted["train"] = f"{len(train)} steps, sample by sample those of rollouts"


def _evaluations(found: Findings, identity: str | None) -> None:
    run = found.run
    steps = run.steps("eval")
    every, last = run.config.eval.every, run.config.steps
    if every and run.state == "finished":
        _expect(found, "eval", sorted({*range(0, last + 1, every), last}))
    samples = 0
    for step in steps:
        file = _read(found, "eval", step, identity, _batch_problem)
        if file is not None:
            samples += file.rows
            _logged(found, "eval", step, _generated(file))
    found.counted["eval"] = f"{len(steps)} evaluations, {samples:,} samples"


def _expect(found: Findings, kind: str, steps: Iterable[int]) -> None:
    there = set(found.run.steps(kind))
    found.problems += [
        f"{kind}/step_{step:06d}.parquet is missing" for step in steps if step not in there
    ]


def _read(
    found: Findings,
    kind: str,
    step: int,
    identity: str | None,
    problem_of: Callable[[StepFile], str | None],
) -> StepFile | None:
    """The file, or None after its problem was noted."""
    try:
        file = StepFile(found.run.path, kind, step, identity)
        if problem := problem_of(file):
            raise Damaged(f"{file.name} contradicts itself: {problem}")
    except Damaged as error:
        found.problems.append(str(error))
        return None
    return file


def _batch_problem(file: StepFile) -> str | None:
    """What is wrong with the samples of rollouts/ or eval/; None: nothing."""
    file.has(*_COLUMNS, *TOKEN_COLUMNS, "turns", "prompt_tokens")
    if len(set(file.sample_ids)) != file.rows:
        return "a sample is there twice"
    order = list(zip(file.numbers("group"), file.numbers("index"), strict=True))
    if order != sorted(order):
        return "its samples are out of order"
    if np.any(file.numbers("step") != file.step):
        return f"it holds samples of other steps than {file.step}"
    for name in ("reward", "penalty", "advantage"):
        if not np.isfinite(file.numbers(name)).all():
            return f"a {name} is not finite"
    columns = {name: file.lists(name) for name in TOKEN_COLUMNS}
    tokens, mask = columns["tokens"], columns["loss_mask"].values.astype(bool)
    for name, column in columns.items():
        if not np.array_equal(column.offsets, tokens.offsets):
            row = int(np.argmax(np.diff(column.offsets) != np.diff(tokens.offsets)))
            return f"{file.sample(row)} has as many {name} as it should not have"
    lengths = np.diff(tokens.offsets)
    row_of_turn = np.repeat(np.arange(file.rows), np.diff(file.turn_offsets))
    start, end = (file.turns.field(name).to_numpy() for name in ("start", "end"))
    wrong = ~((start >= 0) & (start < end) & (end <= lengths[row_of_turn]))
    if wrong.any():
        return f"a turn of {file.sample(int(row_of_turn[np.argmax(wrong)]))} lies outside it"
    edges = np.zeros(len(tokens.values) + 1, dtype=np.int32)
    np.add.at(edges, tokens.offsets[row_of_turn] + start, 1)
    np.add.at(edges, tokens.offsets[row_of_turn] + end, -1)
    logprobs, versions = columns["rollout_logprobs"].values, columns["weight_versions"].values
    for wrong, what in (
        (mask != (np.cumsum(edges[:-1]) > 0), "the loss mask is not the union of the turns"),
        ((versions >= 0) != mask, "a generated token has no weight version, or another has one"),
        (~np.isfinite(logprobs), "a log-prob is not finite"),
        ((logprobs != 0) & ~mask, "a token that was not generated has a log-prob"),
    ):
        if wrong.any():
            return f"in {file.sample(tokens.row_of(int(np.argmax(wrong))))}, {what}"
    return None


def _columns_of_train(file: StepFile) -> str | None:
    file.has("sample_id", *TRAIN_COLUMNS)
    return None


def _train_problem(scored: StepFile, batch: StepFile) -> str | None:
    """Where a file of train/ is not about the batch; None: nowhere."""
    if scored.sample_ids != batch.sample_ids:
        return f"holds other samples than {batch.name}"
    mask = batch.lists("loss_mask")
    for name in TRAIN_COLUMNS:
        column = scored.lists(name)
        if not np.array_equal(column.offsets, mask.offsets):
            row = int(np.argmax(np.diff(column.offsets) != np.diff(mask.offsets)))
            return (
                f"holds {len(column.row(row))} {name} for the {len(mask.row(row))} tokens of "
                f"{batch.sample(row)}"
            )
        wrong = (column.values != 0) & ~mask.values.astype(bool)
        if wrong.any():
            row = mask.row_of(int(np.argmax(wrong)))
            return f"holds {name} of a token that {batch.sample(row)} did not generate"
    return None


def _generated(file: StepFile) -> int:
    return int(file.lists("loss_mask").values.sum())


def _last(steps: list[int]) -> int:
    return max(steps, default=0)


# --- metrics -----------------------------------------------------------------------------------


def _logged(found: Findings, kind: str, step: int, generated: int) -> None:
    """Notes a step without metrics, or whose metrics count other tokens than its file holds."""
    run, source, name = found.run, SOURCES[kind], _COUNTED[kind]
    metrics = run.metrics.get(source, {}).get(step)
    if metrics is None:
        last = step == _last(run.steps(kind)) and run.state != "finished"
        if not last:  # between the file and its metrics a kill may come
            found.problems.append(f"metrics.jsonl has no record of {source} for step {step}")
    elif metrics.get(name, generated) != generated:
        found.problems.append(
            f"metrics.jsonl has {name} {metrics[name]:.0f} at step {step}, but the file holds "
            f"{generated} generated tokens"
        )


def _metrics(found: Findings) -> None:
    path = found.run.path / METRICS_FILE
    try:
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    except OSError as error:
        found.problems.append(f"metrics.jsonl cannot be read: {error.strerror}")
        return
    cut = sum(not _is_record(line) for line in lines)
    if cut:
        found.notes.append(f"metrics.jsonl holds {counted(cut, 'line')} cut short")
    records = {source: len(steps) for source, steps in found.run.metrics.items()}
    found.counted["metrics"] = ", ".join(
        f"{count} of {source}" for source, count in sorted(records.items())
    )


def _is_record(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


# --- checkpoints -------------------------------------------------------------------------------


def _checkpoints(found: Findings) -> None:
    run = found.run
    folders = sorted((run.path / "checkpoints").glob("step_*"))
    complete = [folder for folder in folders if (folder / "STABLE").exists()]
    for folder in complete:
        if problem := _checkpoint_problem(folder):
            found.problems.append(f"checkpoints/{folder.name} is damaged: {problem}")
    found.notes += [
        f"checkpoints/{folder.name} was not finished"
        for folder in folders
        if folder not in complete
    ]
    steps = [int(folder.name.removeprefix("step_")) for folder in complete]
    if run.state == "finished" and run.config.trains and run.config.steps not in steps:
        found.problems.append(f"checkpoints/step_{run.config.steps:06d} is missing")
    found.counted["checkpoints"] = (
        f"after step {', '.join(map(str, steps))}" if steps else "none complete"
    )


def _checkpoint_problem(folder: Path) -> str | None:
    try:
        stable = json.loads((folder / "STABLE").read_text())
        if f"step_{stable['step']:06d}" != folder.name:
            return f"its STABLE file is that of step {stable['step']}"
        for name, about in stable["files"].items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != about["sha256"]:
                return f"{name} is not what was written"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "its STABLE file is damaged"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _left_over(found: Findings) -> None:
    path = found.run.path
    for name in sorted([*path.glob("*/*.corrupt"), *path.glob("*/.*.tmp"), *path.glob(".*.tmp")]):
        found.notes.append(f"{name.relative_to(path)} is left over, and read by nobody")
