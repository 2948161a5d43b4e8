"""Verbs that start runs, or go on with them."""

import argparse
import os
import re
import sys
from pathlib import Path

from ..config.errors import UserError


def train(arguments: list[str]) -> int:
    from ..config.compose import compose

    if "--dry-run" in arguments:
        shown = [argument for argument in arguments if argument != "--dry-run"]
        if {"-m", "--multirun"} & set(arguments):
            return _hydra([*shown, "hydra.launcher.dry_run=true"])
        if flags := [argument for argument in shown if argument.startswith("-")]:
            raise UserError(f"--dry-run goes with overrides and -m only, not with {flags[0]}.")
        from ..launch import dry_run

        print(dry_run.run(compose(shown)), end="")
        return 0
    if any(argument.startswith("-") for argument in arguments):
        return _hydra(arguments)
    from ..launch.train import train as start

    return start(compose(arguments))


def _hydra(arguments: list[str]) -> int:
    """Hydra's own command line: --multirun, --cfg, --info, --help, --shell-completion."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    from hydra_plugins import glm52_tbench2 as multirun

    from ..config.compose import checked, explain, register_schema
    from ..config.paths import CONF

    codes: list[int] = []
    multirun.SweepLauncher.codes.clear()

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def run(composed: DictConfig) -> None:
        from ..launch.train import train as start

        codes.append(start(checked(composed)))

    register_schema()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting
    if "COMP_LINE" in os.environ:  # Hydra completes overrides; the verb is ours
        os.environ["COMP_LINE"] = os.environ["COMP_LINE"].replace(" train ", " ", 1)
    # Hydra takes overrides on one side of its flags alone.
    several = [argument for argument in arguments if argument in ("-m", "--multirun")]
    sys.argv = [sys.argv[0], *several, *(one for one in arguments if one not in several)]
    try:
        run()
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error)) from error
    except ValueError as error:
        # Of flags that exclude each other, and of a group that is given no name.
        if not re.search("can be specified|Config group override must be", str(error)):
            raise
        raise UserError(explain(error)) from error
    # Hydra has loaded its plugins again by now: the class is asked for here, not before.
    return max([*codes, *multirun.SweepLauncher.codes], default=0)


def plan(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 plan",
        description="What a run needs: parameters, memory of every rank, disk, KV tokens, the "
        "least time of a step and of a weight update; and all that does not fit.",
        epilog="Figures of the machines are knobs: glm52 knobs cluster.hardware. Exit code: 0 it "
        "fits, 2 it does not, or bad input. docs/plan.md tells the keys of --json.",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KNOB=VALUE",
        help="as of glm52 train: parallel.nodes=4 optim.state_on_disk=false",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--search",
        action="store_true",
        help="list the layouts that fit parallel.nodes, best first, and why the others do not",
    )
    options = parser.parse_intermixed_args(arguments)
    from ..launch.plan.verb import run

    return run(options.overrides, as_text=not options.json, searching=options.search)


def evaluate(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 eval",
        description="Play eval.samples_per_task samples of each task of data.eval and print reward "
        "and pass@k with their intervals. glm52 resume goes on with one that was stopped.",
        epilog="Keys of engine.url are read from GLM52_ENDPOINT_KEY or, with engine.api=openai, "
        "OPENAI_API_KEY.",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KNOB=VALUE",
        help="as of glm52 train: experiment=smoke model.path=DIR, engine=external engine.url=URL",
    )
    parser.add_argument(
        "--run", type=Path, help="evaluate the newest weights of this run, by its config"
    )
    options = parser.parse_intermixed_args(arguments)
    from ..launch.evaluate import planned
    from ..launch.train import evaluated

    return evaluated(*planned(options.overrides, options.run))


def resume(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 resume",
        description="Go on with a run from its last complete checkpoint, with the batches that "
        "were already made.",
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument(
        "--allow", action="store_true", help="go on although the identity differs, and record it"
    )
    options = parser.parse_args(arguments)
    from ..launch.train import resume as go_on

    return go_on(options.run, allow=options.allow)


def rerun(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 rerun",
        description="Run the same once more, in a new folder beside it; glm52 verify RUN OTHER "
        "then compares the two.",
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument(
        "--allow",
        action="store_true",
        help="run although code, tasks, weights or packages differ now, and record it",
    )
    options = parser.parse_args(arguments)
    from ..launch.rerun import rerun as run_again

    return run_again(options.run, allow=options.allow)


def verify(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 verify",
        description="Are the files of a run whole; is another run the same, to the bit?",
        epilog="exit code: 0 whole or identical, 1 damaged or different, 2 bad input",
    )
    parser.add_argument("run", type=Path, help="run folder: is every file whole?")
    parser.add_argument(
        "other", type=Path, nargs="?", help="another run: where do the two part first?"
    )
    parser.add_argument("--all", action="store_true", help="name every file that differs")
    options = parser.parse_args(arguments)
    from ..analysis.verify import verify_one, verify_two

    if options.other is None:
        return verify_one(options.run)
    return verify_two(options.run, options.other, everything=options.all)


def sweep(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 sweep", description="Sweeps are started by glm52 train -m KNOB=VALUE,VALUE."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    missing = "run what is missing, one after another"
    resuming = verbs.add_parser("resume", help=missing, description=f"{missing.capitalize()}.")
    resuming.add_argument(
        "--allow", action="store_true", help="go on although an identity differs, and record it"
    )
    written = "print the table, and write table.csv and sweep.html again"
    table = verbs.add_parser("table", help=written, description=f"{written.capitalize()}.")
    for verb in (resuming, table):
        verb.add_argument("sweep", type=Path, help="sweep folder")
    options = parser.parse_args(arguments)
    from ..launch.sweep import resume, show

    if options.verb == "resume":
        return resume(options.sweep, allow=options.allow)
    show(options.sweep)
    return 0


def study(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 study",
        description="Run what is missing of the settling experiment, one run after another, and "
        "write DIR/study.html after each; given again, it goes on where it stopped.",
    )
    parser.add_argument("study", type=Path, nargs="?", metavar="DIR", help="(runs/study)")
    parser.add_argument("--quick", action="store_true", help="a part of it, in minutes")
    parser.add_argument("--arms", default="", metavar="A,B", help="of these arms alone")
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="take the runs that are recorded with the project for those not made here",
    )
    parser.add_argument("--page", action="store_true", help="run nothing, write the page again")
    parser.add_argument(
        "--allow", action="store_true", help="go on although an identity differs, and record it"
    )
    options = parser.parse_args(arguments)
    folder = options.study or Path("runs/study-quick" if options.quick else "runs/study")
    if options.recorded:
        from ..launch.study import take_recorded

        take_recorded(folder.resolve(), options.quick)
    if options.page:
        from ..analysis.study.page import write_page

        print(write_page(folder))
        return 0
    from ..launch.study import run

    arms = [arm for arm in options.arms.split(",") if arm]
    return run(folder.resolve(), options.quick, arms, options.allow)
