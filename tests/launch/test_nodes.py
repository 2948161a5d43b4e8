"""Supervisors of several nodes, as processes of this machine, over scripted roles."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from . import scripted

WORK_S = 120.0
SLEEP = "import time; time.sleep(600)"
# The real roles listen to the store; these do what it takes to be told about.
STORE = "from glm52_tbench2.config.signals import Signals\ns = Signals.from_env()\n"

Nodes = Callable[..., list["subprocess.Popen[str]"]]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Starts a supervisor for each node over [kind, code, node] roles."""
    started: list[subprocess.Popen[str]] = []

    def start(*roles: tuple[str, str, int], count: int = 2) -> list["subprocess.Popen[str]"]:
        for node in range(count):
            arguments = [str(tmp_path), json.dumps(roles), "5", str(node), str(count)]
            started.append(
                subprocess.Popen(
                    [sys.executable, scripted.__file__, *arguments],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit code, and all that was printed."""
    text, _ = process.communicate(timeout=WORK_S)
    return process.returncode, text


def ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def nothing_left(run_dir: Path) -> bool:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if f"mark-{run_dir}" in " ".join(process.cmdline()):
                return False
    return True


def sleeps(run_dir: Path) -> str:
    return f"'mark-{run_dir}'; {SLEEP}"


def test_a_job_is_finished_when_every_nodes_work_is(tmp_path, nodes):
    head, member = nodes(("server", "", 1), ("worker", "print('hi')", 1), ("core", "pass", 0))
    assert ended(head)[0] == ended(member)[0] == 0
    assert (tmp_path / "finished").exists()
    assert "hi" in (tmp_path / "logs" / "driver.log").read_text()


def test_roles_find_what_is_published_on_another_node(tmp_path, nodes):
    says = STORE + "print('env is', s.wait('env/0', 60))"
    head, member = nodes(("server", "", 1), ("worker", says, 0), ("core", "pass", 0))
    assert ended(head)[0] == ended(member)[0] == 0
    assert "env is http://127.0.0.1:" in (tmp_path / "logs" / "driver.log").read_text()


def test_a_core_role_that_ends_on_one_node_restarts_the_roles_of_all(tmp_path, nodes):
    once = f"import pathlib, sys\np = pathlib.Path({str(tmp_path / 'p')!r})\n"
    crash_once = once + "seen = p.exists(); p.touch(); sys.exit(0 if seen else 7)"
    head, member = nodes(("server", "", 0), ("core", crash_once, 1))
    code, text = ended(head)
    assert (code, ended(member)[0]) == (0, 0)
    assert "trainer ended with exit code 7; every role starts again" in text
    assert (tmp_path / "logs" / "env.log").read_text().count("env starts") == 2


def test_what_fails_on_a_member_is_told_by_the_head(tmp_path, nodes):
    head, member = nodes(
        ("server", "raise SystemError('no such model')", 1), ("core", sleeps(tmp_path), 0)
    )
    code, text = ended(head)
    assert (code, ended(member)[0]) == (1, 1)
    assert "env ended with exit code 1" in text
    assert "no such model" in text
    assert nothing_left(tmp_path)
    noted = (tmp_path / "logs" / "supervisor-1.log").read_text()
    assert "the run ended with exit code 1" in noted


def test_bad_input_found_on_a_member_is_the_jobs_exit_code(nodes):
    sentence = "import sys; print('model.path is gone.', file=sys.stderr); sys.exit(2)"
    head, member = nodes(("server", "", 0), ("core", sentence, 1))
    code, text = ended(head)
    assert (code, ended(member)[0]) == (2, 2)
    assert text.endswith("model.path is gone.\n")


@pytest.mark.parametrize("node", [0, 1])
def test_what_a_node_cannot_start_is_told_by_the_head(tmp_path, nodes, node):
    refused = ("refused", "There is no docker on this node.", node)
    head, member = nodes(refused, ("worker", sleeps(tmp_path), 0), ("core", sleeps(tmp_path), 1))
    code, text = ended(head)
    assert (code, ended(member)[0]) == (2, 2)
    assert text.endswith("There is no docker on this node.\n")
    assert nothing_left(tmp_path)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_supervisor_that_is_killed_takes_the_job_down_everywhere(tmp_path, nodes, killed):
    both = nodes(("server", "", 0), ("worker", sleeps(tmp_path), 0), ("core", sleeps(tmp_path), 1))
    for process in both:
        ready(process)
    both[killed].kill()
    code, text = ended(both[1 - killed])
    assert code == 1
    assert ("node 0 is gone" if killed == 0 else "Node 1") in text
    both[killed].wait()
    assert nothing_left(tmp_path)


def test_a_signal_to_the_head_stops_every_node(tmp_path, nodes):
    head, member = nodes(("worker", sleeps(tmp_path), 0), ("core", sleeps(tmp_path), 1))
    ready(head)
    head.send_signal(signal.SIGTERM)
    code, text = ended(head)
    assert (code, ended(member)[0]) == (143, 143)
    assert "Stopped by SIGTERM" in text
    assert nothing_left(tmp_path)


def test_a_signal_to_every_node_is_told_as_such_by_all(tmp_path, nodes):
    both = nodes(("worker", sleeps(tmp_path), 0), ("core", sleeps(tmp_path), 1))
    for process in both:
        ready(process)
    for process in reversed(both):
        process.send_signal(signal.SIGTERM)
    assert [ended(process)[0] for process in both] == [143, 143]
    assert nothing_left(tmp_path)


def test_a_member_that_is_stopped_before_it_has_found_its_head(tmp_path, nodes):
    head, member = nodes(("core", sleeps(tmp_path), 0))
    head.kill()
    until = time.monotonic() + WORK_S
    while not (tmp_path / "logs").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    member.terminate()
    assert ended(member)[0] == 143


def test_a_warning_asks_for_a_checkpoint_and_ends_the_job_once_it_is_there(tmp_path, nodes):
    answer = "s.wait('checkpoint/wanted', 60); s.publish('checkpoint/saved', '7')\n"
    trainer = STORE + answer + SLEEP
    head, member = nodes(("worker", sleeps(tmp_path), 0), ("core", trainer, 1))
    ready(head)
    ready(member)
    began = time.monotonic()
    for process in (head, member):
        process.send_signal(signal.SIGUSR2)
    assert (ended(head)[0], ended(member)[0]) == (75, 75)
    assert time.monotonic() - began < 60


def test_a_warning_that_reaches_every_process_is_for_the_supervisor_alone(tmp_path, nodes):
    answer = "s.wait('checkpoint/wanted', 60); s.publish('checkpoint/saved', '7')\n"
    roles = ("worker", sleeps(tmp_path), 0), ("core", STORE + answer + SLEEP, 0)
    (head,) = nodes(*roles, count=1)
    ready(head)
    supervisor = psutil.Process(head.pid)
    until = time.monotonic() + WORK_S
    # Two guards, and a role below each.
    while sum("-c" in p.cmdline() for p in supervisor.children(recursive=True)) < 4:
        assert time.monotonic() < until
        time.sleep(0.1)
    for process in [*supervisor.children(recursive=True), supervisor]:
        process.send_signal(signal.SIGUSR2)
    code, text = ended(head)
    assert code == 75
    assert "SIGUSR2" not in text


def test_a_warning_without_an_answer_ends_the_job_in_time(tmp_path, nodes):
    (head,) = nodes(("worker", sleeps(tmp_path), 0), count=1)
    ready(head)
    head.send_signal(signal.SIGUSR2)
    assert ended(head)[0] == 75
    assert nothing_left(tmp_path)


def test_a_head_whose_run_was_taken_over_ends_its_roles(tmp_path, nodes):
    head, member = nodes(("worker", sleeps(tmp_path), 0), ("core", sleeps(tmp_path), 1))
    ready(head)
    ready(member)  # it has found its head
    later = json.dumps({"attempt": "job.1", "start": 1, "store": "127.0.0.1:1"})
    (tmp_path / "head.json").write_text(later)
    code, text = ended(head)
    assert code == 1
    assert "Another attempt of the job has taken" in text
    assert ended(member)[0] == 1
    assert nothing_left(tmp_path)


# The driver: ends a part of each of the first generations, once all is up.
END = """
from glm52_tbench2.config.signals import Signals
s = Signals.from_env()
def up(turn):
    for key in (f'met/0/{{turn}}', f'met/1/{{turn}}', 'engine/0', 'engine/0.1'):
        s.wait(key, 60)
for turn in range({turns}):
    up(turn)
    s.publish(f'die/{part}/{{turn}}', '1')
up({turns})
"""


def logged(run_dir: Path, name: str) -> str:
    return (run_dir / "logs" / f"{name}.log").read_text()


@pytest.mark.parametrize("dies", [0, 1])
@pytest.mark.parametrize("on", [(0, 1), (1, 1)])
def test_an_engine_over_nodes_is_restarted_whole_when_a_part_ends(tmp_path, nodes, on, dies):
    parts = [(f"part.{part}", "", node) for part, node in enumerate(on)]
    driver = END.format(part=dies, turns=1)
    both = nodes(*parts, ("worker", driver, 0), ("core", "pass", 1))
    outcomes = [ended(process) for process in both]
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    names = ["engine-0", "engine-0.1"]
    told = "".join(text for _, text in outcomes)
    assert f"{names[dies]} ended with exit code 7; restarted, 1 of 2" in told
    assert f"{names[1 - dies]} lost another part of its server; restarted, 1 of 2" in told
    assert [logged(tmp_path, name).count(" starts ") for name in names] == [2, 2]
    assert logged(tmp_path, "driver").count(" starts ") == 1
    assert nothing_left(tmp_path)


def test_a_part_that_ends_too_often_fails_the_job(tmp_path, nodes):
    parts = ("part.0", "", 0), ("part.1", "", 1)
    head, member = nodes(*parts, ("worker", END.format(part=1, turns=3), 0))
    code, text = ended(head)
    assert (code, ended(member)[0]) == (1, 1)
    assert "engine-0.1 ended with exit code 7, after 2 restarts of the role" in text


def test_a_part_that_cannot_start_is_told_by_the_head(tmp_path, nodes):
    wrong = "raise SystemError('no such device')"
    head, member = nodes(("part.0", "", 0), ("part.1", wrong, 1), ("core", sleeps(tmp_path), 0))
    code, text = ended(head)
    assert (code, ended(member)[0]) == (1, 1)
    assert "engine-0.1 ended with exit code 1" in text
    assert "no such device" in text
    assert nothing_left(tmp_path)


def test_a_job_that_is_restarted_counts_its_engines_starts_anew(tmp_path, nodes):
    once = f"import pathlib, sys\np = pathlib.Path({str(tmp_path / 'p')!r})\n"
    crash_once = "if not p.exists(): p.touch(); s.wait('met/1/1', 60); sys.exit(7)"
    head, member = nodes(
        *(("part.0", "", 0), ("part.1", "", 1)),
        *(("worker", END.format(part=1, turns=1), 0), ("core", STORE + once + crash_once, 1)),
    )
    code, text = ended(head)
    assert (code, ended(member)[0]) == (0, 0)
    assert "trainer ended with exit code 7; every role starts again" in text


def test_the_heartbeat_tells_of_every_node(tmp_path, nodes):
    head, _ = nodes(("worker", SLEEP, 0), ("core", SLEEP, 1))
    path = tmp_path / "heartbeat.json"
    until = time.monotonic() + WORK_S
    while not path.exists() or "trainer" not in json.loads(path.read_text())["roles"]:
        assert time.monotonic() < until
        time.sleep(0.2)
    beat = json.loads(path.read_text())
    assert beat["nodes"] == {"1": os.uname().nodename}
    assert beat["attempt"] == "job.0"
    head.terminate()
    head.wait()
