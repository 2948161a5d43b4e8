"""The `glm52` command: one function a verb, each thin.

Imports happen inside the verbs, so that `glm52 --help` answers at once.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from .config.errors import UserError

_USAGE = """\
usage: glm52 VERB [...]

  train [OVERRIDES] [-m]      compose a run and train (experiment=smoke: minutes, on this machine)
  resume RUN [--allow]        go on with a run from its last complete checkpoint
  rerun RUN [--allow]         run the same once more, in a new folder beside it
  verify RUN [OTHER]          are its files whole; is OTHER the same run, to the bit
  sweep resume DIR [--allow]  run what is missing of a sweep (train -m)
  sweep table DIR             a sweep's table, and write its table.csv and sweep.html again
  report RUN                  write RUN/report.html again
  diff A B [C ...]            what differs between runs, experiments or overrides, and what it means
  tasks show SET              a task set: difficulty, category, limits
  tasks check SET             prove each task: solution 1, nothing 0, wrong attempt 0
  tasks build --tasks-dir DIR --set SET   write prompt rows of a set and of what it holds out
  knobs [PREFIX]              every knob with its meaning
  warm-start --out DIR        rebuild the small model's tokenizer and starting weights

glm52 train --help lists the config groups; glm52 VERB --help says more on a verb.
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
            raise UserError(f"There is no verb '{verb}'; one of: {', '.join(_VERBS)}.")
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


def _resume(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("glm52 resume")
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument(
        "--allow", action="store_true", help="go on although the identity differs, and record it"
    )
    options = parser.parse_args(arguments)
    from .launch.train import resume

    return resume(options.run, allow=options.allow)


def _rerun(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("glm52 rerun")
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
        epilog="exit code: 0 whole or identical, 1 damaged or different, 2 bad input",
    )
    parser.add_argument("run", type=Path, help="run folder: is every file whole?")
    parser.add_argument("other", type=Path, nargs="?", help="another: where do the two part first?")
    parser.add_argument("--all", action="store_true", help="name every file that differs")
    options = parser.parse_args(arguments)
    from .analysis.verify import verify_one, verify_two

    if options.other is None:
        return verify_one(options.run)
    return verify_two(options.run, options.other, everything=options.all)


def _sweep(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("glm52 sweep")
    verbs = parser.add_subparsers(dest="verb", required=True)
    resuming = verbs.add_parser("resume", help="run what is missing")
    resuming.add_argument(
        "--allow", action="store_true", help="go on although an identity differs, and record it"
    )
    for verb in (resuming, verbs.add_parser("table", help="print the table and write it again")):
        verb.add_argument("sweep", type=Path, help="sweep folder")
    options = parser.parse_args(arguments)
    from .launch import sweep

    if options.verb == "resume":
        return sweep.resume(options.sweep, allow=options.allow)
    sweep.show(options.sweep)
    return 0


def _report(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("glm52 report")
    parser.add_argument("run", type=Path, help="run folder")
    options = parser.parse_args(arguments)
    from .analysis.report import write_report

    print(write_report(options.run))
    return 0


def _diff(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "glm52 diff",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="What differs between sides, and what that allows to conclude.",
        epilog="A side is a run folder, an experiment (job1794), reference, or overrides in one "
        'argument\n("experiment=smoke data=mini8"); the first is the base.\n'
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
    parser = argparse.ArgumentParser("glm52 tasks")
    verbs = parser.add_subparsers(dest="verb", required=True)
    names = "SUITE/SET or SET, or SUITE for all its tasks"
    for verb in ("show", "check"):
        verbs.add_parser(verb).add_argument("set", help=names)
    build = verbs.add_parser("build", help="write a set's prompt rows as JSON lines")
    build.add_argument("--set", required=True, help="as train69, tbench2/train69 or mini/mini8")
    build.add_argument("--tasks-dir", type=Path, required=True, help="folder with a task a folder")
    build.add_argument("--out", type=Path, default=Path(), help="folder to write to (here)")
    options = parser.parse_args(arguments)
    if options.verb == "show":
        from .tasks.show import show

        show(options.set)
        return 0
    if options.verb == "check":
        from .envs.check import check

        return check(options.set)
    from .config.compose import compose
    from .tasks.rows import write_rows
    from .tasks.sets import find_set

    prompt = compose([]).rollout.system_prompt
    for path in write_rows(find_set(options.set), options.tasks_dir, prompt, options.out):
        print(path)
    return 0


def _knobs(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("glm52 knobs")
    parser.add_argument("prefix", nargs="?", default="", help="as rollout or clip.eps")
    options = parser.parse_args(arguments)
    from .config.docs import knob_docs

    found = {name: doc for name, doc in knob_docs().items() if name.startswith(options.prefix)}
    if not found:
        raise UserError(f"There is no knob that starts with '{options.prefix}'; see: glm52 knobs.")
    width = max(map(len, found))
    for name, doc in found.items():
        print(f"{name:<{width}}  {doc}")
    return 0


def _warm_start(arguments: list[str]) -> int:
    from .trainer.warm_start.__main__ import main as build

    return build(arguments)


_VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "resume": _resume,
    "rerun": _rerun,
    "verify": _verify,
    "sweep": _sweep,
    "report": _report,
    "diff": _diff,
    "tasks": _tasks,
    "knobs": _knobs,
    "warm-start": _warm_start,
}

if __name__ == "__main__":
    sys.exit(main())
