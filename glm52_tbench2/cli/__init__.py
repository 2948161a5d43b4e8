"""The `glm52` command: one function a verb, each thin.

Imports happen inside the verbs, so that `glm52 --help` answers at once.
"""

import difflib
import os
import signal
import sys
from collections.abc import Callable

from ..config.errors import UserError
from . import preparing, reading, runs

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

VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": runs.train,
    "plan": runs.plan,
    "eval": runs.evaluate,
    "resume": runs.resume,
    "rerun": runs.rerun,
    "verify": runs.verify,
    "sweep": runs.sweep,
    "study": runs.study,
    "jobs": reading.jobs,
    "logs": reading.logs,
    "stop": reading.stop,
    "report": reading.report,
    "samples": reading.samples,
    "forensics": reading.forensics,
    "influence": reading.influence,
    "diff": reading.diff,
    "tasks": preparing.tasks,
    "weights": preparing.weights,
    "knobs": preparing.knobs,
    "warm-start": preparing.warm_start,
}


def main(argv: list[str] | None = None) -> int:
    """Runs one verb. Exit code: 0 done, 2 bad input, 130 interrupted, 141 unread, else failed."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_USAGE, end="")
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb in ("-sc", "--shell-completion"):
        verb, rest = "train", arguments
    action = VERBS.get(verb)
    try:
        if action is None:
            near = difflib.get_close_matches(verb, VERBS, 1)
            meant = f"did you mean {near[0]}? All" if near else "one of"
            raise UserError(f"There is no verb '{verb}'; {meant}: {', '.join(VERBS)}.")
        code = action(rest)
        sys.stdout.flush()  # or a reader that has gone is met after this, outside our hands
        return code
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, head say, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE  # as of a process that the signal ends
