"""Whole or absent: files of a run survive a kill in the middle of a write."""

import json
import subprocess
import sys

import pytest

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.files import append_line, atomic_path, atomic_write_bytes


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "f"
    atomic_write_bytes(target, b"old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_kill_in_the_middle_leaves_no_half_file(tmp_path):
    code = (
        "import os; from pathlib import Path\n"
        "from glm52_tbench2.config.files import atomic_path\n"
        f"with atomic_path(Path({str(tmp_path / 'f')!r})) as t:\n"
        "    t.write_bytes(b'half'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert not (tmp_path / "f").exists()


def test_a_line_for_which_there_is_no_room_is_told(tmp_path):
    """A disk takes the part of a line that it has room for; so does this limit of a file's size."""
    path = tmp_path / "lines"
    code = (
        "import resource; from pathlib import Path\n"
        "from glm52_tbench2.config.files import append_line\n"
        f"append_line(Path({str(path)!r}), 'first')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        f"try: append_line(Path({str(path)!r}), 'second' * 10)\n"
        "except OSError: print('told')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "told\n", done.stderr
    append_line(path, "third")
    assert path.read_text().splitlines()[::2] == ["first", "third"]


def test_the_last_record_of_a_step_counts_and_a_half_line_is_left_out(tmp_path):
    metrics_log.append(tmp_path, 1, "trainer", {"trainer/loss": 1.0})
    metrics_log.append(tmp_path, 1, "trainer", {"trainer/loss": 2.0})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 2})[:-3])
    assert metrics_log.read(tmp_path) == {"trainer": {1: {"trainer/loss": 2.0}}}


def test_a_line_after_a_half_line_is_still_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "sour')
    metrics_log.append(tmp_path, 2, "driver", {"rollout/reward": 0.5})
    assert metrics_log.read(tmp_path) == {"driver": {2: {"rollout/reward": 0.5}}}


UNCOUNTED = '{"step": Infinity, "source": "driver", "time": 1, "metrics": {}}'


@pytest.mark.parametrize(
    "line", ["null", "[1]", "3", "{}", '{"step": 1}', "\0\0\0", '{"step": {}}', UNCOUNTED]
)
def test_a_line_that_is_no_record_is_left_out(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    metrics_log.append(tmp_path, 2, "driver", {"rollout/reward": 0.5})
    assert metrics_log.read(tmp_path) == {"driver": {2: {"rollout/reward": 0.5}}}
    told: list[str] = []
    metrics_log.records(tmp_path, told.append)
    assert told == ["metrics.jsonl: 1 of 2 lines are no records; left out"]
