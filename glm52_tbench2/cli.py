"""The `glm52` command: one function a verb, each thin.

Imports happen inside the verbs, so that `glm52 --help` answers at once.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from .config.errors import UserError

_USAGE = """\
usage: glm52 VERB [...]

  train [OVERRIDES] [-m]      compose a run and train (experiment=smoke: here,
                              in minutes); -m: a sweep
  train --dry-run [OVERRIDES] the job Slurm would get, and each node's roles;
                              with -m a sweep's points, jobs and problems
  plan [OVERRIDES] [--search] what a layout needs: memory, disk, time, and what
                              does not fit; --search: every layout of its nodes
  eval [OVERRIDES] [--run RUN]
                              reward and pass@k of model.path, of a run's newest
                              weights or, with engine=external, of an endpoint
  resume RUN [--allow]        go on with a run from its last complete checkpoint
  rerun RUN [--allow]         run the same once more, in a new folder beside it
  verify RUN [OTHER]          are its files whole; is OTHER the same, to the bit
  sweep resume DIR [--allow]  run what is missing of a sweep
  sweep table DIR             print a sweep's table, write its pages again
  study [DIR] [--quick] [--arms A,B] [--recorded] [--page]
                              the settling experiment, run by run; its page
  jobs [--all]                Slurm jobs: state, step, reward, last sign of life
  logs RUN [ROLE] [--follow]  what a run, or one of its roles, says
  stop RUN                    stop a run, wherever it runs; it can be resumed
  report RUN [--beside OTHER] write RUN/report.html again
  samples RUN [SAMPLE]        the samples of a step; the transcript of one
  forensics RUN [--step A:B]  is a run healthy; if not, since when, where and
                              why: a run folder, or dumps of slime or miles
  influence RUN --step N      which part of a step's update moved which content
                              of the next
  diff A B [C ...]            what differs between runs, experiments or
                              overrides, and what that allows to conclude
  tasks show SET              a task set: difficulty, category, limits
  tasks check SET [sandbox=X] prove each task: solution 1, nothing 0, wrong 0
  tasks build --set SET --tasks-dir DIR
                              write prompt rows of a set and what it holds out
  weights import FOLDER CHECKPOINT [OVERRIDES]
                              a model's files as a checkpoint for any layout
  weights export CHECKPOINT FOLDER [OVERRIDES] [--fp8]
                              a checkpoint, of a run too, as a model's files
  knobs [WORD] [OVERRIDES]    knobs with their values and meaning
  warm-start --out DIR        rebuild the small model's starting weights

glm52 train --help lists the config groups; glm52 VERB --help says more.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one verb. Exit code: 0 done, 2 bad input, 130 interrupted, else failed."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_USAGE, end="")
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb in ("-sc", "--shell-completion"):
        verb, rest = "train", arguments
    action = _VERBS.get(verb)
    try:
        if action is None:
            near = difflib.get_close_matches(verb, _VERBS, 1)
            meant = f"did you mean {near[0]}? All" if near else "one of"
            raise UserError(f"There is no verb '{verb}'; {meant}: {', '.join(_VERBS)}.")
        return action(rest)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, head say, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _train(arguments: list[str]) -> int:
    from .config.compose import compose

    if "--dry-run" in arguments:
        shown = [argument for argument in arguments if argument != "--dry-run"]
        if {"-m", "--multirun"} & set(arguments):
            return _hydra([*shown, "hydra.launcher.dry_run=true"])
        if flags := [argument for argument in shown if argument.startswith("-")]:
            raise UserError(f"--dry-run goes with overrides and -m only, not with {flags[0]}.")
        from .launch import dry_run

        print(dry_run.run(compose(shown)), end="")
        return 0
    if any(argument.startswith("-") for argument in arguments):
        return _hydra(arguments)
    from .launch.train import train

    return train(compose(arguments))


def _hydra(arguments: list[str]) -> int:
    """Hydra's own command line: --multirun, --cfg, --info, --help, --shell-completion."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    from hydra_plugins import glm52_tbench2 as multirun

    from .config.compose import checked, explain, register_schema
    from .config.paths import CONF

    codes: list[int] = []
    multirun.SweepLauncher.codes.clear()

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def run(composed: DictConfig) -> None:
        from .launch.train import train

        codes.append(train(checked(composed)))

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


def _plan(arguments: list[str]) -> int:
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
    from .launch.plan.verb import run

    return run(options.overrides, as_text=not options.json, searching=options.search)


def _eval(arguments: list[str]) -> int:
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
    from .launch.evaluate import planned
    from .launch.train import evaluated

    return evaluated(*planned(options.overrides, options.run))


def _resume(arguments: list[str]) -> int:
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
    from .launch.train import resume

    return resume(options.run, allow=options.allow)


def _rerun(arguments: list[str]) -> int:
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
    from .launch.rerun import rerun

    return rerun(options.run, allow=options.allow)


def _verify(arguments: list[str]) -> int:
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
    from .analysis.verify import verify_one, verify_two

    if options.other is None:
        return verify_one(options.run)
    return verify_two(options.run, options.other, everything=options.all)


def _sweep(arguments: list[str]) -> int:
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
    from .launch import sweep

    if options.verb == "resume":
        return sweep.resume(options.sweep, allow=options.allow)
    sweep.show(options.sweep)
    return 0


def _study(arguments: list[str]) -> int:
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
    study = options.study or Path("runs/study-quick" if options.quick else "runs/study")
    if options.recorded:
        from .launch.study import take_recorded

        take_recorded(study.resolve(), options.quick)
    if options.page:
        from .analysis.study.page import write_page

        print(write_page(study))
        return 0
    from .launch.study import run

    arms = [arm for arm in options.arms.split(",") if arm]
    return run(study.resolve(), options.quick, arms, options.allow)


def _jobs(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 jobs", description="List the Slurm jobs of the runs in a folder."
    )
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="(runs)")
    parser.add_argument("--all", action="store_true", help="jobs that have ended, too")
    options = parser.parse_args(arguments)
    from .launch.slurm.watch import jobs

    return jobs(options.runs_dir, options.all)


def _logs(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 logs", description="Print the end of a run's log, or of a role's."
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("role", nargs="?", help="as driver or trainer-0; left out: the run itself")
    parser.add_argument("--follow", action="store_true", help="until the run is finished")
    options = parser.parse_args(arguments)
    from .launch.slurm.watch import logs

    return logs(options.run, options.role, options.follow)


def _stop(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 stop", description="Stop a run, here or under Slurm; glm52 resume goes on with it."
    )
    parser.add_argument("run", type=Path, help="run folder")
    options = parser.parse_args(arguments)
    from .launch.slurm.watch import stop

    return stop(options.run)


def _report(arguments: list[str]) -> int:
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
    from .analysis.report import write_report

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


def _samples(arguments: list[str]) -> int:
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
    from .analysis.samples import show_sample, show_samples

    if options.sample is None:
        show_samples(options.run, options.step, options.eval)
    else:
        show_sample(options.run, options.sample, options.eval)
    return 0


def _forensics(arguments: list[str]) -> int:
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
    from .analysis.forensics.verb import run

    return run(options.run, options.step, as_text=not options.json)


def _influence(arguments: list[str]) -> int:
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
    from .trainer.influence.main import influence

    influence(options.run, options.step)
    return 0


def _diff(arguments: list[str]) -> int:
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
    from .analysis.diff.comparison import as_json, compared

    found = compared(options.sides)
    if options.html:
        from .analysis.diff.page import write_page

        write_page(found, options.html)
    if options.json:
        import json

        print(json.dumps(as_json(found), indent=1))
    else:
        from .analysis.diff.terminal import show

        show(found)
    return 0 if found.equal else 1


def _tasks(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("glm52 tasks", description="Look at task sets and prove them.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    names = "SUITE/SET or SET, or SUITE for all its tasks"
    tells = {
        "show": "a set's tasks: difficulty, category, limits",
        "check": "prove each task: its solution scores 1, doing nothing 0, a wrong attempt 0",
    }
    for verb, told in tells.items():
        shown = verbs.add_parser(verb, help=told, description=f"{told[0].upper()}{told[1:]}.")
        shown.add_argument("set", help=names)
        if verb == "check":
            shown.add_argument(
                "overrides",
                nargs="*",
                metavar="sandbox=X",
                help="local (default), docker, daytona, external, or a knob as sandbox.memory_mb=N",
            )
            shown.add_argument("--parallel", type=int, default=4, help="attempts at one time (4)")
            shown.add_argument("--fresh", action="store_true", help="forget earlier results")
            shown.add_argument("--tasks-dir", type=Path, help="folder with a task a folder")
            shown.add_argument(
                "--out", type=Path, default=Path("runs/checks"), help="keeps results (runs/checks)"
            )
    rows = "write the prompt rows of a set, and of what it holds out, as JSON lines"
    build = verbs.add_parser("build", help=rows, description=f"{rows.capitalize()}.")
    build.add_argument("--set", required=True, help="as train69, tbench2/train69 or mini/mini8")
    build.add_argument("--tasks-dir", type=Path, required=True, help="folder with a task a folder")
    build.add_argument("--out", type=Path, default=Path(), help="folder to write to (here)")
    options, more = parser.parse_known_args(arguments)
    if options.verb != "check" or any(one.startswith("-") for one in more):
        options = parser.parse_args(arguments)  # which says what is wrong
        more = []
    if options.verb == "show":
        from .tasks.show import show

        show(options.set)
        return 0
    if options.verb == "check":
        from .envs.check import check

        return check(
            options.set,
            [*options.overrides, *more],
            options.out,
            options.tasks_dir,
            options.parallel,
            options.fresh,
        )
    from .config.compose import compose
    from .tasks.rows import write_rows
    from .tasks.sets import find_set

    prompt = compose([]).rollout.system_prompt
    for path in write_rows(find_set(options.set), options.tasks_dir, prompt, options.out):
        print(path)
    return 0


def _weights(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 weights",
        description="Turn weights in transformers' format into a checkpoint of the trainer, and "
        "back, a tensor at a time; given again, a verb that was stopped goes on.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    tells = {
        "import": "a folder in transformers' format as a checkpoint that any layout loads",
        "export": "a checkpoint as a folder in transformers' format",
    }
    for verb, told in tells.items():
        one = verbs.add_parser(verb, help=told, description=f"Write {told}.")
        ends = ("folder", "checkpoint") if verb == "import" else ("checkpoint", "folder")
        helps = {
            "folder": "with config.json and *.safetensors",
            "checkpoint": "as RUN/checkpoints/step_N, whose config is then that of the run",
        }
        for name in ends:
            one.add_argument(name, type=Path, help=helps[name])
        one.add_argument(
            "overrides",
            nargs="*",
            metavar="KNOB=VALUE",
            help="which model, as model=glm47_flash, and where its other files are, model.path",
        )
        if verb == "export":
            one.add_argument("--fp8", action="store_true", help="in blocks of 128, as engines take")
    options, more = parser.parse_known_args(arguments)
    if any(word.startswith("-") for word in more):
        parser.parse_args(arguments)  # which says what is wrong
    overrides = [*options.overrides, *more]
    from .trainer.weights import main

    if options.verb == "import":
        main.import_weights(options.folder, options.checkpoint, overrides)
    else:
        main.export_weights(options.checkpoint, options.folder, overrides, in_fp8=options.fp8)
    return 0


def _knobs(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 knobs",
        description="Knobs with their values and meaning; the values are those of the reference "
        "run, or of the overrides given.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="start of a name (rollout, clip.eps) or a part of it (lr); with = an override "
        "(experiment=smoke)",
    )
    options = parser.parse_args(arguments)
    from .config.knobs import show_knobs

    words = [word for word in options.words if "=" not in word]
    if len(words) > 1:
        raise UserError("glm52 knobs takes one name, or a part of one.")
    show_knobs("".join(words), [word for word in options.words if "=" in word])
    return 0


def _warm_start(arguments: list[str]) -> int:
    from .trainer.warm_start.__main__ import main as build

    return build(arguments)


_VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "plan": _plan,
    "eval": _eval,
    "resume": _resume,
    "rerun": _rerun,
    "verify": _verify,
    "sweep": _sweep,
    "study": _study,
    "jobs": _jobs,
    "logs": _logs,
    "stop": _stop,
    "report": _report,
    "samples": _samples,
    "forensics": _forensics,
    "influence": _influence,
    "diff": _diff,
    "tasks": _tasks,
    "weights": _weights,
    "knobs": _knobs,
    "warm-start": _warm_start,
}

if __name__ == "__main__":
    sys.exit(main())
