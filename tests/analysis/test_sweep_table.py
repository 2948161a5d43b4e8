"""The table of a sweep, against numbers worked out by hand."""

import csv
import html
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glm52_tbench2.analysis.report import REPORT_FILE
from glm52_tbench2.analysis.stats import interval_over_runs
from glm52_tbench2.analysis.sweep_files import SweepFiles, note
from glm52_tbench2.analysis.sweep_page import render, terminal, write_page
from glm52_tbench2.analysis.sweep_table import (
    COLUMNS,
    Cell,
    Reader,
    Row,
    Table,
    _over_seeds,
    write_csv,
)
from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.files import SCHEMA_VERSION
from glm52_tbench2.config.identity import NODE_TELLS

from .pages import in_browser

T2 = 4.302652729911275
"""0.975 quantile of Student's t with 2 degrees of freedom."""
BEFORE = {"a": 0.0, "b": 0.0}
COLUMN = {column.key: column for column in COLUMNS}

Sweep = Callable[..., Path]


def write_steps(folder: Path, rewards: Mapping[str, float], step: int, cut: int = 0) -> None:
    """A step file with a sample a task, the first `cut` of them truncated."""
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "sample_id": task,
            "task_id": task,
            "end_reason": "length" if number < cut else "task_complete",
            "reward": reward,
            "truncated": number < cut,
            "step": step,
        }
        for number, (task, reward) in enumerate(rewards.items())
    ]
    about = {"schema_version": SCHEMA_VERSION, "identity": "0", "step": str(step)}
    table = pa.Table.from_pylist(rows).replace_schema_metadata(about)
    pq.write_table(table, folder / f"step_{step:06d}.parquet")


def write_run(
    run_dir: Path,
    overrides: list[str],
    *,
    after: float = 1.0,
    rewards: tuple[float, ...] = (0.0, 0.5),
    kl: tuple[float, ...] = (),
    identity: Mapping[str, object] | None = None,
    finished: bool = True,
) -> None:
    """Two held-out tasks, 0 before training; task a ends at `after`, task b at 0."""
    run_dir.mkdir(parents=True)
    save_run_config(compose(["experiment=smoke", *overrides]), run_dir)
    made = {"hash": "0", "code": "1", "packages": {"torch": "2"}, "history": []}
    (run_dir / "identity.json").write_text(json.dumps({**made, **(identity or {})}))
    write_steps(run_dir / "eval", BEFORE, 0)
    write_steps(run_dir / "eval", {"a": after, "b": 0.0}, len(rewards))
    for step, reward in enumerate(rewards, 1):
        write_steps(run_dir / "rollouts", {"x": reward, "y": reward}, step, cut=1)
        trained = {"time/train_step": 1800.0}
        if kl:
            trained["trainer/train_rollout_kl"] = kl[step - 1]
        metrics_log.append(run_dir, step, "trainer", trained)
    metrics_log.append(run_dir, len(rewards), "eval", {"eval/reward_mean": after / 2})
    if finished:
        (run_dir / "finished").touch()


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Writes sweep.json and one run a point; a point is its overrides, then `write_run`'s."""

    def write(*points: tuple[list[str], Mapping[str, object]]) -> Path:
        planned = []
        for overrides, content in points:
            folder = ",".join(overrides)
            planned.append({"folder": folder, "overrides": overrides})
            write_run(tmp_path / folder, overrides, **content)  # type: ignore[arg-type]
        text = json.dumps({"base": ["experiment=smoke"], "points": planned})
        (tmp_path / "sweep.json").write_text(text)
        return tmp_path

    return write


def read(sweep_dir: Path) -> Table:
    return Reader().read(SweepFiles.open(sweep_dir))


def test_numbers_of_a_run(sweep: Sweep) -> None:
    kl = tuple(0.01 * 2**step for step in range(6))
    rewards = (0.0, 0.0, 0.25, 0.25, 0.5, 1.0)
    (row,) = read(sweep((["seed=1"], {"kl": kl, "rewards": rewards}))).rows
    assert (row.status, row.step, row.values) == ("finished", 6, {"seed": "1"})
    found = {key: cell.value for key, cell in row.cells.items()}
    assert found["held_out_before"] == 0.0
    assert found["held_out_after"] == 0.5  # one of two tasks
    assert found["held_out_change"] == 0.5
    assert found["train_reward"] == pytest.approx((0.25 + 0.5 + 1.0) / 3)  # half of the six steps
    assert found["truncated"] == 0.5
    assert found["train_rollout_kl"] == pytest.approx(0.32)
    assert found["kl_growth"] == pytest.approx(32.0)  # doubled five times
    assert found["hours"] == pytest.approx(3.0)  # six steps of half an hour


def test_a_group_has_the_mean_and_the_t_interval_of_its_seeds(sweep: Sweep) -> None:
    afters = (1.0, 0.5, 0.0)  # changes 0.5, 0.25 and 0: mean 0.25, sd 0.25
    found = read(sweep(*(([f"seed={i}"], {"after": a}) for i, a in enumerate(afters, 1))))
    (group,) = found.groups
    cell = group.cells["held_out_change"]
    assert cell.value == pytest.approx(0.25)
    half = T2 * 0.25 / math.sqrt(3)
    assert (cell.low, cell.high) == pytest.approx((0.25 - half, 0.25 + half))
    assert (group.runs, group.status) == (3, "3 of 3 seeds")


def test_growth_is_averaged_as_a_factor(sweep: Sweep) -> None:
    doubling, halving = (tuple(b**step for step in range(6)) for b in (2.0, 0.5))
    flat = (0.0,) * 6
    points = [
        (["seed=1"], {"kl": doubling, "rewards": flat}),
        (["seed=2"], {"kl": halving, "rewards": flat}),
    ]
    (group,) = read(sweep(*points)).groups
    assert group.cells["kl_growth"].value == pytest.approx(1.0)


def test_groups_are_what_is_left_without_the_seed(sweep: Sweep) -> None:
    found = read(
        sweep(
            (["clip=reference", "seed=1"], {"after": 1.0}),
            (["clip=reference", "seed=2"], {"after": 0.0}),
            (["clip=july", "seed=1"], {"after": 1.0}),
            (["clip=july", "seed=2"], {"finished": False}),
        )
    )
    assert [group.name for group in found.groups] == ["clip=reference", "clip=july"]
    reference, july = (group.cells["held_out_change"] for group in found.groups)
    assert reference.value == pytest.approx(0.25) and not math.isnan(reference.low)
    assert july.value == pytest.approx(0.5) and math.isnan(july.low)  # one seed: no interval
    assert found.groups[1].status == "1 of 2 seeds"
    assert "0.500 (one seed)" in re.sub(r"\s+", " ", text_of(found))
    assert any("1 of 4 runs have not finished" in text for text in found.notes)


def text_of(table: Table, width: int | None = None) -> str:
    from rich.console import Console

    console = Console(width=width or 300)
    with console.capture() as captured:
        console.print(terminal(table, width))
    return captured.get()


def test_without_seeds_no_interval_is_claimed(sweep: Sweep) -> None:
    found = read(sweep((["clip=reference"], {}), (["clip=july"], {})))
    assert found.groups == []
    assert any("no interval over seeds" in text for text in found.notes)


def test_one_value_has_no_interval_over_runs_and_none_has_no_mean() -> None:
    assert interval_over_runs([]) is None
    one = interval_over_runs([0.3])
    assert one is not None and one.mean == 0.3 and math.isnan(one.low)
    two = interval_over_runs([0.0, 1.0])  # t(1) = 12.706, s / sqrt(2) = 0.5
    assert two is not None and two.high == pytest.approx(0.5 + 12.7062047 / 2)


def test_runs_that_tie_have_no_interval() -> None:
    tied = interval_over_runs([0.35 - 0.25, 0.3 - 0.2])
    assert tied is not None and tied.mean == pytest.approx(0.1) and math.isnan(tied.low)


def test_an_interval_over_seeds_ends_where_values_end() -> None:
    shares = {"held_out_after": (0.1, 0.9), "held_out_change": (-0.1, 0.9), "hours": (0.0, 1.0)}
    for column in (one for one in COLUMNS if one.key in shares):
        rows = [
            Row(f"seed={i}", "finished", {}, {column.key: Cell(value)})
            for i, value in enumerate(shares[column.key])
        ]
        cell = _over_seeds(column, rows)
        free = interval_over_runs(shares[column.key])
        assert free is not None and free.low < column.low
        assert (cell.low, cell.high) == (column.low, min(free.high, column.high))


def test_two_definitions_do_not_share_a_column(sweep: Sweep, monkeypatch) -> None:
    monkeypatch.setitem(metrics_log.DEFINITIONS, "trainer/train_rollout_kl", 2)
    sweep_dir = sweep((["seed=1"], {"kl": (1.0, 1.0)}), (["seed=2"], {"kl": (2.0, 2.0)}))
    path = sweep_dir / "seed=1" / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:  # as a version would have written it that knew the first definition
        record.pop("definitions", None)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    found = read(sweep_dir)
    old, new = (row.cells["train_rollout_kl"] for row in found.rows)
    assert old.text(COLUMN["train_rollout_kl"]) == "definition 1, not 2"
    assert new.value == 2.0
    (group,) = found.groups
    assert group.cells["train_rollout_kl"].refused and not group.cells["train_rollout_kl"].known
    assert group.cells["held_out_change"].known  # only that metric is refused
    assert any("older definition than 2" in text for text in found.notes)
    assert "definition 1, not 2" in write_csv(found).read_text()
    assert "definition 1, not 2" in render(found)


def test_what_may_not_be_compared_is_said(sweep: Sweep) -> None:
    found = read(
        sweep(
            (["data=mini8"], {}),
            (["data=mini69"], {"identity": {"code": "2", "history": [{"differences": ["x"]}]}}),
        )
    )
    notes = " ".join(found.notes)
    assert "data.train varies, so a step visits other tasks: training rewards do not" in notes
    assert "made with different code" in notes
    assert "data=mini69 went on as another run" in notes
    assert "package" not in notes


def test_the_csv_has_a_row_a_run_and_full_numbers(sweep: Sweep) -> None:
    sweep_dir = sweep(
        *((["clip=july", f"seed={seed}"], {"after": seed / 3}) for seed in (1, 2, 3)),
        (["clip=dppo", "seed=1"], {"finished": False}),
    )
    note(sweep_dir, "clip=dppo,seed=1", None)
    note(sweep_dir, "clip=dppo,seed=1", 1, "loss is nan")
    with write_csv(read(sweep_dir)).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["run"] * 4 + ["group"] * 2
    assert rows[0]["name"] == "clip=july,seed=1"
    assert (rows[0]["clip"], rows[0]["seed"], rows[0]["step"]) == ("july", "1", "2")
    assert float(rows[0]["held_out_change"]) == pytest.approx(1 / 6, abs=1e-15)
    assert rows[3]["status"] == "failed"
    assert rows[4]["name"] == "clip=july" and rows[4]["runs"] == "3" and rows[4]["seed"] == ""
    assert rows[0]["train_rollout_kl"] == ""


def test_a_sweep_that_has_not_begun_is_shown_too(sweep: Sweep) -> None:
    sweep_dir = sweep((["seed=1"], {}), (["seed=2"], {}))
    for path in (sweep_dir / "seed=2").rglob("*"):
        if path.is_file() and path.name not in ("config.yaml", "identity.json"):
            path.unlink()
    for path in (sweep_dir / "seed=1").rglob("*"):
        if path.is_file():
            path.unlink()
    found = read(sweep_dir)
    assert [row.status for row in found.rows] == ["missing", "waiting"]
    assert "0 of 2 finished" in render(found)


def test_a_narrow_terminal_gets_fewer_columns_not_cut_ones(sweep: Sweep) -> None:
    found = read(sweep((["clip=july", "seed=1"], {}), (["clip=july", "seed=2"], {})))
    for width in (80, 100, 140):
        text = text_of(found, width)
        assert "…" not in text
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        assert "change" in text
    assert "hours" not in text_of(found, 80) and "hours" in text_of(found)


def test_a_browser_shows_the_page_with_links_and_curves(sweep: Sweep) -> None:
    attack = "<script>document.documentElement.dataset.owned = 1</script>"
    points = [(["clip=july", f"seed={seed}"], {"kl": (0.01, 0.02)}) for seed in (1, 2)]
    sweep_dir = sweep(*points)
    (sweep_dir / "clip=july,seed=1" / REPORT_FILE).touch()
    planned = json.loads((sweep_dir / "sweep.json").read_text())
    planned["base"].append(f"name={attack}")
    (sweep_dir / "sweep.json").write_text(json.dumps(planned))
    page = write_page(read(sweep_dir))
    text = page.read_text()
    assert attack not in text and html.escape("<script>document") in text
    links = re.findall(r'href="([^"]+)"', text)
    assert links == ["clip%3Djuly%2Cseed%3D1/report.html"]
    elements, console = in_browser(page)
    assert console == ""
    assert 'data-charts="4"' in elements and elements.count("<svg") == 4
    assert "data-owned" not in elements


@pytest.mark.parametrize(("versions", "told"), [("3", True), (NODE_TELLS, False)])
def test_other_packages_are_told_unless_a_queued_runs_node_has_not_told_them_yet(
    sweep: Sweep, versions: str, told: bool
) -> None:
    other = {"identity": {"packages": {"torch": versions}}}
    found = read(sweep((["seed=1"], {}), (["seed=2"], other)))
    assert any("different package versions" in text for text in found.notes) is told
