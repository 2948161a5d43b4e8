import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from glm52_tbench2.config.paths import command


def test_a_command_is_told_as_it_works_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "a run"
    monkeypatch.chdir(tmp_path)
    assert command("resume", run_dir, "--allow") == "glm52 resume 'a run' --allow"
    monkeypatch.setenv("PATH", os.defpath)
    found = Path(sys.executable).with_name("glm52")
    assert shlex.split(command("resume", run_dir)) == [str(found), "resume", "a run"]
    done = subprocess.run(command("--help"), shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("usage: glm52 ")


def test_a_command_in_the_folder_of_the_environment_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(Path(sys.prefix).parent)
    monkeypatch.setenv("PATH", os.defpath)
    assert command("jobs") == f"{Path(sys.prefix).name}/bin/glm52 jobs"
