"""The charts of the report: which curves, over what, in which words and colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from .charts import Layer, Points, Range, Series, Style, line_chart, stacked_bars
from .facts import Facts, window
from .run_files import RunFiles
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


def figures(run: RunFiles, facts: Facts, marks: Mapping[int, str]) -> list[Figure]:
    """The curves, in the order they are read. `marks`: step -> what the sentinel said."""
    count = window(run, facts)
    smooth = dict(
        zip(facts.steps, moving_mean(list(facts.train_reward.values()), count), strict=True)
    )
    held_out = {step: found for step in facts.evals if (found := facts.held_out(step))}
    mismatch = "trainer/mismatch"

    def curve(title: str, hint: str, series: Sequence[Series], **how: Any) -> Figure:
        return _line_figure(title, hint, series, marks=marks, **how)

    return [
        curve(
            "Training reward",
            f"Mean verdict of the batch: a dot a step; the line is the mean of the last {count}.",
            [
                Series("step", facts.train_reward, 1, Style.dots),
                Series(f"mean of {count} steps", smooth, 2),
            ],
            limits=(0.0, None),
        ),
        curve(
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
        curve(
            "Truncated share",
            "Samples cut by the per-turn cap or the session budget.",
            [Series("training batch", facts.truncated, 1)],
            limits=(0.0, None),
        ),
        curve(
            "train_rollout_kl",
            "Mean over samples of the clamped KL from engine to trainer; it saturates at 10 a "
            "token. The published healthy run, 0.022 to 0.054, is shaded where it is in reach.",
            [Series("train_rollout_kl", run.series("trainer/train_rollout_kl"), 1)],
            log=True,
            reference=PUBLISHED_KL,
        ),
        curve(
            "|log-prob difference|, trainer and engine",
            "Unclamped, over generated tokens, before the update.",
            [
                Series("median", run.series(f"{mismatch}/abs_p50"), 1),
                Series("mean", run.series(f"{mismatch}/abs_mean"), 2),
                Series("99 %", run.series(f"{mismatch}/abs_p99"), 3),
                Series("99.9 %", run.series(f"{mismatch}/abs_p999"), 4),
            ],
            log=True,
        ),
        curve(
            "The same by kind of token",
            "Mean |difference|; a divergence shows in one kind first.",
            [
                Series("A > 0", run.series(f"{mismatch}/advantage_positive/abs_mean"), 1),
                Series("A < 0", run.series(f"{mismatch}/advantage_negative/abs_mean"), 2),
                Series("truncated", run.series(f"{mismatch}/truncated/abs_mean"), 4),
                Series("not truncated", run.series(f"{mismatch}/not_truncated/abs_mean"), 3),
            ],
            log=True,
        ),
        curve(
            "The same on turns near the cap",
            "Mean |difference| on turns of at least 0.9 of the per-turn cap, and in truncated "
            "samples that are pushed down.",
            [
                Series("near the cap", run.series(f"{mismatch}/turn_near_cap/abs_mean"), 4),
                Series(
                    "A < 0, truncated",
                    run.series(f"{mismatch}/advantage_negative_truncated/abs_mean"),
                    2,
                ),
                Series("all", run.series(f"{mismatch}/abs_mean"), 1),
            ],
            log=True,
        ),
        curve(
            "Gradient norm",
            "Before clipping; of all samples, and of those that are pulled up or pushed down.",
            [
                Series("all", run.series("trainer/grad_norm"), 1),
                Series("A > 0", run.series("trainer/grad_norm_positive"), 4),
                Series("A < 0", run.series("trainer/grad_norm_negative"), 2),
            ],
            limits=(0.0, None),
        ),
        curve(
            "Entropy",
            "Of the policy at the rollout's temperature, nats a generated token.",
            [Series("entropy", run.series("trainer/entropy"), 1)],
            limits=(0.0, None),
        ),
        curve(
            "Groups without signal",
            "Share of groups whose samples all have the same reward, and so no gradient.",
            [Series("groups without signal", run.series("rollout/zero_signal_share"), 1)],
            limits=(0.0, None),
        ),
        curve(
            "Tokens a turn",
            "Mean length of a generated turn.",
            [Series("tokens a turn", run.series("rollout/turn_tokens_mean"), 1)],
            limits=(0.0, None),
        ),
    ]


def _line_figure(
    title: str,
    hint: str,
    series: Sequence[Series],
    *,
    marks: Mapping[int, str],
    log: bool = False,
    limits: tuple[float | None, float | None] = (None, None),
    reference: Range | None = None,
) -> Figure:
    chart = line_chart(
        series, f"{title} by step", log=log, limits=limits, reference=reference, marks=marks
    )
    legend = [(one.colour, one.name) for one in series if one.points] if len(series) > 1 else []
    return Figure(title, hint + (" Log axis." if log else ""), chart, legend)


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
