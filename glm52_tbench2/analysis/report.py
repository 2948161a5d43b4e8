"""RUN/report.html: one self-contained file that tells a run, live, finished or dead.

No network, no script but its own; everything from the run is escaped by jinja2 or by charts.
"""

import base64
import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from ..config.compose import to_yaml
from ..config.errors import UserError
from ..config.files import atomic_write_bytes
from ..config.paths import command, resolve, short
from ..config.schema import Advantage
from ..config.words import counted
from .charts import Layer, heat_table, numbers
from .conversations import Conversations, base64_text
from .facts import Facts, first_and_last, gather, window
from .figures import PUBLISHED_KL, beside_name, ends_figure, figures, times_figure
from .health import Health
from .maps import by_importance, maps
from .run_files import RunFiles
from .stats import task_means
from .transcript import COLUMNS, Decoder, Transcript, transcribe

REPORT_FILE = "report.html"
_BRIEF = ("identity", "code", "batch", "loss", "correction", "seed")
"""Highlights shown at the top."""


@dataclass(frozen=True)
class Tile:
    """One of the numbers at the top."""

    title: str
    value: str
    detail: str
    tone: str = ""
    """good, bad or nothing."""


@dataclass(frozen=True)
class EvalRow:
    """One held-out task: mean reward of each evaluation, None where it has none."""

    task: str
    means: list[float | None]
    first: float | None
    last: float | None

    @property
    def change(self) -> float:
        return 0.0 if self.first is None or self.last is None else self.last - self.first


@dataclass(frozen=True)
class Explored:
    """What the page's maps and conversations are made of, of one run."""

    prefix: str
    """Of the ids of its elements."""
    title: str
    data: dict[str, Any]
    health: Health
    conversations: Conversations
    words: dict[int, str]


def write_report(
    run_dir: str | Path, beside: str | Path | None = None, steps: range | None = None
) -> Path:
    """Writes RUN/report.html and returns its path.

    Args:
        beside: another run, whose curves, maps and conversations are shown beside this one's.
        steps: whose conversations come first where the page cannot take all.

    Raises UserError if either is not a run folder or none of `steps` is there, or the page cannot
    be written.
    """
    path = Path(run_dir) / REPORT_FILE
    run, other = RunFiles.open(run_dir), None if beside is None else RunFiles.open(beside)
    if steps is not None:
        have = sorted({step for one in (run, other) if one for step in one.steps("rollouts")})
        if not any(step in steps for step in have):
            told = f"; it has {have[0]} to {have[-1]}" if have else ""
            raise UserError(f"{short(run.path)} has none of these steps{told}.")
    page = render(run, other, steps).encode()
    try:
        atomic_write_bytes(path, page)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def render(run: RunFiles, other: RunFiles | None = None, steps: range | None = None) -> str:
    """The page."""
    runs = [run] if other is None else [run, other]
    decoders = [_decoder(one) for one in runs]
    explored = [
        _explore(one, place, steps, decoder)
        for place, (one, decoder) in enumerate(zip(runs, decoders, strict=True))
    ]
    facts = gather(run)
    transcripts = _transcripts(run, facts, decoders[0])
    highlights, known = _highlights(run), explored[0].health
    marks: dict[int, str] = {}
    for alarm in known.alarms:
        marks[alarm.step] = "\n".join(filter(None, (marks.get(alarm.step), alarm.sentence)))
    (ends, end_layers), (times, time_layers) = ends_figure(facts), times_figure(facts)
    columns, rows = _eval_table(facts)
    return template("report.html.j2").render(
        run=run,
        state=run.state,
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        steps_trained=max([*run.metrics.get("trainer", {}), *run.steps("train")], default=0),
        identity=run.identity,
        brief=[f"{name} {highlights[name]}" for name in _BRIEF if name in highlights],
        headline=headline(facts),
        tiles=_tiles(run, facts),
        highlights=list(highlights.items()),
        config_yaml=to_yaml(run.config),
        health=known,
        figures=figures(run, facts, marks, None if other is None else (other, gather(other))),
        heat=heat_table(
            list(facts.visits.items()),
            facts.steps,
            "Mean reward of each visit of each training task, by step",
        ),
        ends=ends,
        end_totals=[(one, facts.end_counts[one.name]) for one in end_layers],
        num_samples=facts.end_counts.total(),
        lost=sorted(facts.lost.items()),
        events=run.events(),
        times=times,
        time_totals=_time_totals(time_layers),
        eval_columns=columns,
        eval_rows=rows,
        transcripts=transcripts,
        explored=explored,
        explore_data=_inert([one.data for one in explored]),
        inert=_inert,
        other=None if other is None else beside_name(run, other),
        diff="" if other is None else command("diff", run.path, other.path),
        notes=[
            *_unsaid(run, facts),
            *(f"{one.name}: {said}" if other else said for one in runs for said in one.warnings),
        ],
        **assets(),
    )


def template(name: str) -> Template:
    """A page of page/; what it shows is escaped, and a name it lacks is an error."""
    environment = Environment(
        loader=PackageLoader("glm52_tbench2.analysis", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def assets() -> dict[str, str]:
    """What every page carries: css, js and js_hash."""
    page = Path(__file__).parent / "page"
    css = (page / "report.css").read_text()
    parts = ("report", "conversation", "explore")
    js = "\n".join((page / f"{name}.js").read_text() for name in parts)
    # The page's own script is the only one a browser will run in it.
    js_hash = base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()
    return {"css": Markup(css), "js": Markup(js), "js_hash": js_hash}


def headline(facts: Facts) -> str:
    """What happened to the held-out reward, in one sentence."""
    found = facts.held_out_change
    if found is None:
        if not facts.evals:
            return "No evaluation has been written: what training did cannot be said."
        step = min(facts.evals)
        when = f"after {counted(step, 'step')}" if step else "before training"
        return (
            f"Held-out reward {when}: {facts.held_out(step)}. There is no second evaluation to "
            "compare with."
        )
    first, last, change = found
    churn = f"{change.up} tasks up, {change.down} down, {change.same} the same"
    verb = {"rose": "rose", "fell": "fell", "unclear": "did not change clearly"}[change.verdict]
    return (
        f"Held-out reward {verb} between step {first} and step {last}: "
        f"{change.interval:+} over {change.interval.num_tasks} tasks ({churn})."
    )


def _tiles(run: RunFiles, facts: Facts) -> list[Tile]:
    tiles = []
    found = facts.held_out_change
    if found is not None:
        first, last, change = found
        before, after = facts.held_out(first), facts.held_out(last)
        assert before is not None and after is not None
        tiles.append(
            Tile(
                "Held-out reward",
                f"{before.mean:.2f} → {after.mean:.2f}",
                f"{before} → {after}",
                {"rose": "good", "fell": "bad", "unclear": ""}[change.verdict],
            )
        )
    elif facts.evals:
        only = facts.held_out(min(facts.evals))
        assert only is not None
        tiles.append(Tile("Held-out reward", f"{only.mean:.2f}", f"{only}, the only evaluation"))
    else:
        tiles.append(Tile("Held-out reward", "–", "no evaluation yet"))
    for title, points in (
        ("Training reward", facts.train_reward),
        ("Truncated share", facts.truncated),
    ):
        tiles.append(Tile(title, *first_and_last(points, window(run, facts))))
    kl = numbers(run.series("trainer/train_rollout_kl"))
    if kl:
        last_kl = list(kl.values())[-1]
        tone = "bad" if last_kl > 10 * PUBLISHED_KL.high else ""
        tiles.append(
            Tile("train_rollout_kl", f"{last_kl:.3g}", f"last step; {PUBLISHED_KL.label}", tone)
        )
    else:
        tiles.append(Tile("train_rollout_kl", "–", "no trainer metrics yet"))
    return tiles


def _highlights(run: RunFiles) -> dict[str, str]:
    config = run.config
    rollout, clip, optim = config.rollout, config.clip, config.optim
    correction = clip.correction.name
    if correction != "none":
        correction += f" [{clip.correction_low:g}, {clip.correction_high:g}]"
    evaluation = "none"
    if every := config.eval.every:
        evaluation = f"every {counted(every, 'step')} × {config.eval.samples_per_task} samples"
    std = clip.std_normalise and clip.advantage is Advantage.grpo
    found = {
        "model": f"{config.model.name}, {config.model.dtype.name}",
        "tasks": f"{config.data.train} trained, {config.data.eval} held out",
        "batch": f"{rollout.prompts_per_step} tasks × {rollout.samples_per_prompt} samples",
        "steps": f"{config.steps}, {counted(optim.steps_per_batch, 'optimizer step')} a batch",
        "rollout": f"{rollout.mode.name}, temperature {rollout.temperature:g}",
        "limits": f"{rollout.max_turn_tokens} tokens a turn, {rollout.max_session_tokens} an "
        f"episode, {rollout.max_turns} turns",
        "advantage": f"{clip.advantage.name}{', std' if std else ''}",
        "loss": f"{clip.loss.name}, {clip.reduction.name}, overlong {clip.overlong.name}",
        "correction": correction,
        "optimizer": f"Adam, lr {optim.lr:g}, gradient "
        + (f"clipped at {optim.clip_grad:g}" if optim.clip_grad else "not clipped"),
        "evaluation": evaluation,
        "seed": str(config.seed),
    }
    identity = run.identity
    if identity.get("hash"):
        found["identity"] = identity["hash"]
    made = identity.get("made") or {}
    if made.get("revision"):
        changed = " with uncommitted changes" if made.get("changes") else ""
        found["code"] = f"{made['revision'][:12]}{changed}"
    return found


def _time_totals(layers: Sequence[Layer]) -> list[tuple[Layer, float, float]]:
    """Each activity's mean seconds a step and its share of all."""
    totals = [sum(layer.points.values()) for layer in layers]
    whole, steps = sum(totals), len({step for layer in layers for step in layer.points})
    return [
        (layer, seconds / steps, seconds / whole)
        for layer, seconds in zip(layers, totals, strict=True)
    ]


def _eval_table(facts: Facts) -> tuple[list[int], list[EvalRow]]:
    columns = sorted(facts.evals)
    means = [task_means(facts.evals[step]) for step in columns]
    tasks = sorted({task for found in means for task in found})
    rows = [
        EvalRow(
            task,
            [found.get(task) for found in means],
            means[0].get(task),
            means[-1].get(task) if len(means) > 1 else None,
        )
        for task in tasks
    ]
    return columns, sorted(rows, key=lambda row: (-row.change, row.task))


def _decoder(run: RunFiles) -> Decoder | ValueError:
    """The run's decoder, or why there is none."""
    try:
        return Decoder(resolve(run.config.model.path))
    except ValueError as error:
        return error


def _transcripts(run: RunFiles, facts: Facts, decoder: Decoder | ValueError) -> list[Transcript]:
    if isinstance(decoder, ValueError) and facts.examples:
        run.warnings.append(f"Transcripts show no model text: {decoder}.")
    known = decoder if isinstance(decoder, Decoder) else None
    order = list(facts.ends) + [reason for reason in facts.examples if reason not in facts.ends]
    found = []
    for reason in order:
        row = run.sample(*facts.examples[reason], COLUMNS)
        if row is not None:
            found.append(transcribe(row, known))
    return found


def _explore(
    run: RunFiles, place: int, steps: range | None, decoder: Decoder | ValueError
) -> Explored:
    data, known = maps(run)
    conversations = Conversations()
    wanted = by_importance(data, known.alarms)
    conversations.add(run, wanted if steps is None else _first(steps, wanted))
    words: dict[int, str] = {}
    if isinstance(decoder, Decoder):
        pieces = decoder.pieces(sorted(conversations.ids))
        words = {number: base64_text(piece) for number, piece in pieces.items()}
    elif conversations.ids:
        run.warnings.append(f"Conversations show numbers for tokens: {decoder}.")
    prefix = f"r{place}-"
    data |= {"prefix": prefix, "vocabulary": f"{prefix}words"}
    return Explored(prefix, run.name, data, known, conversations, words)


def _first(steps: range, wanted: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    return sorted(wanted, key=lambda one: one[0] not in steps)


def _inert(content: Any) -> Markup:
    """JSON that cannot end the element it stands in."""
    return Markup(json.dumps(content, allow_nan=False).replace("<", "\\u003c"))


def _unsaid(run: RunFiles, facts: Facts) -> list[str]:
    """What the page cannot tell, and why."""
    notes = []
    if not facts.steps:
        notes.append("No training batch has been written yet: nothing is known of training.")
    elif len(facts.steps) == 1:
        notes.append("One step has been generated: no trend can be seen.")
    if len(facts.evals) < 2:
        notes.append(
            f"{len(facts.evals) or 'No'} evaluation so far: held-out reward before and after "
            "cannot be compared."
        )
    if not run.metrics.get("trainer"):
        notes.append(
            "The trainer has written no metrics: mismatch, gradient, entropy and the time it "
            "takes are unknown."
        )
    same = numbers(run.series("trainer/mismatch/zero_share"))
    if same and max(same.values()) > 0.99:
        step = max(same, key=lambda s: same[s])
        notes.append(
            f"At step {step} the trainer's log-probs equal the engine's on "
            f"{same[step]:.1%} of the tokens: check that the trainer scores with its own forward, "
            "the mismatch metrics may say nothing."
        )
    lost = numbers(run.series("trainer/mismatch/nonfinite_share"))
    if lost and max(lost.values()) > 0:
        notes.append("Some log-probs are not finite; they are left out of the mismatch metrics.")
    found = facts.held_out_change
    if found is not None and found[2].verdict == "unclear":
        notes.append(
            "The interval of the held-out change holds 0: more tasks, samples a task or seeds "
            "would tell."
        )
    return notes
