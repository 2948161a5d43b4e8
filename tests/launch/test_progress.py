import io
import json
import time

import pytest
from rich.console import Console

from glm52_tbench2.analysis.sentinel import watch as sentinel
from glm52_tbench2.config import metrics_log
from glm52_tbench2.launch import run_numbers
from glm52_tbench2.launch.progress import (
    LiveProgress,
    PlainProgress,
    duration,
    held_out_line,
    shown,
    sparkline,
)
from glm52_tbench2.launch.roles import Policy, RoleProcess, RoleSpec, State
from glm52_tbench2.launch.run_numbers import RunNumbers

STEP = {
    "rollout/reward_mean": 0.421,
    "rollout/truncated_share": 0.0625,
    "rollout/tokens_per_s": 512.3,
}


def role(tmp_path, name: str, state: State = State.starting) -> RoleProcess:
    spec = RoleSpec(name, 0, ("true",), Policy.service, health="/health")
    process = RoleProcess(spec, tmp_path, "127.0.0.1", None)
    process.state, process.started_at = state, time.monotonic()
    if state is State.ready:
        process.set_ready()
    return process


def train_step(run_dir, step: int, kl: float = 0.0012) -> None:
    metrics_log.append(run_dir, step, "driver", STEP)
    metrics_log.append(run_dir, step, "trainer", {"trainer/train_rollout_kl": kl})


@pytest.fixture
def plain(tmp_path):
    console = Console(file=io.StringIO(), width=200)
    return PlainProgress(RunNumbers(tmp_path, 24), console), console.file


def test_away_from_a_terminal_each_gate_and_step_is_one_line(plain, tmp_path):
    progress, out = plain
    roles = [role(tmp_path, "env", State.ready), role(tmp_path, "engine")]
    progress.tick(roles)
    progress.tick(roles)
    assert out.getvalue() == "env ready after 0 s\n"
    train_step(tmp_path, 1)
    progress.tick(roles)
    assert out.getvalue().splitlines()[1:] == [
        "step 1 of 24: reward 0.42, truncated 6%, tokens/s 512, mismatch KL 0.0012"
    ]


def test_a_run_that_goes_on_does_not_tell_its_past_again(tmp_path):
    train_step(tmp_path, 1)
    console = Console(file=io.StringIO(), width=200)
    progress = PlainProgress(RunNumbers(tmp_path, 24), console)
    progress.tick([])
    assert console.file.getvalue() == ""


def test_brackets_in_what_happened_are_printed_as_they_are(plain):
    progress, out = plain
    progress.event("engine-0 said [bold]loading[/nonsense]")
    assert out.getvalue() == "engine-0 said [bold]loading[/nonsense]\n"


def test_a_half_written_record_is_read_when_it_is_whole(tmp_path):
    numbers = RunNumbers(tmp_path, 24)
    record = json.dumps({"step": 3, "source": "trainer", "time": 1.0, "metrics": {"a": 1.0}})
    path = tmp_path / "metrics.jsonl"
    path.write_text(record[:20])
    assert numbers.read_new() == []
    path.write_text(record + "\nnot json\n")
    assert numbers.read_new() == [("trainer", 3)]
    assert numbers.latest("trainer", "a") == 1.0


def test_the_time_left_follows_the_pace_of_the_steps(tmp_path):
    numbers = RunNumbers(tmp_path, 24)
    assert numbers.seconds_left() is None
    now = time.time()
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(1, 5):
            record = {"step": step, "source": "trainer", "time": now + 10 * step, "metrics": {}}
            file.write(json.dumps(record) + "\n")
    numbers.read_new()
    assert numbers.seconds_left() == pytest.approx(20 * 10 + 40, abs=5)


@pytest.mark.parametrize("later_s", [100, -3600])
def test_progress_left_by_an_earlier_life_of_the_run_is_not_shown(tmp_path, later_s):
    """Also when the clock was set back since."""
    record = {"phase": "eval", "step": 3, "samples_done": 1, "samples_total": 2}
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({**record, "time": time.time() - 100}))
    numbers = RunNumbers(tmp_path, 24)
    assert numbers.phase() is None
    path.write_text(json.dumps({**record, "time": time.time() + later_s}))
    assert numbers.phase().done == 1


def test_the_file_is_the_one_that_the_driver_writes_and_the_sentinel_reads():
    assert sentinel.PROGRESS_FILE == run_numbers.PROGRESS_FILE


def test_nothing_trains_while_a_role_is_starting(tmp_path):
    record = {"phase": "wait", "step": 0, "samples_done": 0, "samples_total": 0}
    numbers = RunNumbers(tmp_path, 24)
    (tmp_path / "progress.json").write_text(json.dumps({**record, "time": time.time()}))
    console = Console(file=io.StringIO(), width=90, force_terminal=True, color_system=None)
    with LiveProgress(numbers, console, "smoke-1") as progress:
        progress.tick([role(tmp_path, "driver", State.ready), role(tmp_path, "engine")])
        start = console.file.getvalue()
        progress._drawn = 0.0
        progress.tick([role(tmp_path, "driver", State.ready)])
    assert "training" not in start
    assert "training" in console.file.getvalue()


def test_the_view_shows_who_is_starting_and_then_the_figures(tmp_path):
    console = Console(file=io.StringIO(), width=90, force_terminal=True, color_system=None)
    numbers = RunNumbers(tmp_path, 24)
    with LiveProgress(numbers, console, "smoke-1") as progress:
        progress.tick([role(tmp_path, "env", State.ready), role(tmp_path, "engine")])
        start = console.file.getvalue()
        train_step(tmp_path, 1)
        metrics_log.append(tmp_path, 0, "eval", {"eval/reward_mean": 0.314})
        progress.event("engine-0 ended; restarted, 1 of 3")
    end = console.file.getvalue()[len(start) :]
    assert "starting" in start
    for word in ("smoke-1", "step 1/24", "0.42", "0.31", "6%", "512", "0.0012", "restarted"):
        assert word in end, word


def test_the_last_frame_of_a_finished_run_says_that_it_finished(tmp_path):
    console = Console(file=io.StringIO(), width=90, force_terminal=True, color_system=None)
    numbers = RunNumbers(tmp_path, 2)
    with LiveProgress(numbers, console, "smoke-1") as progress:
        record = {"phase": "done", "step": 2, "samples_done": 0, "samples_total": 0}
        (tmp_path / "progress.json").write_text(json.dumps({**record, "time": time.time() + 100}))
        train_step(tmp_path, 1)
        train_step(tmp_path, 2)
        progress.tick([role(tmp_path, "driver", State.ready)])
        before = console.file.getvalue()
        (tmp_path / "finished").touch()
    end = console.file.getvalue()[len(before) :]
    assert "finishing" in before and "0:00 left" in before
    assert "finished in 0:00" in end and "finishing" not in end and "left" not in end


def test_on_a_narrow_terminal_a_mark_stays_with_its_role(tmp_path):
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    names = ("env", "engine", "trainer", "driver", "tracker")
    with LiveProgress(RunNumbers(tmp_path, 24), console, "smoke-1") as progress:
        progress.tick([role(tmp_path, name, State.ready) for name in names])
    for name in names:
        assert f"● {name}" in console.file.getvalue()


def test_many_engines_are_one_row(tmp_path):
    console = Console(file=io.StringIO(), width=90, force_terminal=True, color_system=None)
    engines = [role(tmp_path, "engine", State.ready), role(tmp_path, "engine")]
    with LiveProgress(RunNumbers(tmp_path, 24), console, "smoke-1") as progress:
        progress.tick(engines)
    assert "1 of 2 ready" in console.file.getvalue()


def test_the_view_is_for_terminals_only(tmp_path):
    with shown(tmp_path, 24, Console(file=io.StringIO())) as watcher:
        assert isinstance(watcher, PlainProgress)
    terminal = Console(file=io.StringIO(), force_terminal=True)
    with shown(tmp_path, 24, terminal) as watcher:
        assert isinstance(watcher, LiveProgress)


def test_an_evaluation_is_one_line(tmp_path):
    metrics_log.append(tmp_path, 12, "eval", {"eval/reward_mean": 0.314})
    assert held_out_line(RunNumbers(tmp_path, 24), 12) == "held out after step 12: reward 0.31"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (9.4, "0:09"), (59.7, "1:00"), (10930, "3:02:10")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_sparkline_covers_its_scale():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
