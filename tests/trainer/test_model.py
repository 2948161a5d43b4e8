"""What the trainer cannot build is refused in one sentence."""

from dataclasses import replace

import pytest

from glm52_tbench2.config.schema import ModelFamily

from .parts import layout


@pytest.mark.parametrize(
    ("parallel", "sentence"),
    [
        ({"context": 2}, r"parallel\.context is 2"),
        ({"tensor": 2, "expert_tensor": 2}, r"parallel\.sequence_parallel=true"),
        ({"tensor": 2, "sequence_parallel": True}, r"write parallel\.expert_tensor=2"),
    ],
)
def test_a_layout_it_cannot_do_names_the_knob(ranks, run, parallel, sentence):
    with pytest.raises(AssertionError, match=f"UserError: .*{sentence}"):
        ranks(layout(run, 2, **parallel), "round_trip")


def test_an_architecture_it_cannot_build_names_the_knob(ranks, run):
    other = replace(run, model=replace(run.model, family=ModelFamily.glm_moe_dsa))
    with pytest.raises(AssertionError, match=r"UserError: model\.family is glm_moe_dsa"):
        ranks(other, "round_trip")


def test_optimizer_state_on_disk_is_refused(ranks, run):
    other = replace(run, optim=replace(run.optim, state_on_disk=True))
    with pytest.raises(AssertionError, match=r"UserError: optim\.state_on_disk is true"):
        ranks(other, "decays")


def test_a_fabric_without_an_interface_is_refused(ranks, run):
    other = replace(run, cluster=replace(run.cluster, fabric="203.0.113."))
    with pytest.raises(AssertionError, match=r"UserError: No network interface.*'203\.0\.113\.'"):
        ranks(other, "round_trip")
