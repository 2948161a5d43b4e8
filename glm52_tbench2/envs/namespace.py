"""One bubblewrap sandbox: its processes, its files in memory, and the way in.

The root is a tmpfs of bounded size that lives and dies with the sandbox's first process, so nothing
is ever left on disk. That process is a shell that waits on a pipe from here: it ends when we do.
Everything else enters from outside with nsenter, because what waits inside for orders could be
given other orders by the policy.

What the policy may not change are mount points or lies below one: /usr and its aliases, /etc, /dev,
/logs and /tests. A mount point can be neither renamed nor removed, so whatever enters loads the
machine's own programs and libraries, also while it still holds capabilities.
"""

import contextlib
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from .sandbox import SandboxError

START_TIMEOUT_S = 60.0
"""Longest wait for a sandbox to be made, seconds."""
_KILL_TIMEOUT_S = 5.0
# The last of a process's numbers is that in its own namespace.
_STATUS = re.compile(r"^State:\s(?P<state>\S)[^$]*^NSpid:.*\s(?P<inside>\d+)$", re.MULTILINE)
_ISOLATION = (
    *("--unshare-user", "--uid", "0", "--gid", "0", "--unshare-pid", "--unshare-ipc"),
    *("--unshare-uts", "--unshare-cgroup-try", "--unshare-net", "--hostname", "sandbox"),
    *("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--clearenv"),
)
_TOOLS = {"bwrap": "bubblewrap", "nsenter": "util-linux", "setpriv": "util-linux"}
# Read-only from the machine's /etc: nothing that tells of its users.
_ETC = ("alternatives", "ld.so.cache", "os-release", "services")
_ETC_FILES = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": "sandbox\n",
}
_FOLDERS = ("/home", "/mnt", "/opt", "/root", "/run", "/srv", "/var/lib", "/var/log")
_SHARED_FOLDERS = ("/tmp", "/var/tmp")
# Runs with every capability in the sandbox's own user namespace before any line of the policy.
# hidepid=4: processes of others, the verifier's, are not in the policy's /proc (Linux 5.8).
_PREPARE = """set -e
mount -t tmpfs -o "remount,nosuid,nodev,size=$1m,nr_inodes=$2" tmpfs /
mount -t tmpfs -o "remount,nosuid,nodev,size=$1m,nr_inodes=$2" tmpfs /dev
mount -t proc -o remount,nosuid,nodev,noexec,hidepid=4 proc /proc
echo 0 > /proc/sys/user/max_user_namespaces
shift 2; exec "$@"
"""
_INODES_PER_MB = 256
TRUSTED_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
# Above every range that systems hand out to people, services and containers.
_FIRST_UID = 2_000_000_000
_uids = itertools.count(_FIRST_UID)
# The kernel takes bwrap's parent to be the thread that started it, so this one never ends.
_starters = [ThreadPoolExecutor(1, thread_name_prefix="sandbox-starter")]
os.register_at_fork(after_in_child=lambda: _starters.__setitem__(0, ThreadPoolExecutor(1)))


@lru_cache(maxsize=8)
def tool(name: str) -> str:
    """Path of a program the sandbox is made with. Raises UserError when it is not installed."""
    path, package = shutil.which(name), _TOOLS[name]
    if path is None:
        raise UserError(
            f"The local sandbox needs {name}, which is not installed: "
            f"run `apt-get install {package}` (or install your system's package {package})."
        )
    return path


def check() -> None:
    """Makes and ends one sandbox.

    Raises UserError, with what to install or to allow, where this machine cannot make any.
    """
    for name in _TOOLS:
        tool(name)
    try:
        with contextlib.closing(Namespace(disk_mb=1)) as namespace:
            process = namespace.enter(
                ["/usr/bin/true"], TRUSTED_ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            said, _ = process.communicate()
            if process.returncode != 0:
                raise SandboxError(said.decode(errors="replace").strip())
    except SandboxError as error:
        raise UserError(
            f"bubblewrap cannot make a sandbox on this machine ({error}): allow unprivileged user "
            "namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, or "
            "kernel.unprivileged_userns_clone=1), or in a container start it with "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined."
        ) from error


def _own_user() -> int | None:
    """Started as root, a sandbox gets a user of its own, who owns nothing on this machine.

    So an escape finds nothing to read, and limits on processes, from which root is free, hold.
    None: it is the user who started us, or the root of a container, who has no privilege outside.
    """
    if os.geteuid() != 0:
        return None
    uid = next(_uids)
    maps = Path("/proc/self/uid_map").read_text().splitlines()
    mapped = (tuple(map(int, line.split())) for line in maps)
    return uid if any(first <= uid < first + count for first, _, count in mapped) else None


def unprivileged(command: Sequence[str], env: Mapping[str, str], but: str = "") -> list[str]:
    """`command` with exactly the variables `env` and no capabilities, `but` for one.

    The variables are set when the capabilities are gone: some of them choose what is loaded.
    """
    kept = f",+{but}" if but else ""
    drop = ("--no-new-privs", "--inh-caps=-all", f"--bounding-set=-all{kept}", "--")
    variables = (f"{name}={value}" for name, value in env.items())
    return [tool("setpriv"), *drop, "/usr/bin/env", "-i", *variables, *command]


@lru_cache(maxsize=1)
def _files() -> list[str]:
    """bwrap's arguments for everything in the root but /etc's own files."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.isdir(f"/{name}"):  # a bind, not a link: the policy could replace a link
            arguments += ["--ro-bind", os.path.realpath(f"/{name}"), f"/{name}"]
    for folder in _FOLDERS:
        arguments += ["--dir", folder]
    for folder in _SHARED_FOLDERS:
        arguments += ["--dir", folder, "--chmod", "1777", folder]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/logs", "/tests"):
        arguments += ["--tmpfs", folder, "--remount-ro", folder]
    arguments += ["--tmpfs", "/etc"]
    for name in _ETC:
        if os.path.exists(f"/etc/{name}"):
            arguments += ["--ro-bind", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    return arguments


class Namespace:
    """A running sandbox without a task in it."""

    def __init__(self, disk_mb: int) -> None:
        """`disk_mb`: most MiB in files; they are held in memory.

        Raises SandboxError when the machine refuses.
        """
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()
        self._closed = False
        inodes = 1024 + disk_mb * _INODES_PER_MB
        self._first = ["/usr/bin/bash", "-c", _PREPARE, "prepare", str(disk_mb), str(inodes)]
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        argv = [tool("bwrap"), *_ISOLATION, *_files()]
        if (uid := _own_user()) is not None:
            ids = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--")
            argv = [tool("setpriv"), *ids, *argv]
        passed = []
        for name, text in _ETC_FILES.items():
            passed.append(os.memfd_create(name))
            os.write(passed[-1], text.encode())
            os.lseek(passed[-1], 0, os.SEEK_SET)
            argv += ["--file", str(passed[-1]), f"/etc/{name}"]
        info, info_in = os.pipe()
        self._open.callback(os.close, info)
        passed.append(info_in)
        argv += ["--remount-ro", "/etc", "--info-fd", str(info_in), "--"]
        argv += ["/usr/bin/bash", "-c", "echo ready; read -r _"]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                env={},
                pass_fds=passed,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        try:
            self._bwrap = _starters[0].submit(start).result()
        except OSError as error:
            raise SandboxError(f"cannot start bwrap: {error}") from error
        finally:
            for fd in passed:
                os.close(fd)
        self._open.callback(self._reap)
        assert self._bwrap.stdin and self._bwrap.stdout
        self._open.callback(self._bwrap.stdin.close)
        self._open.callback(self._bwrap.stdout.close)
        said = _read_until(self._bwrap.stdout.fileno(), b"ready\n", START_TIMEOUT_S)
        if not said.endswith(b"ready\n"):
            raise SandboxError(said.decode(errors="replace").strip() or "bwrap said nothing")
        self.pid: int = json.loads(os.read(info, 4096))["child-pid"]
        """The sandbox's first process, as numbered out here."""
        self.proc = f"/proc/{self.pid}/root/proc"
        """The sandbox's own /proc, as seen from here."""
        try:
            self._init = os.pidfd_open(self.pid)
            self._open.callback(os.close, self._init)
            # Held open, so that a number reused by another process can never be entered: what
            # is joined beside it must belong to this user namespace.
            self._user_namespace = os.open(f"/proc/{self.pid}/ns/user", os.O_RDONLY)
            self._open.callback(os.close, self._user_namespace)
            self._pid_namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
            assert self._pid_namespace != os.readlink("/proc/self/ns/pid")  # all in it is killed
            self._mount_namespace = os.readlink(f"/proc/{self.pid}/ns/mnt")
        except OSError as error:
            raise SandboxError(f"the sandbox ended at once: {error}") from error
        self._open.callback(self._end)

    def enter(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        trusted: bool = False,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Starts `command` inside, with exactly the variables `env`; `options` are Popen's.

        Without `trusted` it has no capabilities and can gain none. The first command waits until
        the file systems have their limits. The process out here is an nsenter that waits for
        the command and ends as it does. Raises SandboxError.
        """
        if not trusted:
            command = unprivileged(command, env)
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            # By way of our own /proc, so that what enters inherits nothing.
            user = f"/proc/{os.getpid()}/fd/{self._user_namespace}"
            argv = [tool("nsenter"), f"--target={self.pid}", f"--user={user}"]
            argv += ["--mount", "--pid", "--net", "--ipc", "--uts"]
            if os.geteuid() != 0:
                argv.append("--preserve-credentials")
            argv += ["--", *self._first, "/usr/bin/setsid", *command]
            try:
                # In a process group of its own but our session: should we be killed while it is
                # stopped, the kernel wakes and ends it. What it starts gets a session without
                # our terminal.
                process = subprocess.Popen(argv, env=TRUSTED_ENV, process_group=0, **options)
            except OSError as error:
                raise SandboxError(f"cannot enter the sandbox: {error}") from error
            self._first = []
            return process

    def processes(self) -> set[int]:
        """Processes inside, as numbered inside. Raises SandboxError when the sandbox is gone."""
        try:
            return {int(name) for name in os.listdir(self.proc) if name.isdigit()}
        except OSError as error:
            raise SandboxError(f"the sandbox is gone: {error}") from error

    def kill(self, spare: set[int]) -> None:
        """Ends every process inside but those in `spare`, by their numbers inside."""
        spare = spare | {1}

        def condemned(pid: str) -> bool:
            found = _STATUS.search(Path(f"/proc/{pid}/status").read_text())
            return bool(found and found["state"] not in "ZX" and int(found["inside"]) not in spare)

        self._kill_while(condemned)

    def kill_apart(self) -> None:
        """Ends the processes inside that are in a mount namespace of their own."""
        self._kill_while(lambda pid: os.readlink(f"/proc/{pid}/ns/mnt") != self._mount_namespace)

    def _kill_while(self, condemned: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while victims := [pid for pid in self._found() if _holds(condemned, pid)]:
            for pid in victims:
                self._kill_one(int(pid))
            if time.monotonic() > deadline:  # it forks faster than we look: all, in one sweep
                sweep = self.enter(["/usr/bin/bash", "-c", "kill -KILL -1"], TRUSTED_ENV)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    sweep.wait(_KILL_TIMEOUT_S)
                end(sweep)
                return
            time.sleep(0.001)

    def _found(self) -> list[str]:
        """Processes inside, as numbered out here."""
        return [name for name in os.listdir("/proc") if name.isdigit() and self._inside(name)]

    def _inside(self, pid: int | str) -> bool:
        return _holds(lambda pid: os.readlink(f"/proc/{pid}/ns/pid") == self._pid_namespace, pid)

    def _kill_one(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                if self._inside(pid):  # still the same process: the number is not reused
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)

    def _end(self) -> None:
        # With the first process of a pid namespace the kernel ends all the others before it.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._init, signal.SIGKILL)
        select.select([self._init], [], [], _KILL_TIMEOUT_S)

    def _reap(self) -> None:
        try:
            # It ends once it has collected the first process; killed, it would leave that undead.
            self._bwrap.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._bwrap.kill()
            self._bwrap.wait()

    def close(self) -> None:
        """Ends every process inside, and with them the files. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._open.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Collects an nsenter whose command has ended or been killed."""
    process.send_signal(signal.SIGCONT)  # a command that was stopped has stopped it too
    try:
        process.wait(_KILL_TIMEOUT_S)  # killed before it collects its command, it leaves it undead
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _holds(test: Callable[[Any], bool], pid: int | str) -> bool:
    try:
        return test(pid)
    except OSError:  # it has ended, or is not ours to look at
        return False


def _read_until(fd: int, end: bytes, timeout_s: float) -> bytes:
    """What comes out of `fd` until `end`, its closing or the time limit."""
    deadline = time.monotonic() + timeout_s
    read = b""
    while not read.endswith(end):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        if not (piece := os.read(fd, 4096)):
            break
        read += piece
    return read
