"""The text a run ends with."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from glm52_tbench2.analysis.facts import gather
from glm52_tbench2.analysis.report import write_report
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.summary import summary
from glm52_tbench2.config.paths import ROOT

from .fake_run import FakeRun


def test_it_tells_before_after_and_where_the_report_lies(finished_run: Path) -> None:
    report = write_report(finished_run)
    text = summary(finished_run)
    facts = gather(RunFiles.open(finished_run))
    assert f"held-out before  {facts.held_out(0)} (step 0)" in text
    assert f"held-out after   {facts.held_out(25)} (step 25)" in text
    assert ": rose (" in text
    assert str(report) in text
    assert re.search(r"glm52 train experiment=smoke steps=25 model.path=\S+ -m seed=2,3\n", text)
    assert "resume" not in text


def test_commands_are_told_as_they_work_where_the_environment_is_not_active(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(sys.prefix).parent)
    monkeypatch.setenv("PATH", os.defpath)
    assert f"\n  {Path(sys.prefix).name}/bin/glm52 train " in summary(finished_run)


def test_what_to_try_next_changes_one_thing_of_the_run_itself(
    finished_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(finished_run, run_dir)
    text = (run_dir / "config.yaml").read_text()
    text = text.replace("name: smoke", "name: k").replace("lr: 0.0003", "lr: 0.001")
    (run_dir / "config.yaml").write_text(text)
    text = summary(run_dir)
    assert re.search(r"glm52 train experiment=smoke .* optim.lr=0.001 -m seed=2,3\n", text)
    assert re.search(r"glm52 train experiment=smoke .* optim.lr=0.001 clip=dppo\n", text)


def test_a_stopped_run_is_told_how_to_go_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run_dir = tmp_path / "a run"
    FakeRun(run_dir, tokenizer, steps=4).write(upto=1, finished=False)
    text = summary(run_dir)
    assert "a run: stopped, step 1 of 4" in text
    assert f"glm52 resume '{run_dir}'" in text
    assert "the only evaluation" in text


def test_reading_a_run_needs_no_torch() -> None:
    code = (
        "import sys, glm52_tbench2.analysis.report, glm52_tbench2.analysis.summary, "
        "glm52_tbench2.analysis.track; "
        "print([m for m in ('torch', 'transformers', 'wandb', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
