"""The charts of the report: which curves, over what, in which words and colours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from markupsafe import Markup

from .charts import Layer, Points, Range, Series, Style, line_chart, stacked_bars
from .facts import Facts, window
from .run_files import RunFiles, definitions_differ
from .stats import moving_mean

PUBLISHED_KL = Range(0.022, 0.054, "the published healthy run: 0.022 to 0.054")


# The same name has the same colour in every run's report; what is cut short is warm.
_END_COLOURS = {
    "task_complete": 1,
    "max_turns": 3,
    "no_command": 5,
    "timeout": 7,
    "budget": 4,
    "length": 2,
}
_TIME_COLOURS = {
    "generate": 1,
    "sandbox": 2,
    "verify": 5,
    "train": 4,
    "sync": 3,
    "evaluate": 6,
    "idle": 8,
}
_OTHER_COLOUR = 6


@dataclass(frozen=True)
class Figure:
    """One chart with its words; `chart` is None where there is nothing to draw."""

    title: str
    hint: str
    chart: Markup | None
    legend: list[tuple[int, str]]


def beside_name(run: RunFiles, other: RunFiles) -> str:
    """What the other run is called beside this one."""
    return other.name if other.name != run.name else f"{other.path.parent.name}/{other.name}"


@dataclass(frozen=True)
class _Curves:
    """What one figure draws of a run."""

    title: str
    hint: str
    series: list[Series]
    log: bool = False
    limits: tuple[float | None, float | None] = (None, None)
    reference: Range | None = None


def figures(
    run: RunFiles,
    facts: Facts,
    marks: Mapping[int, str],
    other: tuple[RunFiles, Facts] | None = None,
) -> list[Figure]:
    """The curves, in the order they are read.

    `marks`: step -> what the sentinel said. The curves of `other` are drawn into the same charts,
    dashed, but for metrics that it defines otherwise, which a warning names.
    """
    found = _curves(run, facts, run.series)
    if other is None:
        return [_line_figure(one, [], marks) for one in found]
    theirs, their_facts = other

    def comparable(name: str) -> Points:
        if reason := definitions_differ([run, theirs], name):
            run.warn(f"{reason}: its curve is {run.name}'s alone.")
            return {}
        return theirs.series(name)

    def dashed(series: Series) -> Series:
        return replace(series, name=f"{series.name}, {beside_name(run, theirs)}", dashed=True)

    return [
        _line_figure(one, [dashed(series) for series in their.series], marks)
        for one, their in zip(found, _curves(theirs, their_facts, comparable), strict=True)
    ]


def _curves(run: RunFiles, facts: Facts, metric: Callable[[str], Points]) -> list[_Curves]:
    """`metric`: name -> step -> value."""
    count = window(run, facts)
    smooth = dict(
        zip(facts.train_reward, moving_mean(list(facts.train_reward.values()), count), strict=True)
    )
    held_out = {step: found for step in facts.evals if (found := facts.held_out(step))}
    mismatch = "trainer/mismatch"
    split = run.config.optim.grad_split_every or 1
    return [
        _Curves(
            "Training reward",
            f"Mean verdict of the batch: a dot a step; the line is the mean of the last {count}.",
            [
                Series("step", facts.train_reward, 1, Style.dots),
                Series(f"mean of {count} steps", smooth, 2),
            ],
            limits=(0.0, None),
        ),
        _Curves(
            "Held-out reward",
            "Mean over held-out tasks with its 95 % interval over tasks.",
            [
                Series(
                    "held out",
                    {step: found.mean for step, found in held_out.items()},
                    2,
                    Style.marked,
                    {step: (found.low, found.high) for step, found in held_out.items()},
                )
            ],
            limits=(0.0, None),
        ),
        _Curves(
            "Truncated share",
            "Samples cut by the per-turn cap or the session budget.",
            [Series("training batch", facts.truncated, 1)],
            limits=(0.0, None),
        ),
        _Curves(
            "train_rollout_kl",
            "Mean over samples of the clamped KL from engine to trainer; it saturates at 10 a "
            "token. The published healthy run, 0.022 to 0.054, is shaded where it is in reach.",
            [Series("train_rollout_kl", metric("trainer/train_rollout_kl"), 1)],
            log=True,
            reference=PUBLISHED_KL,
        ),
        _Curves(
            "|log-prob difference|, trainer and engine",
            "Unclamped, over generated tokens, before the update.",
            [
                Series("median", metric(f"{mismatch}/abs_p50"), 1),
                Series("mean", metric(f"{mismatch}/abs_mean"), 2),
                Series("99 %", metric(f"{mismatch}/abs_p99"), 3),
                Series("99.9 %", metric(f"{mismatch}/abs_p999"), 4),
            ],
            log=True,
        ),
        _Curves(
            "The same by kind of token",
            "Mean |difference|; a divergence shows in one kind first.",
            [
                Series("A > 0", metric(f"{mismatch}/advantage_positive/abs_mean"), 1),
                Series("A < 0", metric(f"{mismatch}/advantage_negative/abs_mean"), 2),
                Series("truncated", metric(f"{mismatch}/truncated/abs_mean"), 4),
                Series("not truncated", metric(f"{mismatch}/not_truncated/abs_mean"), 3),
            ],
            log=True,
        ),
        _Curves(
            "The same on turns near the cap",
            "Mean |difference| on turns of at least 0.9 of the per-turn cap, and in truncated "
            "samples that are pushed down.",
            [
                Series("near the cap", metric(f"{mismatch}/turn_near_cap/abs_mean"), 4),
                Series(
                    "A < 0, truncated",
                    metric(f"{mismatch}/advantage_negative_truncated/abs_mean"),
                    2,
                ),
                Series("all", metric(f"{mismatch}/abs_mean"), 1),
            ],
            log=True,
        ),
        _Curves(
            "Gradient norm",
            "Before clipping; of all samples, and of those that are pulled up or pushed down.",
            [
                Series("all", metric("trainer/grad_norm"), 1),
                Series("A > 0", metric("trainer/grad_norm_positive"), 4, every=split),
                Series("A < 0", metric("trainer/grad_norm_negative"), 2, every=split),
            ],
            limits=(0.0, None),
        ),
        _Curves(
            "Entropy",
            "Of the policy at the rollout's temperature, nats a generated token.",
            [Series("entropy", metric("trainer/entropy"), 1)],
            limits=(0.0, None),
        ),
        _Curves(
            "Groups without signal",
            "Share of groups whose samples have one reward, penalty included, and so no gradient.",
            [Series("groups without signal", metric("rollout/zero_signal_share"), 1)],
            limits=(0.0, None),
        ),
        _Curves(
            "Tokens a turn",
            "Mean length of a generated turn.",
            [Series("tokens a turn", metric("rollout/turn_tokens_mean"), 1)],
            limits=(0.0, None),
        ),
    ]


def _line_figure(curves: _Curves, beside: Sequence[Series], marks: Mapping[int, str]) -> Figure:
    chart = line_chart(
        [_parted(one) for one in (*curves.series, *beside)],
        f"{curves.title} by step",
        log=curves.log,
        limits=curves.limits,
        reference=curves.reference,
        marks=marks,
    )
    several = len(curves.series) > 1
    drawn = [
        (one.colour, one.name)
        for one, their in zip_longest(curves.series, beside)
        if several and (one.points or (their and their.points))
    ]
    return Figure(curves.title, curves.hint + (" Log axis." if curves.log else ""), chart, drawn)


def _parted(series: Series) -> Series:
    """A line of what every step has, unless it says otherwise, is parted where a step lacks it."""
    return replace(series, every=series.every or 1) if series.style is Style.line else series


def ends_figure(facts: Facts) -> tuple[Figure, list[Layer]]:
    """End reasons by step, and its layers."""
    layers = _layers(facts.ends, _END_COLOURS)
    return _stack(layers, "End reasons by step", "Share of the batch by end reason"), layers


def times_figure(facts: Facts) -> tuple[Figure, list[Layer]]:
    """Where the wall clock went by step, and its layers."""
    layers = _layers(facts.times, _TIME_COLOURS)
    return _stack(layers, "Seconds by step", "Seconds of wall clock by activity", " s"), layers


def _layers(points: Mapping[str, Points], colours: Mapping[str, int]) -> list[Layer]:
    """Layers in the order of `colours`, then those it does not name."""
    names = [name for name in colours if name in points]
    names += [name for name in points if name not in colours]
    return [Layer(name, points[name], colours.get(name, _OTHER_COLOUR)) for name in names]


def _stack(layers: Sequence[Layer], title: str, label: str, unit: str = "") -> Figure:
    legend = [(layer.colour, layer.name) for layer in layers]
    return Figure(title, "", stacked_bars(layers, label, unit), legend)
