"""What the policy may try on the machine and on its own limits."""

import contextlib
import ctypes
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.envs import local, namespace
from glm52_tbench2.envs.dockerfile import pack_tests, read_recipe
from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.tasks.suite import Task

from .conftest import CONFIG, processes_inside


@pytest.fixture(scope="module")
def box(shared_task: Task):
    """A sandbox that these tests share."""
    with closing(LocalSandbox(shared_task, CONFIG)) as sandbox:
        yield sandbox


def run(sandbox: LocalSandbox, command: str, timeout_s: float = 60.0) -> str:
    return sandbox.exec(command, timeout_s).output


def test_deleting_everything_deletes_only_the_sandbox(
    local: LocalSandbox, shared_task: Task
) -> None:
    local.exec(
        "rm -rf /app /root /tmp /etc /dev /var /usr/bin/e* /bin/e* /lib64 /proc/[a-z]*", 60.0
    )
    local.exec("rm -rf --no-preserve-root /", 1.0)
    assert run(local, "ls /root /app /tmp 2>/dev/null; echo usable") == "usable\n"
    assert Path("/usr/bin/env").exists()
    assert Path("/etc/passwd").exists()
    assert shared_task.environment.exists()
    assert local.verify().reward == 0.0


READ_ONLY = """
    /usr/x /bin/x /lib/x /etc/x /etc/passwd /tests/x /logs/x /proc/sys/kernel/hostname
    /proc/sys/user/max_user_namespaces /proc/sysrq-trigger /proc/sys/kernel/core_pattern
"""


@pytest.mark.parametrize("path", READ_ONLY.split())
def test_what_is_not_the_sandboxs_own_cannot_be_written(box: LocalSandbox, path: str) -> None:
    assert run(box, f"echo x > {path} && echo written").count("written") == 0


@pytest.mark.parametrize("path", ["/usr", "/lib64", "/bin", "/etc", "/tests", "/logs", "/dev/null"])
def test_mount_points_cannot_be_replaced(box: LocalSandbox, path: str) -> None:
    # Programs that enter later, with capabilities, are found and linked by these paths.
    assert run(box, f"mv {path} /moved || rmdir {path} || rm {path} || echo stays").endswith(
        "stays\n"
    )


def test_the_network_ends_at_the_sandbox(box: LocalSandbox) -> None:
    name = f"\0glm52-{os.getpid()}"
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(name)
        unix.listen()
        port = tcp.getsockname()[1]
        output = run(
            box,
            f"(: < /dev/tcp/127.0.0.1/{port}) && echo tcp; (: < /dev/tcp/1.1.1.1/53) && echo far;"
            'perl -MIO::Socket::UNIX -e \'print "unix\\n" if '
            f'IO::Socket::UNIX->new("\\0{name[1:]}")\'',
        )
    assert not {"tcp", "far", "unix"} & set(output.split())


def test_the_machines_processes_are_not_seen(box: LocalSandbox) -> None:
    with subprocess.Popen(["sleep", "98765"]) as process:
        seen = run(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 -1; echo")
        assert process.poll() is None
        process.kill()
    assert "98765" not in seen
    assert "pytest" not in seen


def test_no_secret_of_ours_is_inside(
    make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    (tmp_path / "secret").write_text("hunter2")
    fd = os.open(tmp_path / "secret", os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        with closing(LocalSandbox(make_task(), CONFIG)) as sandbox:
            output = run(
                sandbox,
                "env; cat /proc/[0-9]*/environ; head -c 100 /proc/[0-9]*/fd/[3-9] & sleep 0.5;"
                f"cat {tmp_path}/secret; ls {Path.home()} {Path(__file__).parent};"
                "cat /etc/shadow",
            )
    finally:
        os.close(fd)
    assert "hunter2" not in output
    assert "conftest" not in output
    assert "/etc/shadow: No such file" in output
    assert "HOME=/root" in output  # the look itself works


def test_nothing_of_ours_is_open_inside(box: LocalSandbox) -> None:
    targets = {line.split(":")[0] for line in run(box, "readlink /proc/[0-9]*/fd/*").splitlines()}
    assert targets <= {"pipe", "/dev/null"}
    # A program gets its three files and what it opens itself.
    assert run(box, "ls /proc/self/fd") == "0\n1\n2\n3\n"


def test_no_privilege_is_held_or_to_be_had(box: LocalSandbox) -> None:
    status = run(box, "cat /proc/self/status")
    assert status.count("\t0000000000000000\n") >= 5  # every set of capabilities
    assert "NoNewPrivs:\t1" in status
    tries = {
        "user namespace": "unshare -U true",
        "mount": "mount -t tmpfs tmpfs /tmp",
        "device": "mknod /tmp/disk b 254 0",
        "user": "setpriv --reuid=1 true",
        "clock": "date -s 2030-01-01",
        "priority": "! nice -n -5 true 2>&1 | grep -q denied",
    }
    for name, command in tries.items():
        assert "done" not in run(box, f"{command} && echo done"), name


def test_a_sandbox_of_root_runs_as_a_user_who_owns_nothing(box: LocalSandbox) -> None:
    owners = {os.stat(f"/proc/{pid}").st_uid for pid in processes_inside(box)}
    assert owners == {os.geteuid()} or (os.geteuid() == 0 and min(owners) > 1_000_000)


def test_our_terminal_is_not_the_sandboxs(shared_task: Task) -> None:
    # With it the policy could type into the shell of whoever started us.
    child, terminal = pty.fork()
    if child == 0:
        try:
            with closing(LocalSandbox(shared_task, CONFIG)) as sandbox:
                told = run(sandbox, "(: < /dev/tty) && echo opened; echo looked")
                os.write(1, told.encode())
                open("/dev/tty").close()
                os.write(1, b"ours")
        finally:
            os._exit(0)
    said = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while piece := os.read(terminal, 4096):
            said += piece
    os.waitpid(child, 0)
    os.close(terminal)
    assert said.endswith(b"ours")
    assert b"looked" in said
    assert b"opened" not in said


# Limits


def test_processes_are_bounded_and_a_fork_bomb_is_survived(local: LocalSandbox) -> None:
    run(local, "bomb() { bomb | bomb & }; bomb; sleep 300", 2.0)
    assert len(processes_inside(local)) <= CONFIG.max_processes
    assert local.exec("sleep 300 & echo usable", 60.0).output == "usable\n"
    assert local.verify().reward == 0.0


def test_one_sandbox_full_of_processes_leaves_the_others_their_own(
    local: LocalSandbox, box: LocalSandbox
) -> None:
    run(local, "for i in $(seq 100); do sleep 300 & done 2>/dev/null", 1.0)
    assert run(box, "for i in $(seq 20); do (sleep 0.1; echo $i) & done; wait").count("\n") == 20


def test_memory_of_a_process_is_bounded(box: LocalSandbox) -> None:
    perl = "perl -e '$x = \"x\" x ({}e6); print length $x'"
    assert run(box, perl.format(100)) == "100000000"
    assert "Out of memory" in run(box, perl.format(400))


@pytest.mark.parametrize("folder", ["/app", "/root", "/var/tmp", "/newly/made", "/dev/shm"])
def test_files_are_bounded(box: LocalSandbox, folder: str) -> None:
    run(box, f"mkdir -p {folder}; head -c 64M /dev/zero > {folder}/big")
    assert int(run(box, f"stat -c %s {folder}/big; rm {folder}/big")) <= 32 * 2**20


def test_the_number_of_files_is_bounded(box: LocalSandbox) -> None:
    output = run(
        box, "mkdir /tmp/many; cd /tmp/many; touch $(seq 12000); cd /app; rm -rf /tmp/many"
    )
    assert "No space left" in output


def test_it_is_the_first_to_go_when_memory_runs_out(box: LocalSandbox) -> None:
    assert run(box, "cat /proc/self/oom_score_adj") == "1000\n"


# Machines


def test_an_unprivileged_user_gets_the_same(shared_task: Task) -> None:
    if os.geteuid() != 0:
        return  # every other test of this folder is this test
    # A fork keeps what this user could not read from disk: the interpreter and the task.
    read_recipe(shared_task.environment), pack_tests(shared_task.tests)
    libc = ctypes.CDLL(None)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as after an exec
            with closing(LocalSandbox(shared_task, CONFIG)) as sandbox:
                said = run(sandbox, "ls; id -u; (sleep 300 &); touch /etc/x; touch done")
                late = sandbox.exec("sleep 300", 0.3).timed_out
                many = run(sandbox, "for i in $(seq 99); do sleep 300 & done 2>/dev/null", 1.0)
                reward = sandbox.verify().reward
                os.write(into, repr((said, late, many, reward)).encode())
        except BaseException as error:
            os.write(into, repr(error).encode())
        finally:
            os._exit(0)
    os.close(into)
    os.waitpid(child, 0)
    told = os.read(out, 10_000).decode()
    os.close(out)
    assert "a.txt\\n0\\ntouch: cannot touch '/etc/x'" in told
    assert told.endswith("True, '', 1.0)")


@pytest.fixture
def fresh_tools():
    """Programs are looked for anew."""
    namespace.tool.cache_clear()
    yield
    namespace.tool.cache_clear()


def test_without_bubblewrap_one_sentence_says_what_to_install(
    fresh_tools: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"bwrap.*`apt-get install bubblewrap`") as error:
        local.check()
    assert "\n" not in str(error.value)


def test_a_machine_that_forbids_namespaces_is_told_what_to_allow(
    fresh_tools: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(namespace, "_own_user", lambda: None)
    with pytest.raises(UserError, match=r"No permissions to create new namespace.*userns"):
        local.check()


def test_a_machine_that_can_passes_the_check() -> None:
    local.check()


def test_checking_imports_nothing_heavy() -> None:
    script = (
        "import sys; from glm52_tbench2.envs import local, client;"
        "print([m for m in ('openenv', 'torch', 'hydra', 'pydantic') if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"
