"""The 89 committed tasks of the suite `mini`: what they are, and their bytes on disk."""

from functools import cache
from pathlib import Path
from random import Random

from ..sets import render_set, render_sets
from ..split import split
from .families import FAMILIES
from .instance import Instance, instance_key

NUM_TASKS = 89
NUM_HELD_OUT = 20

# Families with at least three tasks hold one out; the pairs only train.
_PAIRS = {
    "delete-lines",
    "first-lines",
    "set-variable",
    "make-link",
    "pack-folder",
    "git-branch",
    "run-script",
    "folder-diff",
    "csv-column",
    "git-commit",
    "largest-file",
    "git-merge",
    "log-mode",
    "config-folder",
}
_FOURS = {"follow-notes"}

_TASK_TOML = """\
schema_version = "1.1"

[task]
name = "mini/{task_id}"

[metadata]
difficulty = "{difficulty}"
category = "{category}"
family = "{family}"

[verifier]
timeout_sec = 30.0

[agent]
timeout_sec = 300.0

[environment]
build_timeout_sec = 60.0
cpus = 1
memory_mb = 256
storage_mb = 64
"""

_TEST_SH = """\
#!/bin/bash
# Writes 1 to /logs/verifier/reward.txt when the task is done, else 0.
mkdir -p /logs/verifier
(
set -e
cd /app
{check}
)
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


@cache
def committed() -> dict[str, Instance]:
    """The 89 tasks by id, in the order of their ids.

    An id is a word of the task and its family, so that the order of ids mixes the families.
    """
    tasks: dict[str, Instance] = {}
    for name, sample in sorted(FAMILIES.items()):
        rng = Random(f"mini 0/{name}")
        wanted = len(tasks) + (2 if name in _PAIRS else 4 if name in _FOURS else 3)
        while len(tasks) < wanted:
            instance = sample(rng)
            tasks.setdefault(f"{instance.params[0]}-{name}", instance)
    return dict(sorted(tasks.items()))


@cache
def split_ids() -> tuple[list[str], list[str]]:
    """Ids (trained on, held out)."""
    return split({name: task.family for name, task in committed().items()}, NUM_HELD_OUT)


@cache
def held_out_keys() -> frozenset[str]:
    """Keys (:func:`instance_key`) of the held-out tasks, which nothing may be trained on."""
    return frozenset(instance_key(committed()[task_id]) for task_id in split_ids()[1])


def fresh(rng: Random, family: str | None = None) -> Instance:
    """Samples a task that is not held out, of one family or of any, each as likely."""
    while True:
        instance = FAMILIES[family or rng.choice(sorted(FAMILIES))](rng)
        if instance_key(instance) not in held_out_keys():
            return instance


def render(task_id: str, instance: Instance) -> dict[str, str]:
    """The files of one task, by path below its folder."""
    dockerfile = ["FROM buildpack-deps:bookworm-scm", "WORKDIR /app"]
    if instance.files:
        dockerfile.append("COPY files/ /app/")
    dockerfile += instance.dockerfile
    script = "#!/bin/bash\ncd /app\n"
    return {
        "task.toml": _TASK_TOML.format(
            task_id=task_id,
            difficulty=instance.difficulty,
            category=instance.category,
            family=instance.family,
        ),
        "instruction.md": f"{instance.instruction}\n",
        "environment/Dockerfile": "".join(f"{line}\n" for line in dockerfile),
        **{f"environment/files/{path}": text for path, text in instance.files.items()},
        "solution/solve.sh": script + "".join(f"{command}\n" for command in instance.turns),
        "solution/wrong.sh": script + "".join(f"{command}\n" for command in instance.wrong),
        "tests/test.sh": _TEST_SH.format(check=instance.check),
    }


def _more_sets(train: list[str]) -> dict[str, str]:
    """Sets between the two sizes, each holding the smaller one, and other choices of eight.

    By place in the sorted list alone, so that nobody chose a task. `train`: sorted ids.
    """
    sets = {f"mini{n}": (f"The first {n} tasks of mini69.", train[:n]) for n in (16, 32)}
    for name, first in (("mini8b", 8), ("mini8c", 16)):
        doc = f"Another eight: tasks {first + 1} to {first + 8} of mini69."
        sets[name] = doc, train[first : first + 8]
    return {f"{name}.yaml": render_set("mini", doc, ids) for name, (doc, ids) in sets.items()}


def build(dest: Path) -> None:
    """Writes the suite (tasks/ and sets/) below `dest`, the same bytes every time."""
    files = {
        f"tasks/{task_id}/{path}": text
        for task_id, instance in committed().items()
        for path, text in render(task_id, instance).items()
    }
    train, held_out = split_ids()
    rule = "one of each family of three or more, chosen by the rule in tasks/split.py."
    manifests = render_sets("mini", train, held_out, ("mini69", "mini8", "eval20"), rule)
    manifests |= _more_sets(sorted(train))
    files |= {f"sets/{name}": text for name, text in manifests.items()}
    for path, text in files.items():
        target = dest / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
