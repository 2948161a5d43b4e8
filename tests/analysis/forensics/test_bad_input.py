"""What can be said is said, what can't is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.synthetic_run import IDENTITY
from glm52_tbench2.analysis.forensics.source import RunSource
from glm52_tbench2.analysis.influence import SCHEMA, influences
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.sentinel.files import facts_at, rewards_at
from glm52_tbench2.cli import main
from glm52_tbench2.config.files import SCHEMA_VERSION

from .conftest import Planted, written

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def damaged(planted: Planted, tmp_path: Path) -> Path:
    """A healthy run with a half-written step, one of another schema version and one untrained."""
    run = tmp_path / "run"
    shutil.copytree(planted("healthy"), run)
    half = run / "rollouts" / "step_000003.parquet"
    half.write_bytes(half.read_bytes()[:1000])
    other = run / "rollouts" / "step_000005.parquet"
    table = pq.read_table(other)
    pq.write_table(table.replace_schema_metadata({"schema_version": "0"}), other)
    (run / "train" / "step_000024.parquet").unlink()
    return run


def test_damaged_run(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["forensics", str(damaged), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["unread_steps"] == [3, 5]
    told = " ".join(found["warnings"])
    assert "step_000003.parquet is not readable" in told
    assert "schema version is 0" in told
    assert "1 steps" in " ".join(found["verdict"]["unknown"])


def test_one_step(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forensics", str(planted("healthy")), "--step", "3"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Undetermined: it has 1 of the 14 steps")
    assert "one step alone" in said


@pytest.mark.parametrize("steps", ["x", "5:3", ":", "900"])
def test_bad_steps(planted: Planted, capsys: pytest.CaptureFixture[str], steps: str) -> None:
    assert main(["forensics", str(planted("healthy")), "--step", steps]) == 2
    assert steps in capsys.readouterr().err


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forensics", str(tmp_path)]) == 2
    assert "is no run" in capsys.readouterr().err


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy run of 2 steps. Read only."""
    return written(tmp_path_factory.mktemp("pair") / "run", "healthy", steps=2)


@pytest.fixture
def rewritten(pair: Path, tmp_path: Path) -> Callable[[str, Change], RunFiles]:
    """A copy of that run with one file changed; what the file says of itself stays."""

    def change(name: str, made: Change) -> RunFiles:
        run = tmp_path / "run"
        shutil.copytree(pair, run)
        table = pq.read_table(run / name)
        about = table.schema.metadata
        pq.write_table(made(table).replace_schema_metadata(about), run / name)
        return RunFiles.open(run)

    return change


def null(name: str, row: int = 3) -> Change:
    """One value of a column is not there."""
    return lambda table: with_value(table, name, row, None)


def with_value(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    place = table.column_names.index(name)
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table: table.slice(0, 0), "has no samples"),
        (null("sample_id"), "has samples without sample_id"),
        (null("task_id"), "has samples without task_id"),
        (null("tokens"), "has samples without tokens"),
        (lambda table: with_value(table, "tokens", 3, [-1, 5]), "no token ids"),
        (lambda table: table.drop(["loss_mask"]), "lacks loss_mask"),
    ],
)
def test_a_step_that_cannot_be_read_is_named(
    rewritten: Callable[[str, Change], RunFiles], change: Change, told: str
) -> None:
    source = RunSource(rewritten("rollouts/step_000002.parquet", change))
    assert source.read(1) is not None
    assert source.read(2) is None
    (warning,) = source.warnings
    assert "rollouts/step_000002.parquet" in warning and told in warning


@pytest.mark.parametrize(
    ("name", "column", "field"),
    [
        ("rollouts", "truncated", "truncated"),
        ("rollouts", "rollout_logprobs", "rollout"),
        ("rollouts", "weight_versions", "versions"),
        ("train", "trainer_logprobs", "trainer"),
    ],
)
def test_a_column_with_holes_is_unknown_and_the_rest_is_read(
    rewritten: Callable[[str, Change], RunFiles], name: str, column: str, field: str
) -> None:
    source = RunSource(rewritten(f"{name}/step_000002.parquet", null(column)))
    step = source.read(2)
    assert step is not None and getattr(step, field) is None
    assert step.rewards.shape == (16,)
    assert column in source.warnings[0]


def test_a_copied_step_is_no_evidence(pair: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(pair, run)
    for kind in ("rollouts", "train"):
        shutil.copy(run / kind / "step_000002.parquet", run / kind / "step_000003.parquet")
    source = RunSource(RunFiles.open(run))
    assert source.steps() == [1, 2, 3]
    assert source.read(3) is None
    assert "its step is 2, not 3" in source.warnings[0]


@pytest.mark.parametrize(
    ("change", "kept", "told"),
    [
        (lambda table: table.drop(["task_id"]), 0, " lacks task_id"),
        (lambda table: table.drop(["reward"]), 0, " lacks reward"),
        (null("reward"), 39, ": 1 of 40 samples have no"),
        (null("task_id"), 39, ": 1 of 40 samples have no"),
        (lambda t: with_value(t, "reward", 0, float("nan")), 39, ": 1 of 40 samples have no"),
    ],
)
def test_an_evaluation_without_verdicts(
    rewritten: Callable[[str, Change], RunFiles], change: Change, kept: int, told: str
) -> None:
    run = rewritten("eval/step_000000.parquet", change)
    assert sum(map(len, rewards_at(run, 0).values())) == kept
    assert f"eval/step_000000.parquet{told}" in run.warnings[0]
    RunSource(run).about()


def test_facts_of_a_step_without_a_column(
    rewritten: Callable[[str, Change], RunFiles],
) -> None:
    run = rewritten("rollouts/step_000002.parquet", lambda table: table.drop(["turns"]))
    assert facts_at(run, 1) is not None
    assert facts_at(run, 2) is None
    assert "rollouts/step_000002.parquet lacks turns" in run.warnings[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"change": None}, "lacks change"),
        ({"content_tokens": None}, "lacks content_tokens"),
        ({"content_tokens": 0}, "turns without tokens"),
        ({"part": None}, "the whole update"),
    ],
)
def test_an_influence_file_with_holes(
    pair: Path, tmp_path: Path, changes: dict[str, Any], told: str | None
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(pair, run_dir)
    row = {
        "part": "update",
        "content_sample": "000002-0-0",
        "content_task": "a",
        "content_turn": 0,
        "content_tokens": 5,
        "content_near_cap": False,
        "change": 0.1,
    }
    about = {"schema_version": SCHEMA_VERSION, "identity": IDENTITY, "step": "1"}
    table = pa.Table.from_pylist([dict.fromkeys(SCHEMA.names) | row | changes], SCHEMA)
    path = run_dir / "influence" / "step_000001.parquet"
    path.parent.mkdir()
    pq.write_table(table.replace_schema_metadata(about), path)
    run = RunFiles.open(run_dir)
    assert (influences(run, 1) is None) is (told is not None)
    if told:
        assert "influence/step_000001.parquet" in run.warnings[0] and told in run.warnings[0]
    else:
        assert not run.warnings
