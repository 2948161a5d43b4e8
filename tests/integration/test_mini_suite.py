"""The committed tasks of `mini` in real sandboxes: sound, and solvable from what is shown."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from glm52_tbench2.config.paths import DATA
from glm52_tbench2.config.schema import SandboxConfig
from glm52_tbench2.envs.check import sandbox_config, scripted
from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.tasks.check import check_suite
from glm52_tbench2.tasks.mini import WORDS, committed
from glm52_tbench2.tasks.suite import Task, load_suite

NUM_THREADS = 4


@pytest.fixture(scope="module")
def config() -> SandboxConfig:
    return sandbox_config()


@pytest.fixture(scope="module")
def suite() -> dict[str, Task]:
    return load_suite(DATA / "mini" / "tasks")


def test_solutions_score_1_and_doing_nothing_or_wrong_scores_0(
    suite: dict[str, Task], config: SandboxConfig
) -> None:
    with scripted(config, next(iter(suite)), "test") as runner:
        results = check_suite(suite.values(), runner, NUM_THREADS)
    assert len(results) == 3 * 89
    assert [(r.task, r.attempt, r.reward, r.error) for r in results if not r.ok] == []


def named(text: str) -> set[str]:
    """The words of the vocabulary and the larger numbers in a text."""
    found = re.findall(r"[a-z]+|\d{2,}", text)
    return {one for one in found if one.isdigit() or one in WORDS}


def test_each_turn_uses_only_what_was_shown_before_it(
    suite: dict[str, Task], config: SandboxConfig
) -> None:
    def unfounded(task: Task) -> Iterator[tuple[str, str, set[str]]]:
        """(task, command, what it names without having seen it), and too long an output."""
        sandbox = LocalSandbox(task, config)
        try:
            seen = named(task.instruction)
            for command in committed()[task.id].turns:
                if missing := named(command) - seen:
                    yield task.id, command, missing
                output = sandbox.exec(command, config.command_timeout_s).output
                if len(re.findall(r"[A-Za-z]+|[0-9]|[^\w\s]", output)) > 60:
                    yield task.id, command, {output}
                seen |= named(output)
        finally:
            sandbox.close()

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = list(pool.map(lambda task: list(unfounded(task)), suite.values()))
    assert [one for task in found for one in task] == []
