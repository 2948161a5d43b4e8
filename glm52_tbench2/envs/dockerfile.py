"""A task's environment folder as one shell script and the bytes it unpacks.

Knows the part of Dockerfile that needs no image: WORKDIR, COPY from the environment folder, ENV and
RUN. FROM is ignored: the files below /usr are the machine's own.
"""

import base64
import glob
import gzip
import io
import json
import re
import shlex
import tarfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from string import Template

from .sandbox import SandboxError

_ROOT = PurePosixPath("/")
# Without effect on a shell that is started by someone else.
_IGNORED = {"FROM", "LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "MAINTAINER", "STOPSIGNAL"}
START_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
"""Every variable of a sandbox before the task's own."""
# One date for all that a build makes, so that `ls -l` says the same in every episode.
MADE_AT = 1_735_689_600
"""Modification time of files that a build makes: 2025-01-01, seconds since 1970."""
_LINE_CHARS = 60_000
"""Of a file in a Dockerfile's line, which builders limit to 65,535 bytes."""


@dataclass(frozen=True)
class Recipe:
    """How to make a task's files in an empty root."""

    script: str
    """Lines of bash. When a step fails they say which, and exit with 1."""
    payload: bytes
    """What the lines read from standard input, to the byte."""
    env: dict[str, str]
    """START_ENV and what ENV sets."""


@dataclass
class _Build:
    context: Path
    workdir: PurePosixPath = _ROOT
    env: dict[str, str] = field(default_factory=lambda: dict(START_ENV))
    folders: set[PurePosixPath] = field(default_factory=lambda: {_ROOT})
    lines: list[str] = field(default_factory=list)
    payload: bytearray = field(default_factory=bytearray)

    def filled(self, text: str) -> str:
        return Template(text).safe_substitute(self.env)


@lru_cache(maxsize=1024)
def read_recipe(environment: Path) -> Recipe:
    """Reads `environment`/Dockerfile and the files it copies.

    Raises SandboxError for an instruction that would need an image, and for a missing file.
    """
    build = _Build(environment)
    for number, name, rest in instructions((environment / "Dockerfile").read_text()):
        where = f"{environment / 'Dockerfile'} line {number}"
        if name in _IGNORED:
            continue
        step = _STEPS.get(name)
        if step is None:
            raise SandboxError(
                f"{where}: the local sandbox knows no {name}; it makes environments from "
                "WORKDIR, COPY, ENV and RUN."
            )
        try:
            line = step(build, rest)
        except (ValueError, OSError) as error:
            raise SandboxError(f"{where}: {name} {rest}: {error}") from error
        told = shlex.quote(f"{where}: {name} {rest}")
        build.lines.append(f"{line} || {{ echo failed: {told} >&2; exit 1; }}")
    script = "\n".join(
        [
            "umask 022; began=$((EPOCHSECONDS - 1))",
            *build.lines,
            f'find / -xdev -newermt "@$began" -exec touch -hcd @{MADE_AT} {{}} + 2>/dev/null',
        ]
    )
    return Recipe(script, bytes(build.payload), build.env)


def instructions(text: str) -> list[tuple[int, str, str]]:
    """(line number, NAME, arguments) of each instruction, with continued lines joined."""
    found: list[tuple[int, str, str]] = []
    start = 0
    parts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        start = start if parts else number
        continued = line.rstrip().endswith("\\")
        parts.append(line.rstrip()[:-1] if continued else line)
        if not continued:
            found.append(_instruction(start, parts))
            parts = []
    if parts:
        found.append(_instruction(start, parts))
    return found


def inlined(environment: Path) -> str:
    """`environment`/Dockerfile with the files it copies written into its RUN lines.

    For builders that are given no other file; the same files make the same text. The image it
    starts from must have tar, gzip and base64. Raises SandboxError for what cannot be copied.
    """
    build = _Build(environment)
    lines: list[str] = []
    for number, name, rest in instructions((environment / "Dockerfile").read_text()):
        try:
            if name in ("COPY", "ADD"):
                start = len(build.payload)
                unpack = _copy(build, rest)
                lines += _carried(bytes(build.payload[start:]), unpack)
                continue
            if name in ("WORKDIR", "ENV"):  # they decide where a later COPY goes
                _STEPS[name](build, rest)
        except (ValueError, OSError) as error:
            where = f"{environment / 'Dockerfile'} line {number}"
            raise SandboxError(f"{where}: {name} {rest}: {error}") from error
        lines.append(f"{name} {rest}")
    return "\n".join([*lines, ""])


def _carried(archive: bytes, unpack: str) -> list[str]:
    """RUN lines that feed `archive` to the shell line `unpack`."""
    text = base64.b64encode(gzip.compress(archive, mtime=0)).decode()
    pieces = [text[i : i + _LINE_CHARS] for i in range(0, len(text), _LINE_CHARS)]
    return [
        *(f"RUN printf %s {piece} >> /.carried" for piece in pieces),
        f"RUN base64 -d /.carried | gzip -dc | {{ {unpack}; }} && rm /.carried",
    ]


def _instruction(number: int, parts: list[str]) -> tuple[int, str, str]:
    name, *rest = "".join(parts).split(None, 1)
    return number, name.upper(), rest[0].strip() if rest else ""


def _workdir(build: _Build, rest: str) -> str:
    build.workdir = build.workdir / build.filled(rest)
    build.folders |= {build.workdir, *build.workdir.parents}
    path = shlex.quote(str(build.workdir))
    return f"{_made(path)} && cd -- {path}"


def _made(path: str) -> str:
    return f"{{ [ -d {path} ] || mkdir -p -- {path}; }}"


def _env(build: _Build, rest: str) -> str:
    if not re.match(r"[^\s=]+=", rest):  # ENV NAME the rest of the line
        name, _, value = rest.partition(" ")
        pairs = [(name, value.strip())]
    else:
        pairs = [(n, v) for n, _, v in (word.partition("=") for word in shlex.split(rest))]
    filled = {name: build.filled(value) for name, value in pairs}
    if not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in filled):
        raise ValueError("write ENV NAME=value")
    build.env |= filled
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in filled.items())


def _run(build: _Build, rest: str) -> str:
    if rest.startswith("["):
        return shlex.join(json.loads(rest)) + " </dev/null"
    return f"/bin/sh -c {shlex.quote(rest)} </dev/null"


def _copy(build: _Build, rest: str) -> str:
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    flags = [word for word in words if word.startswith("--")]
    if any(not flag.startswith(("--chown=", "--chmod=")) for flag in flags):
        raise ValueError("only files of the environment folder can be copied")
    modes = [int(flag.partition("=")[2], 8) for flag in flags if flag.startswith("--chmod=")]
    *sources, target = [build.filled(word) for word in words if not word.startswith("--")]
    if not sources:
        raise ValueError("write COPY SOURCE TARGET")
    found = [path for source in sources for path in _matches(build.context, source)]
    to = build.workdir / target
    into = (
        len(found) > 1
        or target.endswith(("/", "/."))
        or target == "."
        or to in build.folders
        or found[0].is_dir()
    )
    if into:
        build.folders |= {to, *to.parents}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in found:
            # A folder is copied by what it holds, a file under its own or its new name.
            at = to if path.is_dir() or not into else to / path.name
            _add(tar, path, str(at).lstrip("/") or ".", modes[0] if modes else None)
    build.payload += archive.getvalue()
    made = shlex.quote(str(to if into else to.parent))
    size = len(archive.getvalue())
    return f"{_made(made)} && head -c {size} | tar --no-same-owner -xpf - -C /"


def _matches(context: Path, source: str) -> list[Path]:
    pattern = source.lstrip("/") or "."
    if ".." in PurePosixPath(pattern).parts:
        raise ValueError("only files of the environment folder can be copied")
    found = sorted(context / name for name in glob.glob(pattern, root_dir=context))
    if not found:
        raise FileNotFoundError(f"there is no {pattern} in {context}")
    return found


@lru_cache(maxsize=1024)
def pack_tests(tests: Path) -> bytes:
    """The root as a verification needs it: `tests` at /tests and an empty /logs/verifier."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        _add(tar, tests, "tests", None)
        logs = tarfile.TarInfo("logs/verifier")
        logs.type, logs.mode, logs.mtime = tarfile.DIRTYPE, 0o755, MADE_AT
        tar.addfile(logs)
    return archive.getvalue()


def _add(tar: tarfile.TarFile, path: Path, name: str, mode: int | None) -> None:
    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = MADE_AT
        # git keeps no other bits, and a checkout's umask must not change a task.
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        if mode is not None and not member.isdir():
            member.mode = mode
        return member

    tar.add(path, name, filter=plain)


_STEPS = {"WORKDIR": _workdir, "ENV": _env, "RUN": _run, "COPY": _copy}
