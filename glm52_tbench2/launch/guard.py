"""Stands between the supervisor and one role, so that neither leaves processes behind.

    python -I -S guard.py GRACE_S SCRATCH COMMAND [ARGUMENT ...]

Standard input is the lifeline, a pipe whose other end only the supervisor holds.

- The role ends: whatever it started and left is killed; exits with the role's code, 128 + N
  when signal N ended it.
- SIGTERM: the role gets SIGTERM, and GRACE_S seconds later everything is killed.
- The lifeline closes, because the supervisor wants it or was itself killed: everything is
  killed at once.

However it ends, the folder SCRATCH, the role's own, is removed then; empty: it has none.

Uses the standard library alone and skips site-packages: one of these runs for each role, so
it starts in milliseconds and then sleeps.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
GIVE_UP_S = 20.0
KILLED = 128 + signal.SIGKILL
CANNOT_START = 127


def adopt_orphans(yes: bool = True) -> None:
    """Makes this process the new parent of its descendants' orphans (Linux: child subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def children_by_parent() -> dict[int, list[int]]:
    """Parent -> children, of every process on the machine."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # "pid (name) state ppid ...", where the name may hold spaces and parentheses
            parent = int(file.read().rpartition(b")")[2].split()[1])
            found.setdefault(parent, []).append(int(name))
    return found


def kill_trees(roots: list[int]) -> None:
    """Sends SIGKILL to `roots` and to all below them."""
    children = children_by_parent()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _start(command: list[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # Slurm's warning reaches every process of a job, and means the supervisor alone.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the line above
            os._exit(KILLED)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    os._exit(CANNOT_START)


def _reap(statuses: dict[int, int]) -> bool:
    """Collects ended children into `statuses`; False when no child is left."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
            statuses[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return False


def _kill_all(statuses: dict[int, int]) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    # An orphan comes to us, so "no child left" means that nothing is left at all.
    while _reap(statuses) and time.monotonic() < give_up:
        kill_trees(children_by_parent().get(os.getpid(), []))
        time.sleep(0.01)


def main(grace_s: float, scratch: str, command: list[str]) -> int:
    """Runs `command` to its end and returns the exit code described above."""
    adopt_orphans()
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: terminated.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)

    role = _start(command)
    statuses: dict[int, int] = {}
    kill_at: float | None = None
    while True:
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        readable, _, _ = select.select([0, woken], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
        _reap(statuses)
        if role in statuses:
            break
        if 0 in readable or (kill_at is not None and time.monotonic() >= kill_at):
            break
        if terminated and kill_at is None:
            kill_at = time.monotonic() + grace_s
            os.kill(role, signal.SIGTERM)
    _kill_all(statuses)
    if scratch:
        import shutil  # takes longer to import than all the rest, and few roles have one

        shutil.rmtree(scratch, ignore_errors=True)
    code = statuses.get(role, KILLED)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
