"""Bytes, counts and times for people."""


def size(count: float) -> str:
    """Bytes in the unit that suits them, as 53.7 GB."""
    for unit, each in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= each:
            return f"{count / each:,.3g} {unit}"
    return f"{count:.0f} B"


def number(count: float) -> str:
    """A count as 743B or 1.05M."""
    for unit, each in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= each:
            return f"{count / each:.3g}{unit}"
    return f"{count:.0f}"


def seconds(time: float | None) -> str:
    """A time floor; what is unknown says so."""
    if time is None:
        return "unknown"
    return f"{time:,.0f} s" if time >= 10 or time == 0 else f"{time:.2g} s"


def at_least(time: float | None) -> str:
    """The same as a sentence's start."""
    return seconds(time) if time is None else f"at least {seconds(time)}"
