"""The supervisor over real processes: scripted roles in place of the heavy ones."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from glm52_tbench2.launch import guard
from glm52_tbench2.launch import supervisor as supervisor_module
from glm52_tbench2.launch.cleaner import Cleaner
from glm52_tbench2.launch.run_folder import lock

from . import scripted
from .scripted import core, helper, server, supervise, worker

WORK_S = 120.0  # far above what any of this needs, so a hang fails rather than blocks

SLEEPS = '[sys.executable, "-c", "import time; time.sleep(600)", {mark!r}]'
# A child, one in a session of its own, and one whose parent has gone.
LEAVES_CHILDREN = f"""
import os, subprocess, sys
subprocess.Popen({SLEEPS})
subprocess.Popen({SLEEPS}, start_new_session=True)
if os.fork() == 0:
    subprocess.Popen({SLEEPS}, start_new_session=True)
    os._exit(0)
{{then}}
"""


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """A word to find this test's processes by: role, guard and, in the background, supervisor."""
    return f"mark-{tmp_path.name}-{os.getpid()}"


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(mark in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def wait_until(condition) -> None:
    until = time.monotonic() + WORK_S
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def background(tmp_path: Path) -> Iterator:
    """Starts a supervisor of its own process over (kind, code) roles."""
    started: list[subprocess.Popen] = []

    def start(*roles: tuple[str, str], grace_s: float = 8.0) -> subprocess.Popen:
        process = subprocess.Popen(
            [
                sys.executable,
                scripted.__file__,
                str(tmp_path),
                json.dumps(roles),
                str(grace_s),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


# --- a run that works ----------------------------------------------------------------------------


def test_a_run_ends_when_its_work_is_done_and_its_servers_are_stopped(tmp_path, mark):
    specs = [server(code=scripted.SERVER + f"#{mark}"), worker("print('hi')")]
    ended, recorder = supervise(tmp_path, specs)
    assert (ended.code, recorder.events) == (0, [])
    assert "hi" in (tmp_path / "logs/driver.log").read_text()
    assert (tmp_path / "finished").exists()
    assert marked(mark) == []


def test_a_server_is_published_once_it_answers(tmp_path):
    client = (
        "import sys\nfrom glm52_tbench2.config.signals import Signals\n"
        "from urllib.request import urlopen\n"
        "url = Signals.from_env().wait('env/0', 60)\n"
        "sys.exit(urlopen(url + '/health').status != 200)"
    )
    ended, _ = supervise(tmp_path, [server(), worker(client)])
    assert ended.code == 0, ended.text


def test_the_helper_sees_the_end_and_may_finish(tmp_path):
    wait = (
        f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'finished')!r}).exists():\n"
        "    time.sleep(0.05)\nprint('synced')"
    )
    ended, _ = supervise(tmp_path, [core("pass"), helper(wait)])
    assert ended.code == 0
    assert "synced" in (tmp_path / "logs/tracker.log").read_text()


def test_logs_are_appended_to_over_runs(tmp_path):
    supervise(tmp_path, [core("print('first')")])
    supervise(tmp_path, [core("print('second')")])
    log = (tmp_path / "logs/trainer.log").read_text()
    assert log.index("first") < log.index("second")


def test_a_role_is_not_started_again_in_changed_code(tmp_path, monkeypatch):
    found = iter([{"a.py": "1"}])
    monkeypatch.setattr(supervisor_module, "sources", lambda: next(found, {"a.py": "2"}))
    ended, _ = supervise(tmp_path, [core("print('started'); raise SystemExit(75)")])
    assert ended.code == 1 and "not restarted, since the code was changed" in ended.text
    assert (tmp_path / "logs/trainer.log").read_text().count("started") == 1


def test_what_hangs_in_the_kernel_holds_up_no_end(monkeypatch):
    monkeypatch.setattr(guard, "kill_trees", lambda pids: None)
    monkeypatch.setattr(guard, "GIVE_UP_S", 0.1)
    with subprocess.Popen(["sleep", "600"]) as hangs:
        try:
            Cleaner([]).sweep()
            assert hangs.poll() is None
        finally:
            hangs.kill()


def test_the_heartbeat_says_where_every_role_stands(tmp_path):
    supervise(tmp_path, [core("pass"), server()])
    beat = json.loads((tmp_path / "heartbeat.json").read_text())
    assert beat["phase"] == "finished"
    assert {name: role["state"] for name, role in beat["roles"].items()} == {
        "trainer": "finished",
        "env": "stopped",
    }


# --- a role that fails ---------------------------------------------------------------------------


def test_a_role_that_never_gets_ready_is_named_with_its_last_lines(tmp_path, mark):
    stuck = f"import time; print('loading {mark}', flush=True); time.sleep(600)"
    ended, _ = supervise(
        tmp_path,
        [server(), server("engine", stuck, deadline_s=1.0), worker("import time; time.sleep(600)")],
    )
    assert ended.code == 1
    assert "engine was not ready within 1 s" in ended.text
    assert f"loading {mark}" in ended.text
    assert "env" not in ended.text.split()[0]
    assert marked(mark) == []


def test_a_role_that_waits_for_a_slow_server_is_not_blamed(tmp_path):
    up = f"pathlib.Path({str(tmp_path / 'up')!r})"
    slow = f"import pathlib, time\nwhile not {up}.exists(): time.sleep(0.05)\ntime.sleep(4)\n"
    ready = (
        "import pathlib\nfrom glm52_tbench2.config.signals import Signals\n"
        f"s = Signals.from_env(); s.open(); {up}.touch()\n"
        "s.wait('env/0', 60); s.publish('driver/ready', '1')"
    )
    waiting = worker(ready, deadline_s=3, ready_key="driver/ready")
    ended, _ = supervise(tmp_path, [server(code=slow + scripted.SERVER), waiting])
    assert ended.code == 0, ended.text


def test_a_role_that_dies_while_starting_fails_the_run_at_once(tmp_path):
    ended, recorder = supervise(tmp_path, [server(code="raise SystemError('no such model')")])
    assert ended.code == 1
    assert "env ended with exit code 1" in ended.text
    assert "no such model" in ended.text
    assert recorder.events == []


def test_the_log_says_why_a_run_ended_and_that_it_goes_on(tmp_path):
    supervise(tmp_path, [worker("import sys; sys.exit(2 - bool(print('steps is 0.')))")])
    supervise(tmp_path, [worker("")])
    lines = (tmp_path / "logs" / "supervisor.log").read_text().splitlines()
    assert [line[20:] for line in lines if "the run" in line] == [
        "the run ended with exit code 2: steps is 0.",
        "the run goes on",
        "the run ended with exit code 0",
    ]


def test_a_command_that_does_not_exist_is_named(tmp_path):
    from glm52_tbench2.launch.roles import Policy, RoleSpec

    ended, _ = supervise(tmp_path, [RoleSpec("env", 0, ("/no/such",), Policy.service, health="/")])
    assert "cannot start /no/such: No such file or directory" in ended.text


def test_bad_input_found_by_a_role_stops_the_run_with_its_sentence(tmp_path):
    bad = "import sys; print('task a/b is not in the suite.', file=sys.stderr); sys.exit(2)"
    ended, recorder = supervise(tmp_path, [server(), worker(bad)])
    assert (ended.code, ended.text) == (2, "task a/b is not in the suite.")
    assert recorder.events == []


def test_a_server_that_dies_is_restarted_and_published_again(tmp_path):
    # The first life of the server ends when asked to; the worker waits for the second.
    dies = (
        "import os, pathlib, threading, time\n"
        f"first = pathlib.Path({str(tmp_path / 'first')!r})\n"
        f"go = pathlib.Path({str(tmp_path / 'go')!r})\n"
        "def watch():\n"
        "    while not go.exists(): time.sleep(0.05)\n"
        "    os._exit(5)\n"
        "if not first.exists(): first.touch(); threading.Thread(target=watch).start()\n"
    ) + scripted.SERVER
    client = (
        "import pathlib, sys, time\nfrom glm52_tbench2.config.signals import Signals\n"
        "from urllib.request import urlopen\n"
        "s = Signals.from_env(); s.wait('env/0', 60)\n"
        f"pathlib.Path({str(tmp_path / 'go')!r}).touch()\n"
        "until = time.monotonic() + 60\n"
        "while s.get('env/0') is not None:\n"
        "    time.sleep(0.02)\n"
        "    assert time.monotonic() < until\n"
        "sys.exit(urlopen(s.wait('env/0', 60) + '/health').status != 200)"
    )
    ended, recorder = supervise(tmp_path, [server(code=dies), worker(client)])
    assert ended.code == 0, ended.text
    assert recorder.events == ["env ended with exit code 5; restarted, 1 of 2"]


def test_a_worker_that_keeps_dying_fails_the_run_after_its_restarts(tmp_path):
    ended, recorder = supervise(tmp_path, [worker("import sys; sys.exit('lost my sandbox')")])
    assert ended.code == 1
    assert "driver ended with exit code 1, after 2 restarts" in ended.text
    assert "lost my sandbox" in ended.text
    assert len(recorder.events) == 2


def test_the_end_of_a_core_role_restarts_every_role(tmp_path):
    crash_once = (
        f"import pathlib, sys\np = pathlib.Path({str(tmp_path / 'p')!r})\n"
        "seen = p.exists(); p.touch(); sys.exit(0 if seen else 1)"
    )
    ended, recorder = supervise(tmp_path, [server(), server("engine"), core(crash_once)])
    assert ended.code == 0, ended.text
    for role in ("env", "engine"):
        assert (tmp_path / f"logs/{role}.log").read_text().count(f"{role} starts") == 2
    assert recorder.events == [
        "trainer ended with exit code 1; every role starts again from the last checkpoint, 1 of 2"
    ]


def test_a_killed_role_is_told_by_its_signal(tmp_path):
    ended, _ = supervise(tmp_path, [core("import os; os.kill(os.getpid(), 9)")], max_restarts=0)
    assert "trainer ended with signal SIGKILL. Was the machine out of memory?" in ended.text
    assert ended.code == 1


def test_a_helper_that_fails_does_not_fail_the_run(tmp_path):
    ended, recorder = supervise(
        tmp_path, [helper("raise SystemExit('no network')"), core("import time; time.sleep(3)")]
    )
    assert ended.code == 0
    assert "the run goes on without it. no network" in recorder.events[-1]


def test_a_worker_may_finish_before_the_core_does(tmp_path):
    ended, recorder = supervise(tmp_path, [worker("pass"), core("import time; time.sleep(3)")])
    assert (ended.code, recorder.events) == (0, [])


def test_a_worker_that_is_restarted_is_not_ready_by_its_past(tmp_path):
    once = f"import pathlib, sys, time\np = pathlib.Path({str(tmp_path / 'p')!r})\n"
    code = (
        f"{once}from glm52_tbench2.config.signals import Signals\n"
        "s = Signals.from_env()\n"
        "if not p.exists(): p.touch(); s.publish('driver/ready', '1'); time.sleep(2); sys.exit(1)\n"
        "sys.exit(s.get('driver/ready') is not None)"
    )
    ended, recorder = supervise(tmp_path, [worker(code, ready_key="driver/ready")], max_restarts=1)
    assert ended.code == 0, ended.text
    assert len(recorder.events) == 1


def test_a_full_disk_is_told_as_such_and_not_retried(tmp_path):
    full = "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))"
    ended, recorder = supervise(tmp_path, [worker(full)])
    assert "is full: free some space" in ended.text
    assert recorder.events == []


# --- nothing is left behind ----------------------------------------------------------------------


def test_what_a_role_leaves_behind_is_gone_when_it_ends(tmp_path, mark):
    ended, _ = supervise(tmp_path, [core(LEAVES_CHILDREN.format(mark=mark, then=""))])
    assert ended.code == 0, ended.text
    assert marked(mark) == []


def test_a_roles_folder_elsewhere_is_removed_with_it(tmp_path):
    scratch = tmp_path / "scratch"
    makes = f"import pathlib; pathlib.Path({str(scratch)!r}, 'socket').parent.mkdir()"
    ended, _ = supervise(tmp_path, [core(makes, scratch=scratch)])
    assert ended.code == 0, ended.text
    assert not scratch.exists()


def test_a_roles_folder_elsewhere_is_removed_after_a_killed_supervisor_too(tmp_path):
    """Its guard, whose lifeline then closes, does it."""
    scratch = tmp_path / "scratch"
    makes = f"import pathlib, time; pathlib.Path({str(scratch)!r}).mkdir(); time.sleep(600)"
    ours, theirs = os.pipe()
    guarded = subprocess.Popen(
        [sys.executable, guard.__file__, "8", str(scratch), sys.executable, "-c", makes],
        stdin=ours,
    )
    os.close(ours)
    wait_until(scratch.exists)
    os.close(theirs)
    guarded.wait(WORK_S)
    assert not scratch.exists()


def test_a_role_that_ignores_being_asked_is_killed(tmp_path, mark, monkeypatch):
    monkeypatch.setattr("glm52_tbench2.launch.roles.GRACE_S", 0.5)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + scripted.SERVER
    ended, _ = supervise(
        tmp_path, [server(code=deaf + f"#{mark}"), core("import time; time.sleep(1)")]
    )
    assert ended.code == 0
    assert marked(mark) == []


def test_killing_the_supervisor_leaves_nothing(background, mark):
    code = LEAVES_CHILDREN.format(mark=mark, then="import time; time.sleep(600)")
    process = background(("worker", code), ("core", code))
    wait_until(lambda: len(marked(mark)) >= 11)
    tree = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    wait_until(lambda: not marked(mark))
    wait_until(lambda: all(gone(p) for p in tree))


def test_killing_a_guard_leaves_nothing_beside_the_roles_next_start(background, mark):
    code = LEAVES_CHILDREN.format(mark=mark, then="import time; time.sleep(600)")
    process = background(("worker", code))
    assert process.stdout.readline() == "ready\n"
    wait_until(lambda: len(marked(mark)) >= 6)
    before = {p.pid for p in marked(mark)} - {process.pid}
    (its_guard,) = psutil.Process(process.pid).children()
    its_guard.kill()
    wait_until(lambda: len({p.pid for p in marked(mark)} - before) >= 5)
    assert not {p.pid for p in marked(mark)} & before


def test_the_folder_stays_locked_until_the_last_role_of_a_killed_supervisor_is_gone(
    background, tmp_path
):
    process = background(("worker", "import time; time.sleep(600)"))
    assert process.stdout.readline() == "ready\n"
    (its_guard,) = psutil.Process(process.pid).children()
    its_guard.suspend()
    try:
        process.kill()
        process.wait()
        with (tmp_path / ".lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        its_guard.resume()
    with lock(tmp_path):
        assert gone(its_guard)


def test_killing_the_guard_and_the_supervisor_at_once_ends_the_role(background, mark):
    process = background(("worker", f"import time; time.sleep(600) #{mark}"))
    assert process.stdout.readline() == "ready\n"
    wait_until(lambda: len(marked(mark)) >= 2)
    (its_guard,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGSTOP)
    its_guard.kill()
    process.kill()
    wait_until(lambda: not marked(mark))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_every_role(background, mark, number, code):
    body = LEAVES_CHILDREN.format(mark=mark, then="import time; time.sleep(600)")
    process = background(("worker", body))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(WORK_S) == code
    assert marked(mark) == []


def test_a_second_ctrl_c_does_not_wait_for_deaf_roles(background, mark, tmp_path):
    deaf = (
        "import pathlib, signal, time\n"
        f"told = lambda *a: pathlib.Path({str(tmp_path / 'told')!r}).touch()\n"
        f"signal.signal(signal.SIGTERM, told); print({mark!r}, flush=True)\n"
        "while True: time.sleep(1)"
    )
    process = background(("worker", deaf), grace_s=600.0)
    assert process.stdout.readline() == "ready\n"
    wait_until(lambda: mark in (tmp_path / "logs/driver.log").read_text())
    process.send_signal(signal.SIGINT)
    wait_until((tmp_path / "told").exists)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(WORK_S) == 130
    assert marked(mark) == []


def test_nothing_of_a_run_listens_beyond_the_loopback(background):
    process = background(("server", ""), ("worker", "import time; time.sleep(600)"))
    assert process.stdout.readline() == "ready\n"
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    listening = {
        c.laddr.ip.removeprefix("::ffff:")
        for p in family
        for c in p.net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
