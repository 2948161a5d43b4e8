"""The results of an evaluation by itself, as text: printed at its end."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from ..config.pass_at_k import PASS, ks
from ..config.paths import command, short
from ..config.words import counted
from .pass_at_k import over_tasks
from .run_files import Row, RunFiles
from .stats import mean_interval

_COLUMNS = ("task_id", "end_reason", "reward", "truncated", "turns", "loss_mask")


def evaluation(run_dir: Path) -> str:
    """Reward and pass@k with their intervals over tasks, how episodes ended, and what it took.

    Reads files only; raises UserError when `run_dir` is not a run folder.
    """
    run = RunFiles.open(run_dir)
    rows, stats = run.rows("eval", 0, _COLUMNS), run.stats("eval", 0)
    lines = [f"{run.name}: {_what(run)} on {run.config.data.eval}", ""]
    facts = [*_scores(rows), *_costs(rows, stats)] if rows else []
    facts += [("warning", text) for text in run.warnings]
    facts += [("results", short(run.path / "results.jsonl"))]
    facts += [("episodes", command("samples", run.path, "--eval"))]
    return "\n".join([*lines, *(f"  {name:<12} {text}" for name, text in facts)])


def _what(run: RunFiles) -> str:
    engine, origin = run.config.engine, run.identity.get("made", {}).get("origin") or {}
    if engine.url is not None:
        return f"{origin['served'][0]} at {engine.url}"
    if "evaluates" in origin:
        return f"version {origin['version']} of {origin['evaluates']}"
    return run.config.model.path


def _scores(rows: Sequence[Row]) -> list[tuple[str, str]]:
    rewards: dict[str, list[float]] = {}
    for row in rows:
        rewards.setdefault(row["task_id"], []).append(row["reward"])
    counts = {
        task: (len(values), sum(value >= PASS for value in values))
        for task, values in rewards.items()
    }
    found = [("reward", f"{mean_interval(rewards)}")]
    for k in ks(max(n for n, _ in counts.values())):
        fewer = sum(n < k for n, _ in counts.values())
        without = f", without {counted(fewer, 'task')} of fewer samples" if fewer else ""
        found.append((f"pass@{k}", f"{over_tasks(counts, k)}{without}"))
    solved = sum(passes > 0 for _, passes in counts.values())
    found.append(("solved", f"{solved} of {len(counts)} tasks at least once"))
    return found


def _costs(rows: Sequence[Row], stats: dict[str, float]) -> list[tuple[str, str]]:
    ends = Counter(row["end_reason"] for row in rows)
    generated = sum(sum(row["loss_mask"]) for row in rows)
    found = [
        ("truncated", f"{mean(row['truncated'] for row in rows):.1%}"),
        ("ends", ", ".join(f"{name} {count}" for name, count in ends.most_common())),
        ("turns", f"{mean(len(row['turns']) for row in rows):.1f} a sample"),
        ("tokens", f"{generated} generated, {generated / len(rows):.0f} a sample"),
    ]
    if (counted := stats.get("counted_tokens")) is not None:
        found.append(("", f"{counted:.0f} as the endpoint counts them"))
    over = int(stats.get("taken_over", 0))
    since = f" since the last start, which had {over} samples already" if over else ""
    found.append(("wall clock", f"{stats.get('wall_s', 0.0):.0f} s{since}"))
    missing = int(stats.get("missing", 0))
    found.append(("samples", f"{len(rows)}" + f", {missing} got no verdict" * bool(missing)))
    return found
