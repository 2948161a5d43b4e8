"""`glm52 train -m` and `glm52 sweep` whole, with a scripted role in the place of each run's."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm52_tbench2 import cli
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.launch import sweep_plan
from glm52_tbench2.launch.run_folder import lock
from glm52_tbench2.launch.sweep import _reason
from glm52_tbench2.launch.sweep_plan import point_names

from . import sweeping

DEADLINE_S = 120
ROOT = Path(__file__).parents[2]
# Ends well, but leaves this process an interrupt in the run whose name holds the mark.
INTERRUPTS = f"""
if {{mark!r}} in run.name:
    os.kill({os.getpid()}, 2)
    time.sleep(600)
"""
FAILS = """
if {mark!r} in run.name:
    sys.exit("loss is nan")
"""


@pytest.fixture(autouse=True)
def own_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores after the test what `put` replaces."""
    monkeypatch.setattr("glm52_tbench2.launch.train.place", None)
    monkeypatch.setattr("glm52_tbench2.config.signals.Signals.open", None)


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def sweep(runs_dir: Path) -> Callable[..., int]:
    """Runs a sweep whose points are scripted."""

    def run(role: str, *overrides: str) -> int:
        sweeping.put(role)
        common = ["experiment=smoke", f"runs_dir={runs_dir}", "cluster.max_restarts=0"]
        return cli.main(["train", "-m", *common, *overrides])

    return run


def command(role: str, runs_dir: Path) -> list[str]:
    """The same in a process of its own."""
    python = [sys.executable, "-m", "tests.launch.sweeping", role]
    overrides = [f"runs_dir={runs_dir}", "cluster.max_restarts=0", "seed=1,2,3"]
    return [*python, "train", "-m", "experiment=smoke", *overrides]


def the_sweep(runs_dir: Path) -> Path:
    (sweep_dir,) = runs_dir.iterdir()
    return sweep_dir


def run_folders(sweep_dir: Path) -> list[Path]:
    return [path for path in sorted(sweep_dir.iterdir()) if path.is_dir()]


def starts(run_dir: Path) -> int:
    path = run_dir / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def rows(sweep_dir: Path) -> dict[str, dict[str, str]]:
    with (sweep_dir / "table.csv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def test_every_point_is_a_run_of_its_own_in_a_folder_that_says_what_varies(
    sweep, runs_dir: Path, capsys
) -> None:
    assert sweep("", "clip=reference,july", "seed=range(1,3)", "optim.lr=1e-4") == 0
    sweep_dir = the_sweep(runs_dir)
    names = [f"clip={clip},seed={seed}" for clip in ("july", "reference") for seed in (1, 2)]
    assert [run.name for run in run_folders(sweep_dir)] == names
    for run in run_folders(sweep_dir):
        assert starts(run) == 1
        assert (run / "finished").exists() and (run / "report.html").exists()
        made = load_identity(run)[0].made
        assert made and made.origin == {"sweep": sweep_dir.name, "point": run.name}
    july = load_identity(sweep_dir / "clip=july,seed=2")[0].config
    assert (july["clip.correction_low"], july["seed"], july["optim.lr"]) == (0.5, 2, 1e-4)
    planned = json.loads((sweep_dir / "sweep.json").read_text())
    assert "optim.lr=0.0001" in planned["base"] and "experiment=smoke" in planned["base"]
    assert planned["points"][1] == {
        "folder": "clip=reference,seed=2",
        "overrides": ["clip=reference", "seed=2"],
    }
    assert [row["status"] for row in rows(sweep_dir).values()][:4] == ["finished"] * 4
    assert (sweep_dir / "sweep.html").exists()
    told = capsys.readouterr().out
    assert "4 points. What varies: clip, seed." in told
    for number in (1, 2, 3, 4):
        assert f"Point {number} of 4 finished" in told


def test_all_problems_of_all_points_are_told_before_anything_is_made(
    sweep, runs_dir: Path, capsys
) -> None:
    code = sweep("", "data=mini8,mini9", "optim.lr=1e-4,0", "model.path=/no/such/model")
    assert code == 2
    assert not runs_dir.exists()
    told = capsys.readouterr().err
    assert "for 3 reasons" in told
    assert "  - data=mini8,lr=0: optim.lr is 0.0; it must be above 0." in told
    assert "  - data=mini9,lr=0.0001 and data=mini9,lr=0: There is no data 'mini9'" in told
    assert "  - data=mini8,lr=0.0001 and data=mini8,lr=0: model.path is /no/such/model" in told


def test_a_layout_that_does_not_divide_is_one_sentence(sweep, runs_dir: Path, capsys) -> None:
    assert sweep("", "parallel.context=1,2") == 2
    told = capsys.readouterr().err
    assert "1 ranks (nodes x gpus_per_node) do not divide into tensor x context" in told
    assert not runs_dir.exists()


def test_a_problem_that_all_points_have_is_told_once(sweep, runs_dir: Path, capsys) -> None:
    assert sweep("", "seed=1,2,3,4,5", "model.path=/no/such/model") == 2
    told = capsys.readouterr().err
    assert told.startswith("The sweep cannot start: all 5 points: model.path is /no/such/model")
    assert not runs_dir.exists()


def test_points_that_are_the_same_run_are_refused(sweep, runs_dir: Path, capsys) -> None:
    # July's stack is the reference but for correction_low, which the override sets for both.
    assert sweep("", "clip=reference,july", "seed=1,1", "clip.correction_low=0.1") == 2
    told = capsys.readouterr().err
    assert "it is there twice, first as point 1; leave one out." in told
    assert "it composes to the same run as point 1 (clip=reference-1); leave one out." in told
    assert not runs_dir.exists()


def test_a_sweep_folder_that_is_there_is_not_written_into(sweep, runs_dir: Path, capsys) -> None:
    (runs_dir / "mine").mkdir(parents=True)
    assert sweep("", "seed=1,2", f"hydra.sweep.dir={runs_dir / 'mine'}") == 2
    assert "is there already" in capsys.readouterr().err
    assert list((runs_dir / "mine").iterdir()) == []


def test_a_sweep_that_cannot_be_written_leaves_nothing(
    sweep, runs_dir: Path, monkeypatch, capsys
) -> None:
    real, calls = sweep_plan.identity_now, []

    def identity_now(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(sweep_plan, "identity_now", identity_now)
    assert sweep("", "seed=1,2,3") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(runs_dir.iterdir()) == []


def test_a_failed_point_does_not_stop_the_others(runs_dir: Path) -> None:
    role = FAILS.format(mark="seed=2")
    done = subprocess.run(command(role, runs_dir), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    sweep_dir = the_sweep(runs_dir)
    assert [starts(run) for run in run_folders(sweep_dir)] == [1, 1, 1]
    found = rows(sweep_dir)
    assert [found[f"seed={s}"]["status"] for s in (1, 2, 3)] == ["finished", "failed", "finished"]
    assert "Point 2 of 3 failed after" in done.stdout
    listed = done.stderr[done.stderr.index("1 of 3 points failed:") :]
    logs = sweep_dir / "seed=2" / "logs"
    told = f"  seed=2: trainer ended with exit code 1. loss is nan Logs: {logs}"
    assert listed.splitlines()[1] == told
    assert f"Go on with: glm52 sweep resume {sweep_dir}" in listed


def test_a_fault_of_our_own_in_one_point_does_not_stop_the_others(
    sweep, runs_dir: Path, monkeypatch, capsys
) -> None:
    from glm52_tbench2.launch import sweep as module

    real = module.go_on

    def go_on(run_dir: Path, allow: bool):
        if run_dir.name == "seed=1":
            raise ZeroDivisionError("by us")
        return real(run_dir, allow)

    monkeypatch.setattr(module, "go_on", go_on)
    assert sweep("", "seed=1,2") == 1
    assert [starts(run) for run in run_folders(the_sweep(runs_dir))] == [0, 1]
    assert "seed=1: ZeroDivisionError: by us" in capsys.readouterr().err


def test_an_interrupt_stops_the_sweep_and_resume_runs_only_what_is_missing(
    sweep, runs_dir: Path, capsys
) -> None:
    assert sweep(INTERRUPTS.format(mark="seed=2"), "seed=1,2,3") == 130
    sweep_dir = the_sweep(runs_dir)
    told = capsys.readouterr().err
    assert "Not finished: 2 of 3 points" in told
    assert f"Go on with: glm52 sweep resume {sweep_dir}" in told
    assert [r["status"] for r in rows(sweep_dir).values()][:3] == ["finished", "stopped", "waiting"]
    assert [starts(run) for run in run_folders(sweep_dir)] == [1, 1, 0]

    sweeping.put("")
    assert cli.main(["sweep", "resume", str(sweep_dir)]) == 0
    assert [starts(run) for run in run_folders(sweep_dir)] == [1, 2, 1]
    assert [r["status"] for r in rows(sweep_dir).values()][:3] == ["finished"] * 3
    told = capsys.readouterr().out
    assert "3 points, 1 of them finished." in told
    assert "Point 2 of 3" in told and "Point 1 of 3" not in told

    assert cli.main(["sweep", "resume", str(sweep_dir)]) == 0  # nothing is missing any more
    assert [starts(run) for run in run_folders(sweep_dir)] == [1, 2, 1]


@pytest.mark.parametrize("moment", ["in a point", "between points"])
def test_a_sweep_that_is_killed_goes_on(tmp_path: Path, runs_dir: Path, moment: str) -> None:
    where = "seed=2" if moment == "in a point" else "never"
    role = f"if {where!r} in run.name and not (run / 'again').exists(): time.sleep(600)"
    process = subprocess.Popen(
        command(role, runs_dir), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    wanted = "seed=2/starts" if moment == "in a point" else "seed=1/finished"
    until = time.monotonic() + DEADLINE_S
    while not list(runs_dir.glob(f"*/{wanted}")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    sweep_dir = the_sweep(runs_dir)
    before = [starts(run) for run in run_folders(sweep_dir)]
    assert before[0] == 1 and before[2] == 0
    for run in run_folders(sweep_dir):
        (run / "again").touch()
    sweeping.put("")
    assert cli.main(["sweep", "resume", str(sweep_dir)]) == 0
    after = [starts(run) for run in run_folders(sweep_dir)]
    assert after == [1, before[1] + 1, 1]


def test_a_point_that_would_be_another_run_is_refused_before_any_is_started(
    sweep, runs_dir: Path, capsys
) -> None:
    sweep(INTERRUPTS.format(mark="seed=1"), "seed=1,2,3")
    sweep_dir = the_sweep(runs_dir)
    path = sweep_dir / "seed=3" / "identity.json"
    made = json.loads(path.read_text())
    made["packages"]["torch"] = "1.0"
    path.write_text(json.dumps(made))
    sweeping.put("")
    capsys.readouterr()
    assert cli.main(["sweep", "resume", str(sweep_dir)]) == 2
    told = capsys.readouterr().err
    assert "seed=3: it would go on as another run" in told
    assert "package torch: 1.0 -> " in told and "--allow" in told
    assert [starts(run) for run in run_folders(sweep_dir)] == [1, 0, 0]
    assert cli.main(["sweep", "resume", str(sweep_dir), "--allow"]) == 0
    assert [starts(run) for run in run_folders(sweep_dir)] == [2, 1, 1]
    assert "seed=3 went on as another run" in capsys.readouterr().out


def test_a_run_folder_that_was_removed_is_made_again(sweep, runs_dir: Path) -> None:
    assert sweep(FAILS.format(mark="seed=2"), "seed=1,2") == 1
    sweep_dir = the_sweep(runs_dir)
    before = load_identity(sweep_dir / "seed=2")[0]
    for path in sorted((sweep_dir / "seed=2").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (sweep_dir / "seed=2").rmdir()
    assert cli.main(["sweep", "table", str(sweep_dir)]) == 0
    assert rows(sweep_dir)["seed=2"]["status"] == "missing"
    sweeping.put("")
    assert cli.main(["sweep", "resume", str(sweep_dir)]) == 0
    after = load_identity(sweep_dir / "seed=2")[0]
    assert after == before and after.hash == before.hash


def test_two_processes_do_not_run_one_sweep(tmp_path: Path, capsys) -> None:
    (tmp_path / "sweep.json").write_text('{"base": [], "points": []}')
    with lock(tmp_path):
        assert cli.main(["sweep", "resume", str(tmp_path)]) == 2
    assert "in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["data=mini8,mini69"], "write glm52 train -m data=mini8,mini69."),
        (["-m", "seed=interval(0,1)"], "write range(...), choice(...) or values"),
        (["-m", "--cfg", "job"], "Only one of --run, --multirun, --cfg"),
        (["-m", "seed=choice(1"], "seed=choice(1 is not KNOB=VALUE"),
    ],
)
def test_what_is_no_sweep_is_told_in_a_sentence(
    arguments: list[str], told: str, capsys, runs_dir: Path
) -> None:
    assert cli.main(["train", "experiment=smoke", f"runs_dir={runs_dir}", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not runs_dir.exists()


def test_a_folder_that_is_no_sweep_is_refused(tmp_path: Path, capsys) -> None:
    for verb in ("resume", "table"):
        assert cli.main(["sweep", verb, str(tmp_path)]) == 2
        assert "is not a sweep's folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "sweep.json").write_text('{"base": [')
    assert cli.main(["sweep", "table", str(tmp_path)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_what_varies_in_nothing_is_no_sweep(sweep, runs_dir: Path, capsys) -> None:
    for more in ([], ["seed=range(3,4)"], ["--dry-run"]):
        assert sweep("", "optim.lr=1e-4", *more) == 2
        told = capsys.readouterr().err
        assert told.startswith("Nothing varies, so this is no sweep; leave -m away, or give")
    assert not runs_dir.exists()


def test_a_dry_run_tells_every_point_and_all_problems_and_makes_nothing(
    sweep, runs_dir: Path, capsys
) -> None:
    assert sweep("", "--dry-run", "seed=2,1") == 0
    said, told = capsys.readouterr()
    first, second = (line.split() for line in said.splitlines()[3:5])
    assert (first[1:3], first[4:]) == (["1", "seed=2"], ["seed=2"])
    assert second[2] == "seed=1" and second[3] != first[3] and len(first[3]) == 16
    assert "one after another, in this order" in said and not told

    assert sweep("", "--dry-run", "data=mini8,mini9", "optim.lr=1e-4,0") == 2
    said, told = capsys.readouterr()
    assert "for 2 reasons" in told
    assert "  - data=mini8,lr=0: optim.lr is 0.0; it must be above 0." in told
    assert "  - data=mini9,lr=0.0001 and data=mini9,lr=0: There is no data 'mini9'" in told
    assert [line.split()[3] == "-" for line in said.splitlines()[3:7]] == [False, False, True, True]
    assert not runs_dir.exists()


def test_a_dry_run_names_the_identity_that_the_run_then_has(sweep, runs_dir: Path, capsys) -> None:
    assert sweep("", "--dry-run", "seed=1,2") == 0
    shown = [line.split()[3] for line in capsys.readouterr().out.splitlines()[3:5]]
    assert sweep("", "seed=1,2") == 0
    assert shown == [load_identity(run)[0].hash for run in run_folders(the_sweep(runs_dir))]


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=60)


@given(st.lists(st.lists(st.tuples(st.sampled_from(["a", "b.c", "d.c"]), WORDS)), min_size=1))
def test_names_are_safe_short_and_all_different(points: list[list[tuple[str, str]]]) -> None:
    names = point_names([[f"{key}={value}" for key, value in point] for point in points])
    assert len(set(names)) == len(points)
    for name in names:
        assert 0 < len(name) <= 100
        assert name[0] not in ".-"
        assert set(name) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+=,-"
        )


def test_names_use_the_shortest_key_that_is_clear() -> None:
    assert point_names([["optim.lr=1e-3", "seed=1"]]) == ["lr=1e-3,seed=1"]
    assert point_names([["eval.temperature=1", "rollout.temperature=0.8"]]) == [
        "eval.temperature=1,rollout.temperature=0.8"
    ]
    assert point_names([["+engine.server_args.x='a b'"], ["~rollout.filters"]]) == [
        "x=a_b",
        "filters=",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no such task.", "no such task."),
        ("R would go on as another run. What differs:\n  seed: 1 -> 2\nUndo that", "seed: 1 -> 2"),
        ("driver ended with exit code 1. The end of driver.log:\n    a\n    boom", "boom"),
    ],
)
def test_a_points_reason_says_what_happened(text, reason):
    told = _reason(text)
    assert told.endswith(reason)
    assert "\n" not in told
