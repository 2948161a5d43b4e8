"""What the trainer cannot do is refused in one sentence that names the knob."""

import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.trainer.limits import problems

from .parts import SPARSE, small_run


@pytest.mark.parametrize("model", ["tiny", "glm47_flash", "glm52_744b_a40b"])
def test_every_model_can_be_trained(model):
    assert problems(compose(["experiment=smoke", f"model={model}"])) == []


def test_the_reference_layout_can_be_trained():
    assert problems(compose([])) == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["parallel.tensor=2", "parallel.expert_tensor=2", "parallel.gpus_per_node=2"],
            "parallel.sequence_parallel=true",
        ),
        ([*SPARSE, "model.index_heads=0"], "model.index_heads is 0"),
        ([*SPARSE, "model.index_head_dim=4"], "model.index_head_dim (4) is below"),
        ([*SPARSE, "model.index_layers=[1,3,4]"], "model.index_layers names [4]"),
    ],
)
def test_what_it_cannot_do_names_the_knob(overrides, sentence):
    (problem,) = problems(small_run(*overrides))
    assert sentence in problem
