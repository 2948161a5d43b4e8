"""Facts of this machine that are looked up once where many runs are made at a time."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_known: ContextVar[dict[Hashable, Any] | None] = ContextVar("known", default=None)


@contextmanager
def looked_up_once() -> Iterator[None]:
    """While this runs, a :func:`fact` is looked up once for the same arguments.

    For work of seconds: nothing that changes meanwhile is seen.
    """
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def fact(look_up: Callable[P, T]) -> Callable[P, T]:
    """Marks a function of hashable arguments whose answer its callers only read."""

    @wraps(look_up)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        known = _known.get()
        if known is None:
            return look_up(*args, **kwargs)
        key = (look_up, args, tuple(kwargs.items()))
        if key not in known:
            known[key] = look_up(*args, **kwargs)
        return known[key]

    return told
