"""What the trainer cannot do is refused in one sentence that names the knob."""

import pytest

from glm52_tbench2.trainer.limits import problems

from .parts import small_run


def test_the_smoke_run_has_no_problem():
    assert problems(small_run()) == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["parallel.tensor=2", "parallel.expert_tensor=2", "parallel.gpus_per_node=2"],
            "parallel.sequence_parallel=true",
        ),
        (
            ["parallel.tensor=2", "parallel.sequence_parallel=true", "parallel.gpus_per_node=2"],
            "write parallel.expert_tensor=2",
        ),
        (["model.family=glm_moe_dsa", "model.index_layers=[1]"], "model.family is glm_moe_dsa"),
        (["optim.state_on_disk=true"], "optim.state_on_disk is true"),
    ],
)
def test_what_it_cannot_do_names_the_knob(overrides, sentence):
    (problem,) = problems(small_run(*overrides))
    assert sentence in problem
