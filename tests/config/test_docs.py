"""README and docs name only commands, knobs and files that there are."""

import re
import shlex

import pytest

from glm52_tbench2 import cli
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.docs import knob_docs
from glm52_tbench2.config.paths import CONF, ROOT
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.tasks.named import full_name
from glm52_tbench2.tasks.rows import rows_name
from glm52_tbench2.tasks.sets import load_set, set_names

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SPANS = {
    page.name: re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    for page in PAGES
}
BLOCKS = {
    page.name: [
        line.split("#")[0].strip()
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.S)
        for line in block.splitlines()
    ]
    for page in PAGES
}
COMMANDS = sorted(
    {
        found[1]
        for texts in (SPANS, BLOCKS)
        for lines in texts.values()
        for line in lines
        if (found := re.match(r"(?:\.venv/bin/)?glm52 (.+)", line))
    }
)
TARGETS = sorted(
    {
        found[1]
        for texts in (SPANS, BLOCKS)
        for lines in texts.values()
        for line in lines
        if (found := re.match(r"make (\w+)$", line))
    }
)
# In the folder of a run, which tests/integration compares with one.
RUN_FILES = (
    *("rollouts/", "train/step", "eval/step", "checkpoints/", "logs/", "wandb/", "runs/"),
    *("RUN/", "sentinel/"),
)
FILES = sorted(
    {
        span
        for page, spans in SPANS.items()
        for span in spans
        if not (page == "metrics.md" and span.endswith("/"))  # the first part of a metric's name
        and re.fullmatch(r"[\w.*/{},-]+(/|\.(py|md|yaml|toml|txt|sh|jsonl))", span)
        and not span.startswith(RUN_FILES)
        and span not in ("config.yaml", "metrics.jsonl", "results.jsonl", "alarms.jsonl")
    }
)


def test_something_is_looked_at():
    assert len(COMMANDS) > 10 and len(FILES) > 10 and len(TARGETS) > 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_given(command):
    verb, *words = shlex.split(command)
    assert verb in cli.VERBS
    if verb in ("train", "eval") and "--run" not in words:
        compose([word for word in words if "," not in word and "=" in word])
    if verb == "knobs":
        assert any(knob.startswith(words[0]) for knob in knob_docs())
        compose(words[1:])
    if words[:1] in (["show"], ["check"]):
        full_name(words[1])


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_is_there(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_there(name):
    rows = {rows_name(load_set(one)) for one in set_names()}
    places = (ROOT, ROOT / "glm52_tbench2", ROOT / "docs")
    assert name in rows or any(list(place.glob(name.rstrip("/"))) for place in places)


def test_a_knob_is_there():
    groups = {
        path.name for path in CONF.iterdir() if path.is_dir()
    } & RunConfig.__annotations__.keys()
    named = {
        span.partition("=")[0]
        for spans in SPANS.values()
        for span in spans
        if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+(=\S+)?", span) and span.split(".")[0] in groups
    }
    assert named and named <= knob_docs().keys()
