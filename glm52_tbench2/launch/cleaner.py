"""Sees to it that nothing of a supervisor's roles outlives it."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from . import guard
from .roles import RoleProcess

GUARD_S = guard.GIVE_UP_S + 5
"""Time a guard gets to kill its role, seconds."""

_POLL_S = 0.02


class Cleaner:
    """Kills roles, and their orphans, which come to this process."""

    def __init__(self, roles: Sequence[RoleProcess]) -> None:
        self._roles = roles
        self._foreign: set[int] = set()

    @contextmanager
    def nothing_left_behind(self) -> Iterator[None]:
        """At the end every role is gone, and all that any of them has started."""
        self._foreign = set(guard.children_by_parent().get(os.getpid(), []))
        guard.adopt_orphans()
        try:
            yield
        finally:
            self.kill(self._roles)
            self.sweep()
            guard.adopt_orphans(False)

    def kill(self, roles: Sequence[RoleProcess]) -> None:
        """Ends these roles now and returns when they are gone."""
        for role in roles:
            role.kill()
        for role in roles:
            if not role.wait(GUARD_S) and role.pid is not None:
                guard.kill_trees([role.pid])
                role.wait(GUARD_S)

    def sweep(self) -> None:
        """Kills what outlived its guard, but what hangs in the kernel: no signal reaches that."""
        known = self._foreign | {role.pid for role in self._roles if role.pid is not None}
        give_up = time.monotonic() + guard.GIVE_UP_S
        while strays := set(guard.children_by_parent().get(os.getpid(), [])) - known:
            guard.kill_trees(list(strays))
            for pid in strays:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > give_up:
                self._foreign |= strays
                return
            time.sleep(_POLL_S)
