"""The samples of a step as a table, and one of them as a transcript."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config.errors import UserError
from ..config.paths import command, resolve
from .run_files import Row, RunFiles
from .stats import or_nan
from .transcript import COLUMNS, Decoder, Transcript, transcribe

_LISTED = ("sample_id", "task_id", "end_reason", "reward", "advantage", "turns", "loss_mask")
_HEADER = ("sample", "task", "end", "reward", "advantage", "turns", "tokens")


def show_samples(
    run_dir: Path, step: int | None, held_out: bool, console: Console | None = None
) -> None:
    """Prints a line a sample of a step, the last by default: a table, or tab-separated lines where
    the output is no terminal. Raises UserError where there is none.
    """
    console, run = console or Console(), _open(run_dir)
    kind, step = _kind(held_out), _step(run, step, held_out)
    rows = [_facts(row) for row in run.rows(kind, step, _LISTED)]
    _warn(run, bool(rows))
    if not console.is_terminal:
        for facts in (_HEADER, *rows):
            print(*facts, sep="\t", file=console.file)
        return
    table = Table(title=f"{run.name}: {kind}, step {step}", box=None, pad_edge=False)
    for index, column in enumerate(_HEADER):
        table.add_column(column, justify="right" if index > 2 else "left", no_wrap=index != 1)
    for facts in rows:
        table.add_row(*map(Text, facts))
    console.print(table)


def show_sample(
    run_dir: Path, sample_id: str, held_out: bool, console: Console | None = None
) -> None:
    """Prints the transcript of one sample. Raises UserError where there is none."""
    console, run = console or Console(), _open(run_dir)
    first = sample_id.split("-")[0]
    if not first.isdigit():
        raise UserError(f"{sample_id} is not a sample, as 000012-3-1: step, group and index.")
    step = _step(run, int(first), held_out)
    row = run.sample(_kind(held_out), step, sample_id, COLUMNS)
    _warn(run, row is not None)
    if row is None:
        flags = ["--eval"] if held_out else []
        raise UserError(
            f"There is no sample {sample_id} in {_kind(held_out)}; those of its step: "
            f"{command('samples', run_dir, '--step', str(step), *flags)}"
        )
    try:
        decoder = Decoder(resolve(run.config.model.path))
    except ValueError as error:
        raise UserError(f"The model's text cannot be shown: {error}.") from error
    _print(transcribe(row, decoder), console)


def _kind(held_out: bool) -> str:
    return "eval" if held_out else "rollouts"


def _step(run: RunFiles, step: int | None, held_out: bool) -> int:
    kind = _kind(held_out)
    steps = run.steps(kind)
    if not steps:
        raise UserError(f"{run.path} has no {kind} yet.")
    if step is None:
        return steps[-1]
    if step not in steps:
        have = ", ".join(map(str, steps)) if held_out else f"{steps[0]} to {steps[-1]}"
        raise UserError(f"{run.path} has no {kind} of step {step}; it has {have}.")
    return step


def _open(run_dir: Path) -> RunFiles:
    run = RunFiles.open(run_dir)
    _warn(run, True)
    return run


def _warn(run: RunFiles, found: bool) -> None:
    """Tells what the run's files lack; that is an error where nothing was found for it."""
    told = "\n".join(run.warnings)
    run.warnings.clear()
    if told and not found:
        raise UserError(told)
    if told:
        print(told, file=sys.stderr)


def _facts(row: Row) -> tuple[str, ...]:
    return (
        row["sample_id"],
        row["task_id"],
        row["end_reason"],
        f"{or_nan(row['reward']):.2f}",
        f"{or_nan(row['advantage']):+.2f}",
        str(len(row["turns"])),
        str(sum(row["loss_mask"])),
    )


def _print(told: Transcript, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    say(
        f"{told.sample_id}  {told.task_id}  {told.end_reason}  reward {told.reward:.2f}  "
        f"advantage {told.advantage:+.2f}  {told.num_generated} of {told.num_tokens} tokens "
        "generated",
        "bold",
    )
    say("\n── prompt", "cyan")
    say(told.prompt)
    for number, turn in enumerate(told.turns, 1):
        say(f"\n── turn {number}: {turn.num_tokens} tokens, finish {turn.finish}", "cyan")
        say(turn.said)
        if turn.command is not None:
            code = "no exit code" if turn.exit_code is None else f"exit code {turn.exit_code}"
            say(f"\n── output: {code}, {turn.seconds:.2f} s", "cyan")
            say(turn.observation)
    if told.error:
        say(f"\nError: {told.error}", "red")
