"""Verbs for what runs are made from: tasks, weights, knobs."""

import argparse
from pathlib import Path

from ..config.errors import UserError


def tasks(arguments: list[str]) -> int:
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
        from ..tasks.show import show

        show(options.set)
        return 0
    if options.verb == "check":
        from ..envs.check import check

        return check(
            options.set,
            [*options.overrides, *more],
            options.out,
            options.tasks_dir,
            options.parallel,
            options.fresh,
        )
    from ..config.compose import compose
    from ..tasks.rows import write_rows
    from ..tasks.sets import find_set

    prompt = compose([]).rollout.system_prompt
    for path in write_rows(find_set(options.set), options.tasks_dir, prompt, options.out):
        print(path)
    return 0


def weights(arguments: list[str]) -> int:
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
            help="a run of that model, as experiment=smoke model=glm47_flash; its other files "
            "lie in model.path",
        )
        if verb == "export":
            one.add_argument("--fp8", action="store_true", help="in blocks of 128, as engines take")
    options, more = parser.parse_known_args(arguments)
    if any(word.startswith("-") for word in more):
        parser.parse_args(arguments)  # which says what is wrong
    overrides = [*options.overrides, *more]
    from ..trainer.weights import main

    if options.verb == "import":
        main.import_weights(options.folder, options.checkpoint, overrides)
    else:
        main.export_weights(options.checkpoint, options.folder, overrides, in_fp8=options.fp8)
    return 0


def knobs(arguments: list[str]) -> int:
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
    from ..config.knobs import show_knobs

    words = [word for word in options.words if "=" not in word]
    if len(words) > 1:
        raise UserError("glm52 knobs takes one name, or a part of one.")
    show_knobs("".join(words), [word for word in options.words if "=" in word])
    return 0


def warm_start(arguments: list[str]) -> int:
    from ..trainer.warm_start.__main__ import main as build

    return build(arguments)
