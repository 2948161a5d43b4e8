"""Samples listed and read."""

import io
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from glm52_tbench2 import cli
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.samples import show_sample, show_samples
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.rollout.batch import SCHEMA


def listed(run: Path, step: int | None, held_out: bool, terminal: bool = False) -> list[str]:
    out = io.StringIO()
    show_samples(run, step, held_out, Console(file=out, force_terminal=terminal, width=80))
    return out.getvalue().splitlines()


def read(run: Path, sample: str, held_out: bool = False) -> str:
    out = io.StringIO()
    show_sample(run, sample, held_out, Console(file=out, width=80))
    return out.getvalue()


@pytest.mark.parametrize(("step", "held_out"), [(3, False), (0, True)])
def test_every_sample_of_a_step_is_a_line(finished_run: Path, step: int, held_out: bool) -> None:
    header, *lines = listed(finished_run, step, held_out)
    kind = "eval" if held_out else "rollouts"
    rows = RunFiles.open(finished_run).rows(kind, step, ("sample_id", "task_id", "reward"))
    assert header.split("\t")[:4] == ["sample", "task", "end", "reward"]
    assert [line.split("\t")[:2] for line in lines] == [
        [r["sample_id"], r["task_id"]] for r in rows
    ]
    assert [line.split("\t")[3] for line in lines] == [f"{row['reward']:.2f}" for row in rows]


def test_the_last_step_is_listed_by_default(finished_run: Path) -> None:
    assert listed(finished_run, None, False) == listed(finished_run, 25, False)
    assert "step 25" in listed(finished_run, None, False, terminal=True)[0]


def test_a_transcript_is_what_was_read_written_and_answered(finished_run: Path) -> None:
    line = next(one for one in listed(finished_run, 3, False)[1:] if "task_complete" in one)
    sample = line.split("\t")[0]
    row = RunFiles.open(finished_run).sample("rollouts", 3, sample, SCHEMA.names)
    assert row is not None
    text = read(finished_run, sample)
    assert text.startswith(f"{sample}  {row['task_id']}  {row['end_reason']}  reward")
    assert len(re.findall(r"^── turn \d", text, re.M)) == len(row["turns"])
    for turn in row["turns"]:
        assert turn["command"] is None or turn["observation"] in text


def test_what_is_not_there_gets_a_sentence(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rollouts of step 99; it has 1 to 25"):
        listed(finished_run, 99, False)
    with pytest.raises(UserError, match="is not a sample, as 000012-3-1"):
        read(finished_run, "abc")
    with pytest.raises(UserError, match=r"no sample 000003-9-9 in rollouts; .* --step 3$"):
        read(finished_run, "000003-9-9")
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "rollouts" / "step_000003.parquet").write_bytes(b"torn")
    with pytest.raises(UserError, match="step_000003"):
        listed(run, 3, False)


def test_a_run_of_older_code_is_read(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"(?m)^  lag: .*\n", "", config))
    sample = listed(run, 3, False)[1].split("\t")[0]
    assert "does not record rollout.lag" in capsys.readouterr().err
    assert read(run, sample).startswith(sample)
    with pytest.raises(UserError, match=r"^There is no sample 000003-9-9"):
        read(run, "000003-9-9")


def test_the_verb_lists_or_reads(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["samples", str(finished_run), "--step", "3"]) == 0
    sample = capsys.readouterr().out.splitlines()[1].split("\t")[0]
    assert cli.main(["samples", str(finished_run), sample]) == 0
    assert capsys.readouterr().out.startswith(sample)
