"""Runs compared: their recorded facts, their outcomes, and the page."""

import html
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from glm52_tbench2 import cli
from glm52_tbench2.analysis.diff.causes import Verdict
from glm52_tbench2.analysis.diff.comparison import Comparison, as_json, compared
from glm52_tbench2.analysis.diff.page import render
from glm52_tbench2.analysis.stats import paired_change, sign_test
from glm52_tbench2.config import identity, metrics_log
from glm52_tbench2.config.classes import Effect
from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.tasks.sets import load_set

from . import fake_run
from .fake_run import FakeRun
from .pages import in_browser

STEPS = 50
BASE = ("experiment=smoke", f"steps={STEPS}")


def identified(fake: FakeRun, *overrides: str, **how: Any) -> Path:
    """Writes the run as `overrides` of its config would have been started from here."""
    config, recorded = started(overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_run, "IDENTITY", recorded.hash)
        run = fake.write(**how)
    save_run_config(config, run)
    identity.save_identity(recorded, run, [])
    return run


@cache
def started(overrides: tuple[str, ...]) -> tuple[RunConfig, identity.Identity]:
    config = compose([*BASE, *overrides])
    sets = [load_set(config.data.train), load_set(config.data.eval)]
    return config, identity.identify(config, sets)


@pytest.fixture(scope="module", autouse=True)
def one_code() -> Iterator[None]:
    """A file saved while these tests run is no difference between the runs they make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "sources", cache(identity.sources))
        told = identity.Git().told()
        patch.setattr(identity.Git, "told", lambda _: told)
        yield


Write = Callable[..., Path]


@pytest.fixture(scope="module")
def pair(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A healthy run, and a diverging one on 8 tasks. Read only."""
    folder = tmp_path_factory.mktemp("pair")
    healthy, diverging = (
        FakeRun(folder / name, tokenizer, steps=STEPS, drift=drift)
        for name, drift in (("healthy", 0.0), ("diverging", 0.08))
    )
    return (
        identified(healthy, eval_every=25),
        identified(diverging, "data=mini8", eval_every=25),
    )


@pytest.fixture
def write(tokenizer: Tokenizer, tmp_path: Path) -> Write:
    """Writes a run of 4 steps under a name, free to be damaged."""

    def make(name: str, *overrides: str, upto: int = 4, **changes: Any) -> Path:
        run = FakeRun(tmp_path / name, tokenizer, steps=4, **changes)
        return identified(run, *overrides, upto=upto, eval_every=2, finished=upto == 4)

    return make


def facts(run: Path, **changes: Any) -> None:
    """Replaces facts of a run's identity; those of `made` as made__NAME."""
    path = run / "identity.json"
    content = json.loads(path.read_text())
    for name, value in changes.items():
        inner, _, key = name.partition("__")
        if key:
            content[inner][key] = value
        else:
            content[name] = value
    path.write_text(json.dumps(content))


def diff(*sides: object) -> Comparison:
    return compared([str(side) for side in sides])


def cell(found: Comparison, row: str, label: str) -> dict[str, Any]:
    rows = {one["name"]: one for one in as_json(found)["outcomes"]}
    return rows[row]["values"][label]


def test_a_run_is_the_same_as_itself_and_as_its_experiment(pair: tuple[Path, Path]) -> None:
    found = diff(pair[0], pair[0])
    assert found.equal
    assert f"glm52 verify {pair[0]} {pair[0]}" in found.conclusions[0][0].sentence
    assert diff(pair[0], " ".join(BASE)).equal


def test_outcomes_of_a_diverging_run_tell_what_happened(pair: tuple[Path, Path]) -> None:
    found = diff(*pair)
    assert [one.name for one in found.differences] == ["data.train"]
    assert found.conclusions[0][0].verdict is Verdict.clean
    assert cell(found, "kl_trend", "A")["verdict"] == "no trend"
    grown = cell(found, "kl_trend", "B")
    assert grown["verdict"] == "rising" and grown["low"] > 0.05
    # D grows by exp(0.08) a step and k3 with its square, until it saturates.
    assert 4 < grown["doubling_steps"] < 9
    assert cell(found, "truncated", "B")["last"] > cell(found, "truncated", "A")["last"]
    assert cell(found, "training_reward", "A")["last"] > cell(found, "training_reward", "B")["last"]
    assert cell(found, "state", "A") == {
        "text": "finished, step 50/50",
        "state": "finished",
        "steps": 50,
    }


def test_numbers_are_those_of_the_files(pair: tuple[Path, Path]) -> None:
    found = diff(*pair)
    readings = [run.held_out(STEPS) for run in found.runs]
    change = paired_change(*readings)
    assert change is not None
    paired = cell(found, "held_out_paired", "B")
    assert (paired["up"], paired["down"], paired["same"]) == (change.up, change.down, change.same)
    assert paired["p"] == sign_test(change.up, change.down)
    assert paired["mean"] == change.interval.mean and paired["step"] == STEPS
    rewards = found.runs[0].series("rollout/reward_mean")
    window = cell(found, "training_reward", "A")["window"]
    assert window == 9  # 69 tasks at 8 a step
    assert cell(found, "training_reward", "A")["first"] == pytest.approx(
        sum(rewards[step] for step in range(1, window + 1)) / window
    )
    tokens = found.runs[0].series("rollout/generated_tokens")
    assert cell(found, "tokens", "A")["trained"] == sum(tokens.values())
    shares = [
        one["values"]["A"]["share"]
        for one in as_json(found)["outcomes"]
        if one["name"].startswith("end/")
    ]
    assert sum(shares) == pytest.approx(1)


def test_rows_that_measure_something_else_are_marked(pair: tuple[Path, Path]) -> None:
    comparable = {one.key: one.comparable for one in diff(*pair).outcomes}
    assert not comparable["training_reward"] and not comparable["kl_trend"]
    # Both are evaluated on the same tasks under the same limits.
    assert comparable["held_out_paired"] and comparable["hours"]
    assert all(one.comparable for one in diff(pair[0], pair[0]).outcomes)


def test_a_composed_side_marks_nothing_in_the_outcomes_of_runs(pair: tuple[Path, Path]) -> None:
    found = diff(pair[0], pair[0], "experiment=smoke data=mini8")
    assert found.incomparable
    assert all(one.comparable for one in found.outcomes)
    assert [bool(one.incomparable) for one, _ in found.conclusions] == [False, True]


def test_wall_clock_is_from_the_first_record_to_the_last(write: Write) -> None:
    runs = [write("a"), write("b")]
    lines = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line["time"] = 1000.0 + 3600 * number
    (runs[0] / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    hours = cell(diff(*runs), "hours", "A")
    spent = lines[0]["metrics"]["time/eval_s"]
    assert hours["wall_s"] == pytest.approx(3600 * (len(lines) - 1) + spent)
    assert "of it in steps" in hours["text"]
    # An evaluation lies within the time of the step after it, but the last one.
    told = [(line["step"], line["metrics"]) for line in lines]
    steps = {step: one["time/train_step"] for step, one in told if "time/train_step" in one}
    evals = {step: one["time/eval_s"] for step, one in told if "time/eval_s" in one}
    assert 0 in evals and max(evals) == max(steps)
    saved = sum(one.get("time/train_checkpoint", 0.0) for _, one in told)
    assert hours["busy_s"] == pytest.approx(sum(steps.values()) + evals[max(steps)] + saved)


def test_the_last_evaluation_that_both_have_is_paired(write: Write) -> None:
    found = diff(write("a"), write("b", upto=3))
    assert cell(found, "held_out_paired", "B")["step"] == 2
    assert cell(found, "held_out_after", "A")["step"] == 4
    assert cell(found, "held_out_after", "B")["step"] == 2
    assert cell(found, "state", "B")["state"] == "stopped"


def test_two_definitions_of_a_metric_are_not_compared(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write("old")
    monkeypatch.setitem(metrics_log.DEFINITIONS, "trainer/train_rollout_kl", 2)
    found = diff(old, write("new"))
    assert "first" in cell(found, "kl", "A")
    refused = cell(found, "kl", "B")
    assert refused == {
        "text": "another definition of trainer/train_rollout_kl (2; 1 in A): not compared",
        "definition": 2,
    }
    assert "first" in cell(found, "training_reward", "B")
    charts = re.findall(r"<h3>(.*?)</h3><p>(.*?)</p>", render(found))
    assert [title for title, _ in charts].count("train_rollout_kl") == 2
    assert [title for title, _ in charts].count("Training reward") == 1
    assert "different definitions" in dict(charts)["train_rollout_kl"]


def test_facts_beside_the_config_have_classes(write: Write) -> None:
    runs = [write("a"), write("b")]
    facts(
        runs[1],
        code="d" * 64,
        model="e" * 64,
        packages={"torch": "0.1"},
        made__revision="f" * 40,
        made__machine={"cpu": "another"},
    )
    found = diff(*runs)
    effects = {one.name: one.effect for one in found.differences}
    assert effects["code"] is effects["starting weights"] is effects["torch"] is Effect.training
    assert effects["cpu"] is Effect.speed
    (one, plan), *_ = found.conclusions
    assert {cause.name for cause in one.causes} == {
        "the code",
        "the packages (torch)",
        "starting weights",
    }
    assert one.verdict is Verdict.confounded
    assert len(plan.inseparable) == 3


def test_what_a_queued_runs_node_has_not_told_yet_does_not_differ(write: Write) -> None:
    runs = [write("a"), write("b")]
    facts(
        runs[1], packages={"torch": identity.NODE_TELLS}, made__machine={"cpu": identity.NODE_TELLS}
    )
    assert not {"torch", "cpu"} & {one.name for one in diff(*runs).differences}


def test_another_revision_with_the_same_files_is_cosmetic(write: Write) -> None:
    runs = [write("a"), write("b")]
    facts(runs[1], made__revision="f" * 40)
    (one,) = diff(*runs).differences
    assert (one.name, one.effect) == ("code", Effect.cosmetic)


def test_changed_source_and_task_files_are_named(write: Write) -> None:
    runs = [write("a"), write("b")]
    made = json.loads((runs[1] / "identity.json").read_text())
    task = made["made"]["task_ids"]["mini/eval20"][0]
    made["made"]["task_files"][task] = "0" * 12
    made["tasks"]["mini/eval20"] = "0" * 64
    made["code"], made["made"]["sources"]["trainer/step.py"] = "0" * 64, "0" * 12
    (runs[1] / "identity.json").write_text(json.dumps(made))
    found = {one.name: one for one in diff(*runs).differences}
    assert found["files of data.eval"].detail == f"changed in B: {task}"
    assert found["files of data.eval"].effect is Effect.measured
    assert found["code"].detail.startswith("changed in B: trainer/step.py")


def test_a_renamed_task_set_is_cosmetic(write: Write) -> None:
    runs = [write("a"), write("b")]
    path = runs[1] / "config.yaml"
    path.write_text(path.read_text().replace("mini/mini69", "mini/renamed"))
    content = (runs[1] / "identity.json").read_text().replace("mini/mini69", "mini/renamed")
    (runs[1] / "identity.json").write_text(content)
    (one,) = diff(*runs).differences
    assert (one.name, one.effect) == ("data.train", Effect.cosmetic)


def test_a_knob_of_another_version_is_a_difference(write: Write) -> None:
    runs = [write("a"), write("b")]
    path = runs[1] / "config.yaml"
    text = path.read_text().replace("seed: 1\n", "seed: 1\nold_knob: 3\n")
    path.write_text(text.replace("  dppo_delta: 0.2\n", ""))
    found = {one.name: one for one in diff(*runs).differences}
    assert set(found) == {"old_knob", "clip.dppo_delta"}
    assert dict(found["old_knob"].values) == {"B": 3}
    assert dict(found["clip.dppo_delta"].values) == {"A": 0.2}


def test_an_identity_of_an_older_format_is_read(write: Write) -> None:
    runs = [write("a"), write("b")]
    for run, changes in zip(runs, ("", "abc"), strict=True):
        content = json.loads((run / "identity.json").read_text())
        del content["made"], content["tasks"]
        content["code"] = {"revision": "f" * 40, "changes": changes}
        (run / "identity.json").write_text(json.dumps(content))
    (one,) = diff(*runs).differences
    assert (one.name, one.effect) == ("code", Effect.training)


def test_a_lost_identity_and_a_resume_as_another_run_are_noted(write: Write) -> None:
    runs = [write("a"), write("b")]
    (runs[0] / "identity.json").unlink()
    facts(runs[1], history=[{"time": 1.0, "differences": ["config seed: 1 -> 2"]}])
    notes = " ".join(diff(*runs).notes)
    assert "A: its identity.json is not readable" in notes
    assert "B: it was resumed as another run than it was started as: config seed: 1 -> 2" in notes


def test_a_run_that_has_just_begun_has_few_outcomes(write: Write) -> None:
    found = diff(write("a"), write("b", upto=0))
    assert cell(found, "training_reward", "B") == {"text": "–"}
    assert cell(found, "held_out_paired", "B")["step"] == 0
    json.dumps(as_json(found), allow_nan=False)


def test_runs_and_experiments_mix(pair: tuple[Path, Path]) -> None:
    found = diff("smoke", pair[1])
    assert {one.name for one in found.differences} == {"steps", "data.train"}
    assert [run.side.label for run in found.runs] == ["B"]
    assert "held_out_paired" not in {one.key for one in found.outcomes}
    assert any("would run with this checkout" in note for note in found.notes)
    other = f"experiment=smoke steps={STEPS} optim.lr=1e-5"
    experiments = [run.command for run in diff(pair[1], other).conclusions[0][1].experiments]
    base = f"glm52 train experiment=smoke steps={STEPS}"
    assert experiments == [
        f"{base} data=mini69",
        f"glm52 train experiment=smoke data=mini8 steps={STEPS} optim.lr=1e-05",
    ]


def test_a_damaged_evaluation_is_named_and_another_is_compared(write: Write) -> None:
    runs = [write("a"), write("b")]
    path = runs[1] / "eval" / "step_000004.parquet"
    path.write_bytes(path.read_bytes()[:200])
    found = diff(*runs)
    assert cell(found, "held_out_paired", "B")["step"] == 2
    assert any(note.startswith("B: eval/step_000004.parquet") for note in found.notes)


def test_the_page_holds_the_comparison_and_runs_in_a_browser(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sub" / "diff.html"
    assert cli.main(["diff", *map(str, pair), "--html", str(path)]) == 1
    page = html.unescape(path.read_text())
    assert "A clean comparison" in page and "Step curves are not comparable" in page
    assert "data.train" in page and "changes what is measured" in page
    assert set(re.findall(r"https?://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r'(?:src|href)="(?!#)', page)
    elements, console = in_browser(path)
    assert console == ""
    assert re.search(r'<html[^>]*data-charts="(\d+)"', elements)
    # Reward, KL and truncation apart, held-out rewards together.
    assert elements.count("<svg") == 7


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--html FILE"):
        from glm52_tbench2.analysis.diff.page import write_page

        write_page(diff("smoke", "smoke"), tmp_path / "file" / "diff.html")


def test_text_from_a_run_is_escaped(write: Write) -> None:
    runs = [write("a"), write("b")]
    path = runs[1] / "config.yaml"
    path.write_text(path.read_text().replace("seed: 1\n", "seed: <script>x</script>\n"))
    assert "<script>x" not in render(diff(*runs))
