"""What a run has done, in a few lines of text: printed at its end."""

from pathlib import Path

from ..config.paths import command
from ..config.schema import Correction
from .diff.experiments import spell
from .diff.sides import plain_knobs
from .facts import Facts, first_and_last, gather, window
from .report import REPORT_FILE
from .run_files import RunFiles


def summary(run_dir: str | Path) -> str:
    """Reward before and after, where the report lies, and what to try next.

    Reads files only; raises UserError when `run_dir` is not a run folder.
    """
    run = RunFiles.open(run_dir)
    facts = gather(run)
    done = facts.steps[-1] if facts.steps else 0
    lines = [f"{run.name}: {run.state}, step {done} of {run.config.steps}", ""]
    lines += [f"  {name:<16} {text}" for name, text in _results(run, facts)]
    lines += [f"  {'warning':<16} {text}" for text in run.warnings]
    lines += ["", "Try next"]
    lines += [f"  {line}\n      {why}" for line, why in _next(run, Path(run_dir))]
    return "\n".join(lines)


def _results(run: RunFiles, facts: Facts) -> list[tuple[str, str]]:
    found = []
    change = facts.held_out_change
    if change is not None:
        first, last, moved = change
        found += [
            ("held-out before", f"{facts.held_out(first)} (step {first})"),
            ("held-out after", f"{facts.held_out(last)} (step {last})"),
            (
                "change",
                f"{moved.interval:+} over {moved.interval.num_tasks} tasks: {moved.verdict} "
                f"({moved.up} up, {moved.down} down, {moved.same} the same)",
            ),
        ]
    elif facts.evals:
        found.append(("held-out", f"{facts.held_out(min(facts.evals))}, the only evaluation"))
    else:
        found.append(("held-out", "never evaluated"))
    count = window(run, facts)
    for name, points in (("reward", facts.train_reward), ("truncated", facts.truncated)):
        value, detail = first_and_last(points, count)
        found.append((name, f"{value} ({detail})"))
    kl = list(run.series("trainer/train_rollout_kl").items())
    if kl:
        found.append(("train_rollout_kl", f"{kl[-1][1]:.3g} (step {kl[-1][0]})"))
    if (run.path / REPORT_FILE).exists():
        found.append(("report", str(run.path / REPORT_FILE)))
    return found


def _next(run: RunFiles, run_dir: Path) -> list[tuple[str, str]]:
    steps = []
    if run.state == "stopped":
        steps.append((command("resume", run_dir), "goes on from the last step"))
    overrides = spell(plain_knobs(run.config))
    if overrides is None:
        return steps
    config = run.config

    def train(key: str, *more: str) -> str:
        kept = [one for one in overrides if not one.startswith((f"{key}=", f"{key}."))]
        return command("train", *kept, *more)

    seeds = f"seed={config.seed + 1},{config.seed + 2}"
    steps.append((train("seed", "-m", seeds), "two more seeds: one run is not evidence"))
    if config.data.suite == "mini" and config.data.train.endswith("69"):
        eight = "8 tasks in the place of 69, as in the published divergence"
        steps.append((train("data", "data=mini8"), eight))
    another = "another correction; glm52 train --help lists them all"
    other = "icepop" if config.clip.correction is Correction.dppo else "dppo"
    steps.append((train("clip", f"clip={other}"), another))
    return steps
