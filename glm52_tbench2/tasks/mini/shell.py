"""Lines of shell that families share: checks, and Dockerfile lines."""

from collections.abc import Iterable
from shlex import quote


def holds(path: str, lines: Iterable[str]) -> str:
    """Succeeds when the file holds exactly these lines."""
    return f"printf '%s\\n' {' '.join(quote(line) for line in lines)} | cmp -s - {path}"


def says(path: str, value: str) -> str:
    """Succeeds when the file's text, but for the last newline, is this value."""
    return f'[ "$(cat {path})" = {quote(value)} ]'


def unchanged(path: str, text: str) -> str:
    """Succeeds when the file still holds the text it started with."""
    return holds(path, text.splitlines())


def git_repository() -> list[str]:
    """Makes /app a repository whose first commit holds every file, with the same hashes always."""
    return [
        'ENV GIT_AUTHOR_DATE="2026-01-05T09:00:00Z" GIT_COMMITTER_DATE="2026-01-05T09:00:00Z"',
        "RUN git init -q -b main",
        "RUN git config user.name dev && git config user.email dev@localhost",
        "RUN git add -A && git commit -qm start",
    ]
