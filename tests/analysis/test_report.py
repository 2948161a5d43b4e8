"""The page: in a real browser, and on runs that are new, dead or damaged."""

import html
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from glm52_tbench2.analysis.facts import gather
from glm52_tbench2.analysis.report import headline, write_report
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.errors import UserError

from .pages import in_browser, notes, page_of, section


def test_a_browser_runs_the_page_without_an_error_and_draws_every_curve(finished_run: Path) -> None:
    elements, console = in_browser(write_report(finished_run))
    assert console == ""
    ready = re.search(r'<html[^>]*data-charts="(\d+)"', elements)
    assert ready, "the script did not come to its end"
    assert int(ready[1]) == len(re.findall(r"<svg[^>]* data-chart=", elements))
    curves = section(elements, "curves")
    assert curves.count("<figure") == curves.count("<svg") == 11
    assert len(re.findall(r'class="line c\d" d="M[^"]{20,}"', curves)) >= 15
    assert elements.count('class="cursor"') == int(ready[1])


def test_a_script_that_a_run_smuggles_in_does_not_run(
    write_run: Callable[..., Path],
) -> None:
    attack = "<script>document.documentElement.dataset.owned = 1</script>"
    attack += '<img src=x onerror="document.documentElement.dataset.owned = 1">'
    run_dir = write_run(1, words=attack)
    page = write_report(run_dir)
    assert attack not in page.read_text()
    assert html.escape("<script>document") in page.read_text()
    # Even if it were not escaped, the browser would refuse it.
    page.write_text(page.read_text().replace("<main>", f"<main>{attack}"))
    elements, console = in_browser(page)
    assert "data-charts=" in elements
    assert "data-owned" not in elements
    assert "Content Security Policy" in console


def test_the_page_asks_for_nothing_from_anywhere(finished_run: Path) -> None:
    page = page_of(finished_run)
    assert not re.search(r'(src|href)="(?!#)', page)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", page)
    assert "http://www.w3.org/2000/svg" in page  # a name, not an address
    assert not set(re.findall(r"https?://[^\s\"'<]+", page)) - {"http://www.w3.org/2000/svg"}


def test_it_tells_reward_before_and_after_with_an_interval(finished_run: Path) -> None:
    run = RunFiles.open(finished_run)
    facts = gather(run)
    before, after = facts.held_out(0), facts.held_out(25)
    assert before and after
    page = html.unescape(page_of(finished_run))
    assert f"{before.mean:.2f} → {after.mean:.2f}" in page
    assert f"{before} → {after}" in page
    assert headline(facts) in page
    assert "rose between step 0 and step 25: +0." in headline(facts)


def test_every_held_out_task_has_its_row(finished_run: Path) -> None:
    found = section(page_of(finished_run), "held-out")
    assert len(re.findall(r"<tr>\s*<td>task\d\d-", found)) == 20


def test_each_end_has_one_transcript_with_the_tokens_decoded(finished_run: Path) -> None:
    page = page_of(finished_run)
    found = section(page, "transcripts")
    ends = set(gather(RunFiles.open(finished_run)).end_counts)
    assert len(ends) == 6
    chips = re.findall(r'<summary><span class="chip">(\w+)<', found)
    assert sorted(chips) == sorted(ends)
    text = html.unescape(found)
    assert "[gMASK]<sop><|system|>\nYou use a shell.<|user|>\nSort the lines of a.txt &" in text
    assert "```bash\nsort -u a.txt | head -3\n```<|user|>" in text
    assert "<b>bold</b> & co" in text and "<b>bold" not in found


def test_a_run_before_its_first_step_has_a_page_that_says_so(
    write_run: Callable[..., Path],
) -> None:
    run_dir = write_run(0)
    (run_dir / "eval" / "step_000000.parquet").unlink()
    page = page_of(run_dir)
    assert "No training batch has been written yet" in notes(page)
    assert "No evaluation so far" in notes(page)
    assert "<svg" not in page.split("<main>")[1]
    _, console = in_browser(run_dir / "report.html")
    assert console == ""


def test_one_step_is_shown_and_no_trend_is_claimed(write_run: Callable[..., Path]) -> None:
    page = page_of(write_run(1))
    assert "One step has been generated: no trend can be seen." in notes(page)
    assert "1 evaluation so far" in notes(page)
    assert "Held-out reward before training: 0." in page
    assert 'class="dot c1"' in section(page, "curves")


def test_steps_that_neither_run_has_are_refused(write_run: Callable[..., Path]) -> None:
    run_dir = write_run(2)
    write_report(run_dir, steps=range(2, 9))
    with pytest.raises(UserError, match="has none of these steps; it has 1 to 2"):
        write_report(run_dir, steps=range(3, 9))


def test_a_damaged_step_is_named_and_the_rest_is_shown(write_run: Callable[..., Path]) -> None:
    run_dir = write_run(3)
    path = run_dir / "rollouts" / "step_000002.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    (run_dir / "identity.json").write_text("{")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "sour')
    page = page_of(run_dir)
    assert "rollouts/step_000002.parquet is not readable and left out" in notes(page)
    assert "identity.json is not readable" in notes(page)
    assert '"steps": [1, 3]' in html.unescape(section(page, "ends"))


def test_without_the_tokenizer_the_rest_of_a_transcript_is_shown(
    write_run: Callable[..., Path],
) -> None:
    run_dir = write_run(1)
    (run_dir.parent / "model" / "tokenizer.json").unlink()
    page = page_of(run_dir)
    assert "Transcripts show no model text" in notes(page)
    assert "tokens, not decoded" in section(page, "transcripts")
    assert "exit code 0" in section(page, "transcripts")


def test_log_probs_that_equal_the_engines_are_called_suspicious(
    write_run: Callable[..., Path],
) -> None:
    run_dir = write_run(2)
    metrics_log.append(run_dir, 2, "trainer", {"trainer/mismatch/zero_share": 1.0})
    assert "check that the trainer scores with its own forward" in notes(page_of(run_dir))


def test_a_change_that_may_be_chance_is_called_unclear(write_run: Callable[..., Path]) -> None:
    run_dir = write_run(2)
    source, copy = (run_dir / "eval" / f"step_{step:06d}.parquet" for step in (0, 2))
    about = pq.read_schema(copy).metadata
    pq.write_table(pq.read_table(source).replace_schema_metadata(about), copy)
    page = page_of(run_dir)
    assert "did not change clearly between step 0 and step 2: +0.000 [-" in html.unescape(page)
    assert "The interval of the held-out change holds 0" in notes(page)


def test_lost_samples_are_counted(finished_run: Path) -> None:
    assert re.search(r"replaced/sandbox</td><td class=\"n\">5<", page_of(finished_run))


def test_what_is_no_number_in_the_metrics_is_left_out(write_run: Callable[..., Path]) -> None:
    run_dir = write_run(3)
    expected = page_of(run_dir)
    bad = {"trainer/entropy": "high", "time/train_step": None, "time/train_wait": math.inf}
    bad |= {"trainer/train_rollout_kl": [1], "trainer/mismatch/zero_share": {}}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "source": "trainer", "time": 0, "metrics": bad}) + "\n")
        stale = {"time/rollout_s": "x", "rollout/verify_share": math.nan}
        file.write(json.dumps({"step": 4, "source": "driver", "time": 0, "metrics": stale}) + "\n")
    assert section(page_of(run_dir), "curves") == section(expected, "curves")
    assert section(page_of(run_dir), "time") == section(expected, "time")


def test_the_head_tells_the_steps_that_are_trained(write_run: Callable[..., Path]) -> None:
    run_dir = write_run(3)
    log = run_dir / "metrics.jsonl"
    lines = [line for line in log.read_text().splitlines() if '"trainer"' not in line]
    log.write_text("\n".join(lines) + "\n")
    assert "step 0 of 4" in page_of(run_dir)  # three batches wait for the trainer
    metrics_log.append(run_dir, 1, "trainer", {"trainer/loss": 0.5})
    assert "step 1 of 4" in page_of(run_dir)


def test_a_curve_is_not_drawn_over_steps_that_lack_its_metric(
    write_run: Callable[..., Path],
) -> None:
    run_dir = write_run(4)
    near = "trainer/mismatch/turn_near_cap/abs_mean"
    log = run_dir / "metrics.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    for record in records:
        if record["source"] == "trainer":
            record["metrics"].pop(near, None)
            step = record["step"]
            record["metrics"] |= {near: 0.01 * step} if step != 3 else {}
            # Measured at every second step alone.
            record["metrics"] |= {"trainer/grad_norm_positive": 0.1} if step % 2 == 0 else {}
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = run_dir / "config.yaml"
    config.write_text(config.read_text().replace("grad_split_every: 4", "grad_split_every: 2"))
    curves = section(page_of(run_dir), "curves")
    charts = {
        title: svg for title, svg in re.findall(r"<h3>([^<]*)</h3>.*?(<svg.*?</svg>)", curves, re.S)
    }
    capped, gradient = charts["The same on turns near the cap"], charts["Gradient norm"]
    assert len(re.findall(r'class="line c4" d="M[^L"]*L[^L"]*"', capped)) == 1  # steps 1 and 2
    assert len(re.findall(r'class="dot c4"', capped)) == 1  # step 4
    assert len(re.findall(r'class="line c4" d="M[^L"]*L[^L"]*"', gradient)) == 1  # steps 2 and 4


def test_what_happened_to_roles_is_told_on_every_node_and_routine_is_not(
    write_run: Callable[..., Path],
) -> None:
    run_dir = write_run(2)
    logs = run_dir / "logs"
    logs.mkdir()
    (logs / "supervisor.log").write_text(
        "2026-01-02 10:00:00 env ready after 8 s\n"
        "2026-01-02 10:03:00 driver ended with <signal> SIGKILL; restarted, 1 of 3\n"
        "2026-01-02 10:05:00 trainer-0 finished\n"
        "2026-01-02 10:06:00 the run ended with exit code 1: The disk is full.\n"
        "2026-01-02 10:07:00 the ru"
    )
    (logs / "supervisor-1.log").write_text("2026-01-02 10:02:00 env ended; restarted, 1 of 3\n")
    told = html.unescape(section(page_of(run_dir), "events"))
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td></tr>", told)
    assert rows == [
        ("2026-01-02 10:02:00", "env ended; restarted, 1 of 3"),
        ("2026-01-02 10:03:00", "driver ended with <signal> SIGKILL; restarted, 1 of 3"),
        ("2026-01-02 10:06:00", "the run ended with exit code 1: The disk is full."),
        ("2026-01-02 10:07:00", "the ru"),
    ]


def test_a_run_to_which_nothing_happened_says_so(finished_run: Path) -> None:
    assert "no restart is recorded" in section(page_of(finished_run), "events")


def test_a_steps_time_is_shared_out_and_the_rest_is_idle(finished_run: Path) -> None:
    run = RunFiles.open(finished_run)
    times, step = gather(run).times, 7  # the step after an evaluation
    wall = run.series("time/train_step")[step]
    assert sum(points.get(step, 0.0) for points in times.values()) == pytest.approx(wall)
    assert times["evaluate"][step] == run.series("time/eval_s")[step - 1] > 0
    rollout = run.series("time/rollout_s")[step]
    assert times["generate"][step] == pytest.approx(rollout * 2.4 / 3.6)


@pytest.mark.parametrize(
    ("lag", "generated"),
    [
        # The trainer waits for all of step 1, for 1 s of step 2, and for 2 s of step 4 after the
        # 0.5 s of a checkpoint.
        (0, [5.0, 1.0, 0.0, 2.5]),
        # Ahead of the trainer: those of steps 1 to 3 in step 1, that of step 4 in step 2.
        (2, [17.0, 1.0, 0.0, 0.0]),
    ],
)
def test_no_more_time_is_told_than_there_was_when_batches_are_made_beside_training(
    write_run: Callable[..., Path], lag: int, generated: list[float]
) -> None:
    run_dir = write_run(4)  # evaluated after 0, 2 and 4 steps, 3 s each
    waits = [20.0, 1.0, 0.0, 2.0]
    for step, wait in enumerate(waits, 1):
        driven = {"time/rollout_s": [5.0, 6.0, 6.0, 6.0][step - 1]}
        driven |= {"rollout/generate_share": 0.75, "rollout/sandbox_share": 0.25}
        trained = {"time/train_wait": wait, "time/train_compute": 4.0, "time/train_push": 1.0}
        metrics_log.append(run_dir, step, "driver", driven)
        metrics_log.append(run_dir, step, "trainer", {**trained, "time/train_step": wait + 5.5})
    metrics_log.append(run_dir, 3, "checkpoint", {"time/train_checkpoint": 0.5})
    run = RunFiles.open(run_dir)
    run.config.rollout.lag = lag
    times = gather(run).times
    for step, wait in enumerate(waits, 1):
        told = {activity: points.get(step, 0.0) for activity, points in times.items()}
        assert sum(told.values()) == pytest.approx(wait + 5.5 + (0.5 if step == 4 else 0.0))
        assert told["train"] == 4.0 and told["sync"] == 1.0 and told["idle"] >= 0.5
        made = generated[step - 1]
        assert told["generate"] == pytest.approx(0.75 * made)
        assert told["sandbox"] == pytest.approx(0.25 * made)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()
