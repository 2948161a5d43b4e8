"""The examination of a run, streamed step by step: twice, the second time where turns recur."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from ..transcript import Decoder, shortened
from . import members as second
from .families import Family, Index, Member, Repeat, recurring, repeats, worst_first
from .measures import Measures
from .members import Content, Reading
from .profiles import Profile, profile
from .scan import Scan, scan
from .source import About, Source

_SMALL = 200_000_000
"""Bytes of a run that are read before other processes would have started."""
_PROCESSES = 4
_REPEATS = 10
"""Repeated short turns that are told."""

Tell = Callable[[str], None]
Work = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


@dataclass
class Examination:
    """Everything that is known of a run."""

    about: About
    measures: Measures
    families: list[Profile]
    """Those with the most |D| first, else the most tokens."""
    more_families: int
    """Recurring ones that were not read a second time."""
    repeats: list[Repeat]
    """Turns that recur to the token."""
    repeated_share: float
    """Of all generated tokens: those in turns that an earlier step had to the token."""
    unread: list[int] = field(default_factory=list)
    """Steps that have a file and could not be read."""
    warnings: list[str] = field(default_factory=list)


def examine(
    source: Source, wanted: range | None = None, tell: Tell = lambda line: None
) -> Examination:
    """Reads the steps `wanted`, all by default; `tell` gets a line on how far it is."""
    about = source.about()
    if wanted is not None:  # after step N are the weights that N made
        evals = {at: about.evals[at] for at in about.evals if at + 1 in wanted or at in wanted}
        about = replace(about, evals=evals)
    steps = [step for step in source.steps() if wanted is None or step in wanted]
    warnings = list(source.warnings)
    with _workers(source.size()) as work:
        scans = list(_scans(source, steps, work, warnings, tell))
        measures = Measures(about, scans)
        similarity = measures.config.sentinel.similarity
        index = Index(similarity)
        for one in scans:
            index.add(one)
        families, more = recurring(index.families)
        readings = _read(source, families, similarity, work, tell)
    profiles = _profiles(measures, families, readings)
    _decode(about, profiles, warnings)
    told, share = repeats(scans, _REPEATS)
    read = {one.step for one in scans}
    unread = [step for step in steps if step not in read]
    return Examination(about, measures, profiles, more, told, share, unread, warnings)


def _scan(source: Source, step: int) -> tuple[Scan | None, list[str]]:
    """The scan of a step, and what was said of it that could not be read."""
    known = len(source.warnings)
    found = source.read(step)
    return None if found is None else scan(found), source.warnings[known:]


def _scans(
    source: Source, steps: Sequence[int], work: Work, warnings: list[str], tell: Tell
) -> Iterator[Scan]:
    for done, (found, said) in enumerate(work(partial(_scan, source), steps), 1):
        warnings += [one for one in said if one not in warnings]
        tell(f"{done} of {len(steps)} steps read")
        if found is not None:
            yield found


def _reading(
    source: Source,
    similarity: float,
    wanted: tuple[int, dict[int, list[Member]], dict[int, Content]],
) -> tuple[int, dict[int, Reading]]:
    number, members, first = wanted
    step = source.read(number)
    return number, {} if step is None else second.read(step, members, first, similarity)


def _read(
    source: Source, families: Sequence[Family], similarity: float, work: Work, tell: Tell
) -> dict[int, dict[int, Reading]]:
    """Place of a family -> step -> reading; excerpts go to the families' first members."""
    contents = second.contents(source, families)
    by_step: dict[int, dict[int, list[Member]]] = {}
    for place in contents:
        for one in families[place].members:
            by_step.setdefault(one.step, {}).setdefault(place, []).append(one)
    jobs = [
        (step, found, {place: contents[place][0] for place in found})
        for step, found in sorted(by_step.items())
    ]
    readings: dict[int, dict[int, Reading]] = {place: {} for place in contents}
    for done, (step, found) in enumerate(work(partial(_reading, source, similarity), jobs), 1):
        tell(f"{done} of {len(jobs)} steps with recurring turns read again")
        for place, reading in found.items():
            readings[place][step] = reading
    for place, (_, excerpt) in contents.items():
        families[place].excerpt = excerpt
        families[place].members = _belonging(families[place], readings[place], similarity)
    return readings


def _belonging(family: Family, readings: dict[int, Reading], similarity: float) -> list[Member]:
    """Members that exact comparison leaves in a family."""
    exact = {step: iter(reading.likeness) for step, reading in readings.items()}
    return [
        one for one in family.members if one.step in exact and next(exact[one.step]) >= similarity
    ]


def _profiles(
    measures: Measures, families: Sequence[Family], readings: dict[int, dict[int, Reading]]
) -> list[Profile]:
    scans = {one.step: one for one in measures.scans}
    late = measures.steps[-measures.edge :]
    found: list[Profile] = []
    for place in sorted(readings, key=lambda place: worst_first(families[place])):
        family = families[place]
        if len(family.members) > 1:
            name = f"F{len(found) + 1}"
            found.append(profile(name, family, readings[place], scans, late, measures.cap))
            found[-1].excerpt_ids = family.excerpt
    return found


def _decode(about: About, profiles: Sequence[Profile], warnings: list[str]) -> None:
    if about.tokenizer is None or not profiles:
        return
    try:
        decoder = Decoder(about.tokenizer)
    except ValueError as error:
        warnings.append(f"Excerpts are token ids: {error}")
        return
    for one in profiles:
        one.excerpt = shortened(decoder.text(one.excerpt_ids))
        for kind in one.token_types:
            kind["text"] = decoder.text([int(kind["id"])])


@contextmanager
def _workers(size: int) -> Iterator[Work]:
    """Work in other processes where there is much of it, in order either way."""
    count = min(_PROCESSES, len(os.sched_getaffinity(0)))
    if size < _SMALL or count < 2:
        yield lambda work, of: map(work, of)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, pa.set_cpu_count, (1,)) as pool:
        yield lambda work, of: pool.map(work, of)
        pool.shutdown(cancel_futures=True)
