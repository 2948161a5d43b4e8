"""A run folder read in every state it can be in."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from tokenizers import Tokenizer

from glm52_tbench2 import cli
from glm52_tbench2.analysis.evaluation import evaluation
from glm52_tbench2.analysis.run_files import RunFiles, definitions_differ
from glm52_tbench2.config import load_run_config, metrics_log
from glm52_tbench2.config.compose import compose_unchecked
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.rollout.batch import SCHEMA

from .fake_run import FakeRun


@pytest.fixture
def run_dir(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A run of two steps that nobody works on; free to be damaged."""
    return FakeRun(tmp_path / "run", tokenizer, steps=4).write(upto=2, finished=False)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        RunFiles.open(tmp_path)


def test_a_run_of_other_code_is_read_and_what_it_does_not_record_is_named(run_dir: Path) -> None:
    whole = RunFiles.open(run_dir).config
    content = yaml.safe_load((run_dir / "config.yaml").read_text())
    del content["sentinel"], content["rollout"]["batch_order"]
    content["rollout"]["gone"] = {"a": 1}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(content))
    run = RunFiles.open(run_dir)
    bare = compose_unchecked([])
    assert run.config.sentinel == bare.sentinel
    assert run.config.rollout == replace(whole.rollout, batch_order=bare.rollout.batch_order)
    assert run.config.model == whole.model
    (warning,) = run.warnings
    assert "does not record rollout.batch_order, sentinel" in warning
    assert "has rollout.gone, unknown today" in warning
    with pytest.raises(UserError):  # who would go on with it is refused
        load_run_config(run_dir)


@pytest.mark.parametrize("content", ["", "null", "- a list", "rollout: 3", "steps: many"])
def test_what_is_no_config_is_refused(run_dir: Path, content: str) -> None:
    (run_dir / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=r"config\.yaml|rollout|steps"):
        RunFiles.open(run_dir)


def test_a_damaged_step_file_is_left_out_and_named_once(run_dir: Path) -> None:
    path = run_dir / "rollouts" / "step_000002.parquet"
    path.write_bytes(path.read_bytes()[:1000])
    run = RunFiles.open(run_dir)
    assert run.steps("rollouts") == [1, 2]
    assert run.rows("rollouts", 2, ["reward"]) == run.rows("rollouts", 2, ["reward"]) == []
    assert len(run.rows("rollouts", 1, ["reward"])) == 32
    assert len(run.warnings) == 1
    assert "rollouts/step_000002.parquet is not readable" in run.warnings[0]


def test_a_flipped_bit_is_damage_and_no_other_number(run_dir: Path) -> None:
    run = RunFiles.open(run_dir)
    whole = run.rows("rollouts", 2, SCHEMA.names)
    path = run_dir / "rollouts" / "step_000002.parquet"
    content = path.read_bytes()
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        pages = [group.column(place) for place in range(group.num_columns)]
    for page in pages:
        place = (
            (page.dictionary_page_offset or page.data_page_offset) + page.total_compressed_size - 1
        )
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        assert run.rows("rollouts", 2, SCHEMA.names) in ([], whole)
    assert "rollouts/step_000002.parquet is not readable" in " ".join(run.warnings)


def test_a_footer_whose_names_are_no_text_is_damage(run_dir: Path) -> None:
    path = run_dir / "rollouts" / "step_000002.parquet"
    path.write_bytes(path.read_bytes().replace(b"sample_id", b"s\xe1mple_id"))
    run = RunFiles.open(run_dir)
    assert run.columns("rollouts", 2, ["sample_id", "reward"]) == {}
    assert "rollouts/step_000002.parquet is not readable" in run.warnings[0]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("schema_version", b"0", "its schema version is 0, not 1"),
        ("schema_version", b"\xff", "not readable"),
        ("step", b"1", "its step is 1, not 2"),
        ("identity", b"other", "its identity is other"),
        ("identity", None, "its identity is none"),
    ],
)
def test_a_step_file_of_something_else_is_left_out_and_named(
    run_dir: Path, name: str, value: bytes | None, told: str
) -> None:
    path = run_dir / "rollouts" / "step_000002.parquet"
    table = pq.read_table(path)
    about = {key: one for key, one in table.schema.metadata.items() if key != name.encode()}
    about |= {} if value is None else {name.encode(): value}
    pq.write_table(table.replace_schema_metadata(about), path)
    run = RunFiles.open(run_dir)
    assert run.rows("rollouts", 2, ["reward"]) == []
    assert run.columns("rollouts", 2, ["reward"]) == {}
    assert run.sample("rollouts", 2, "000002-0-0", ["reward"]) is None
    (warning,) = run.warnings
    assert "rollouts/step_000002.parquet" in warning and told in warning


@pytest.mark.parametrize("name", ["metrics.jsonl", "alarms.jsonl"])
def test_no_verb_breaks_on_lines_that_cannot_be_read(run_dir: Path, name: str, capsys) -> None:
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).mkdir()
    for verb in ("forensics", "report", "verify"):
        assert cli.main([verb, str(run_dir)]) in (0, 1), verb
    assert cli.main(["diff", str(run_dir), str(run_dir)]) == 0
    assert f"{name} is not readable" in (run_dir / "report.html").read_text()
    said = capsys.readouterr().out
    assert "metrics.jsonl cannot be read: Is a directory" in said or name == "alarms.jsonl"


@pytest.mark.parametrize("column", SCHEMA.names)
def test_no_verb_breaks_on_a_step_file_without_a_column(run_dir: Path, column: str, capsys) -> None:
    for kind, step in (("rollouts", 2), ("eval", 0)):
        path = run_dir / kind / f"step_{step:06d}.parquet"
        pq.write_table(pq.read_table(path).drop_columns(column), path)
    verbs = (
        ["samples"],
        ["samples", "000002-0-0"],
        ["samples", "--eval", "--step=0"],
        ["forensics"],
        ["report"],
    )
    for verb, *rest in verbs:
        assert cli.main([verb, str(run_dir), *rest]) in (0, 1, 2), verb
    assert cli.main(["diff", str(run_dir), str(run_dir)]) == 0
    evaluation(run_dir)
    assert "Traceback" not in "".join(capsys.readouterr())


def test_half_written_and_foreign_files_are_no_steps(run_dir: Path) -> None:
    (run_dir / "rollouts" / ".step_000003.parquet.12.tmp").write_bytes(b"PAR1")
    (run_dir / "rollouts" / "step_000003.parquet.corrupt").write_bytes(b"PAR1")
    (run_dir / "rollouts" / "step_final.parquet").write_bytes(b"PAR1")
    assert RunFiles.open(run_dir).steps("rollouts") == [1, 2]
    assert RunFiles.open(run_dir).steps("train") == []


def test_one_sample_is_read_with_every_column(run_dir: Path) -> None:
    run = RunFiles.open(run_dir)
    row = run.sample("rollouts", 1, "000001-0-2", SCHEMA.names)
    assert row is not None
    assert (row["group"], row["index"], len(row["tokens"])) == (0, 2, len(row["loss_mask"]))
    assert run.sample("rollouts", 1, "000009-0-2", SCHEMA.names) is None


def test_a_series_joins_sources_and_takes_the_last_record_of_a_step(run_dir: Path) -> None:
    for value in (1.0, 2.0):
        metrics_log.append(run_dir, 7, "trainer", {"trainer/grad_norm": value})
    series = RunFiles.open(run_dir).series("trainer/grad_norm")
    assert list(series) == [1, 2, 7]
    assert series[7] == 2.0


def test_a_series_never_mixes_two_definitions(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(metrics_log.DEFINITIONS, "trainer/grad_norm", 2)
    metrics_log.append(run_dir, 3, "trainer", {"trainer/grad_norm": 5.0, "trainer/loss": 1.0})
    run = RunFiles.open(run_dir)
    assert run.series("trainer/grad_norm") == {3: 5.0}
    assert list(run.series("trainer/loss")) == [1, 2, 3]
    assert (run.definition("trainer/grad_norm"), run.definition("trainer/loss")) == (2, 1)
    assert run.warnings == [
        "2 steps of trainer/grad_norm follow an older definition of it and are left out"
    ]


def test_the_trainers_metrics_are_those_of_the_newest_definitions(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(metrics_log.DEFINITIONS, "trainer/grad_norm", 2)
    metrics_log.append(run_dir, 3, "trainer", {"trainer/grad_norm": 5.0, "trainer/loss": 1.0})
    found = RunFiles.open(run_dir).trainer
    assert [step for step in found if "trainer/grad_norm" in found[step]] == [3]
    assert [step for step in found if "trainer/loss" in found[step]] == [1, 2, 3]


@pytest.mark.parametrize("value", [None, "high", [1.0]])
def test_a_metric_that_is_no_number_is_not_there(run_dir: Path, value: object) -> None:
    metrics_log.append(run_dir, 3, "trainer", {"trainer/entropy": value, "trainer/loss": 1.0})  # type: ignore[dict-item]
    run = RunFiles.open(run_dir)
    assert run.metrics["trainer"][3] == {"trainer/loss": 1.0}
    assert list(run.series("trainer/entropy")) == [1, 2]


def test_runs_of_two_definitions_are_not_compared(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(run_dir, other)
    monkeypatch.setitem(metrics_log.DEFINITIONS, "trainer/grad_norm", 2)
    metrics_log.append(other, 3, "trainer", {"trainer/grad_norm": 5.0})
    runs = [RunFiles.open(run_dir), RunFiles.open(other)]
    assert definitions_differ(runs, "trainer/loss") is None
    assert definitions_differ(runs, "eval/of_neither") is None
    said = definitions_differ(runs, "trainer/grad_norm")
    assert said is not None and "1 in run, 2 in other" in said


def test_an_unreadable_identity_is_a_warning(run_dir: Path) -> None:
    (run_dir / "identity.json").write_text('{"hash": ')
    run = RunFiles.open(run_dir)
    assert run.identity == {}
    assert "identity.json is not readable" in run.warnings[0]


@pytest.mark.parametrize(
    ("phase", "age_s", "state"),
    [
        ("running", 5, "running"),
        ("starting", 5, "running"),
        ("running", 600, "stopped"),
        ("running", -3600, "stopped"),  # the clock was set back since
        ("stopped", 5, "stopped"),
    ],
)
def test_a_run_is_running_while_its_heart_beats(
    run_dir: Path, phase: str, age_s: float, state: str
) -> None:
    beat = {"phase": phase, "time": time.time() - age_s}
    (run_dir / "heartbeat.json").write_text(json.dumps(beat))
    assert RunFiles.open(run_dir).state == state


@pytest.mark.parametrize("at", [None, "noon", []])
def test_a_heart_without_a_time_tells_nothing(run_dir: Path, at: object) -> None:
    (run_dir / "heartbeat.json").write_text(json.dumps({"phase": "running", "time": at}))
    run = RunFiles.open(run_dir)
    assert run.state == "stopped"
    assert "heartbeat.json has no time" in run.warnings[0]


def test_a_finished_run_says_so_whatever_its_heart_does(run_dir: Path) -> None:
    assert RunFiles.open(run_dir).state == "stopped"
    (run_dir / "finished").touch()
    assert RunFiles.open(run_dir).state == "finished"
