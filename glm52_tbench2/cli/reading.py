"""Verbs that look at runs, and stop them."""

import argparse
import sys
from pathlib import Path

from ..config.errors import UserError


def jobs(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 jobs", description="List the Slurm jobs of the runs in a folder."
    )
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="(runs)")
    parser.add_argument("--all", action="store_true", help="jobs that have ended, too")
    options = parser.parse_args(arguments)
    from ..launch.slurm import watch

    return watch.jobs(options.runs_dir, options.all)


def logs(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 logs", description="Print the end of a run's log, or of a role's."
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("role", nargs="?", help="as driver or trainer-0; left out: the run itself")
    parser.add_argument("--follow", action="store_true", help="until the run is finished")
    options = parser.parse_args(arguments)
    from ..launch.slurm import watch

    return watch.logs(options.run, options.role, options.follow)


def stop(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 stop", description="Stop a run, here or under Slurm; glm52 resume goes on with it."
    )
    parser.add_argument("run", type=Path, help="run folder")
    options = parser.parse_args(arguments)
    from ..launch.slurm import watch

    return watch.stop(options.run)


def report(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 report", description="Write RUN/report.html again, also of a run that goes on."
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--beside", type=Path, metavar="OTHER", help="show this run beside it")
    parser.add_argument(
        "--step",
        type=_steps,
        metavar="A:B",
        help="steps whose conversations come first, where the page cannot take all",
    )
    options = parser.parse_args(arguments)
    from ..analysis.report import write_report

    print(write_report(options.run, options.beside, options.step))
    return 0


def _steps(text: str) -> range:
    """12, 5:20 with both ends, 5: or :20."""
    first, colon, last = text.partition(":")
    if any(part and not part.isdecimal() for part in (first, last)) or not (first or last):
        raise UserError(f"--step {text} names no steps; write 12, 5:20, 5: or :20.")
    found = range(int(first or 0), int(last) + 1 if last else sys.maxsize)
    if not found:
        raise UserError(f"--step {text} names no steps; write the smaller one first.")
    return found if colon else range(found.start, found.start + 1)


def samples(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 samples",
        description="The samples of a step, or the transcript of one: what the model read, wrote "
        "and got back.",
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("sample", nargs="?", help="one sample, as 000012-3-1")
    parser.add_argument("--step", type=int, help="the step listed (the last)")
    parser.add_argument("--eval", action="store_true", help="of the held-out tasks")
    options = parser.parse_args(arguments)
    from ..analysis.samples import show_sample, show_samples

    if options.sample is None:
        show_samples(options.run, options.step, options.eval)
    else:
        show_sample(options.run, options.sample, options.eval)
    return 0


def forensics(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 forensics",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Is a run healthy; if not, since when, in which tasks, turns and tokens, by\n"
        "what mechanism, and what would test that.",
        epilog="exit code: 0 healthy, 1 not healthy or undetermined, 2 bad input\n"
        "docs/forensics.md tells the mechanisms and the keys of --json.",
    )
    parser.add_argument(
        "run", type=Path, help="run folder, also of a run that goes on; or dumps of slime or miles"
    )
    parser.add_argument(
        "--step", type=_steps, metavar="A:B", help="these steps alone: 12, 5:20, 5: or :20"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    from ..analysis.forensics.verb import run

    return run(options.run, options.step, as_text=not options.json)


def influence(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 influence",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Take a step's update apart by task, sign of the advantage and nearness to\n"
        "the per-turn cap: each part's share in what it did to the log-probs of what\n"
        "the next step generated. Trains the steps since the last checkpoint once more.",
        epilog="Written to RUN/influence/, where glm52 forensics finds it; docs/forensics.md\n"
        "tells the columns. Needs a run in float32 with one update a step.",
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the step")
    options = parser.parse_args(arguments)
    from ..trainer.influence.main import influence as take_apart

    take_apart(options.run, options.step)
    return 0


def diff(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 diff",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="What differs between sides, and what that allows to conclude.",
        epilog="A side is a run folder, an experiment (job1794), reference, or overrides in\n"
        'one argument ("experiment=smoke data=mini8"); the first is the base.\n'
        "Exit code: 0 nothing differs in what was run, 1 something does, 2 bad input.\n"
        "docs/diff.md tells the keys of --json.",
    )
    parser.add_argument("sides", nargs="+", metavar="SIDE")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page")
    options = parser.parse_args(arguments)
    from ..analysis.diff.comparison import as_json, compared

    found = compared(options.sides)
    if options.html:
        from ..analysis.diff.page import write_page

        write_page(found, options.html)
    if options.json:
        import json

        print(json.dumps(as_json(found), indent=1))
    else:
        from ..analysis.diff.terminal import show

        show(found)
    return 0 if found.equal else 1
