"""docs/metrics.md names every metric there is."""

import re
from pathlib import Path

from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.config.paths import ROOT

PREFIXES = "rollout|eval|trainer|time|engine|task|sentinel"
WORDS = {
    "ID": r"[\w-]+",
    "SIGN": r"\w+",
    "REASON": r"\w+",
    "FILTER": r"\w+",
    "SPLIT": r"\w+",
    "…": r"\w+",
}


def documented() -> re.Pattern[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    names = re.findall(rf"`((?:{PREFIXES})/[^`]+)`", text)
    return re.compile("|".join(re.sub("|".join(WORDS), lambda m: WORDS[m[0]], n) for n in names))


def test_every_metric_of_a_run_is_documented(finished_run: Path) -> None:
    metrics = RunFiles.open(finished_run).metrics
    names = {name for steps in metrics.values() for found in steps.values() for name in found}
    assert len(names) > 80
    assert sorted(name for name in names if not documented().fullmatch(name)) == []


def test_every_metric_named_in_the_code_is_documented() -> None:
    names = {
        name
        for room in ("rollout", "trainer")
        for path in (ROOT / "glm52_tbench2" / room).rglob("*.py")
        for name in re.findall(rf'"((?:{PREFIXES})/[a-z_/0-9]+[a-z0-9])"', path.read_text())
    }
    assert {"trainer/loss", "time/train_push", "rollout/near_cap_turns"} <= names
    signals = {"trainer/ready", "engine/0"}
    assert sorted(n for n in names - signals if not documented().fullmatch(n)) == []
