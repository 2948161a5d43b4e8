"""What follows from alarms: the reasons of a pause, the setting that stops a run."""

from dataclasses import replace

import pytest

from glm52_tbench2.analysis.sentinel.files import Alarm
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import SentinelAction
from glm52_tbench2.trainer.watch import PAUSED, pause, stop

GROWTH = Alarm(9, "mismatch_growth", "pause", "KL grows.")
SIGNAL = Alarm(9, "zero_signal", "pause", "No group carries a signal.")
NOTED = Alarm(9, "length", "note", "Samples grow longer.")
STOPS = Alarm(9, "entropy", "stop", "Entropy collapses.")


def test_a_pause_tells_every_reason(tmp_path):
    pause(tmp_path, [GROWTH, NOTED, SIGNAL])
    assert (tmp_path / PAUSED).read_text().splitlines() == [
        "mismatch_growth: KL grows.",
        "zero_signal: No group carries a signal.",
    ]


@pytest.mark.parametrize("alarms", [[], [NOTED], [GROWTH, STOPS]])
def test_nothing_pauses_without_a_reason_or_where_the_run_is_stopped(tmp_path, alarms):
    pause(tmp_path, alarms)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("of_all", "of_one", "setting"),
    [
        ("stop", {}, "sentinel.action=stop"),
        ("note", {"entropy": "stop"}, "sentinel.actions.entropy"),
    ],
)
def test_a_stop_names_the_setting_that_asked_for_it(of_all, of_one, setting):
    config = compose(["experiment=smoke"]).sentinel
    config = replace(config, action=SentinelAction[of_all], actions=of_one)
    stop(config, [NOTED, GROWTH])
    with pytest.raises(UserError, match=f"with {setting}.*Entropy collapses"):
        stop(config, [GROWTH, STOPS])
