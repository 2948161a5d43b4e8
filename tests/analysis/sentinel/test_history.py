"""What is kept of giant turns that come again."""

import numpy as np
import pytest

from glm52_tbench2.analysis.sentinel.facts import GiantTurn, StepFacts
from glm52_tbench2.analysis.sentinel.history import History
from glm52_tbench2.analysis.sentinel.sketch import sketch


def test_a_family_tells_its_drift_by_step_and_its_advantage_by_token() -> None:
    said = sketch(np.tile(np.arange(20), 10))
    made = {
        1: [("a", 200, -1.0, 0.1), ("b", 100, -1.0, 0.3)],
        4: [("a", 100, 0.5, 0.6)],
    }
    history = History(similarity=0.8)
    for step, turns in made.items():
        giants = [
            GiantTurn(f"{step:06d}-0-{number}", task, 0, tokens, advantage, drift, said)
            for number, (task, tokens, advantage, drift) in enumerate(turns)
        ]
        history.add(StepFacts(step, {}, {}, giants))
    (family,) = history.families
    assert history.current == [family]
    assert (family.steps, family.tasks, len(family.members)) == ([1, 4], ["a", "b"], 3)
    assert [family.drift(step) for step in family.steps] == pytest.approx([0.2, 0.6])
    assert family.advantage == pytest.approx((-200 - 100 + 50) / 400)
