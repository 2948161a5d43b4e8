"""`glm52 plan`: the reference's figures, and what does not fit."""

import json
import re

import pytest

from glm52_tbench2.cli import main as glm52
from glm52_tbench2.config.compose import compose
from glm52_tbench2.launch import preflight
from glm52_tbench2.launch.plan import parameters, planned
from glm52_tbench2.launch.plan.count import count
from glm52_tbench2.launch.plan.engines import engine_memory
from glm52_tbench2.launch.plan.findings import memory_problems, trainer_ranks
from glm52_tbench2.launch.plan.memory import state_bytes
from glm52_tbench2.launch.plan.times import step_times, update_times

SHARDED = ["parallel.tensor=2", "parallel.sequence_parallel=true"]
WIDE = ["experiment=smoke", "model=glm47_flash", "model.path=data/tiny"]
FLASH = [
    "model=glm47_flash",
    "parallel.nodes=1",
    "parallel.tensor=1",
    "parallel.context=1",
    "parallel.pipeline=1",
    "parallel.pipeline_layers=[]",
    "parallel.expert=4",
]
LAYOUTS = {
    "reference": [],
    "nothing split": ["experiment=smoke"],
    "tensor": ["experiment=smoke", *SHARDED, "parallel.gpus_per_node=2"],
    "tensor, expert": [
        "experiment=smoke",
        *SHARDED,
        "parallel.expert=4",
        "parallel.gpus_per_node=4",
    ],
    "expert tensor": [
        "experiment=smoke",
        *SHARDED,
        "parallel.expert=2",
        "parallel.expert_tensor=2",
        "parallel.gpus_per_node=4",
    ],
    "context": ["experiment=smoke", "parallel.context=4", "parallel.gpus_per_node=4"],
    "stages": [
        "experiment=smoke",
        "parallel.pipeline=3",
        "parallel.gpus_per_node=3",
        "rollout.prompts_per_step=6",
    ],
    "uneven stages": [
        "experiment=smoke",
        "parallel.pipeline=2",
        "parallel.pipeline_layers=[2,1]",
        "parallel.gpus_per_node=4",
    ],
    "another model": [
        *WIDE,
        *SHARDED,
        "parallel.expert=8",
        "parallel.gpus_per_node=8",
        "parallel.pipeline=4",
        "parallel.pipeline_layers=[11,12,12,12]",
        "parallel.nodes=4",
        "cluster=slurm",
        "cluster.nodes=5",
    ],
}


@pytest.fixture(scope="module")
def counted():
    """Parameters of each layout's stages, in the model that the trainer builds."""
    return dict(zip(LAYOUTS, count([compose(one) for one in LAYOUTS.values()]), strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_closed_form_counts_what_the_trainer_builds(counted, name):
    config = compose(LAYOUTS[name])
    expected = parameters.stages(config)
    assert [one.experts for one in counted[name]] == [one.experts for one in expected]
    assert [one.sharded for one in counted[name]] == [one.sharded for one in expected]
    assert [one.whole for one in counted[name]] == [one.whole for one in expected]
    # Indexers, where the trainer has them: well under a thousandth.
    assert [one.held for one in counted[name]] == pytest.approx(
        [one.held for one in expected], rel=5e-3
    )


def test_the_reference_has_744b_parameters_of_which_a_token_meets_40b(counted):
    config = compose([])
    assert parameters.total(counted["reference"], config.parallel) == pytest.approx(744e9, rel=2e-3)
    active = parameters.active(counted["reference"], config.model, config.parallel)
    assert active == pytest.approx(40e9, rel=0.01)


def test_the_reference_leaves_279_gb_of_adams_state_a_rank(counted):
    config, stages = compose([]), counted["reference"]
    each = state_bytes(config, parameters.total(stages, config.parallel)) / 32
    assert each == pytest.approx(279e9, rel=2e-3)
    heaviest = max(rank.state.bytes for rank in trainer_ranks(config, stages))
    # Its stage has more layers than the average, and what is not split is on every rank.
    assert heaviest == pytest.approx(322e9, rel=5e-3)
    assert heaviest == 12 * max(one.trained for one in stages)


def test_the_engine_has_the_published_room_for_kv_tokens():
    assert engine_memory(compose([])).kv_tokens == pytest.approx(553_000, rel=0.05)


def test_a_server_argument_that_is_no_number_is_the_servers_to_refuse():
    config = compose(["engine.server_args.mem-fraction-static=much"])
    assert engine_memory(config).kv_tokens is None and memory_problems(config) == []


def test_the_reference_fits():
    assert memory_problems(compose([])) == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optim.state_on_disk=false"], "write optim.state_on_disk=true"),
        (["parallel.recompute=none"], "write parallel.recompute=full"),
        (
            ["parallel.max_tokens_per_rank=262144"],
            "write parallel.max_tokens_per_rank=16384",
        ),
        (
            ["optim.state_on_disk=false", "parallel.recompute=none"],
            "write optim.state_on_disk=true parallel.recompute=full",
        ),
        (
            ["parallel.expert=2", "parallel.context=1", "parallel.nodes=2"],
            "raise parallel.expert, parallel.pipeline or parallel.nodes",
        ),
        (
            [*FLASH, "rollout.max_session_tokens=200000", "cluster.hardware.gpu_memory_gb=120"],
            "write parallel.context=2 parallel.nodes=2",
        ),
        (["cluster.hardware.disk_gb=1000"], "cluster.hardware.disk_gb is 1000"),
        (
            ["engine.server_args.mem-fraction-static=0.75"],
            "less than one session, rollout.max_session_tokens (65,536)",
        ),
        (
            ["engine.server_args.mem-fraction-static=0.75"],
            "write engine.server_args.mem-fraction-static=0.8",
        ),
        (
            ["engine.gpus_per_engine=2", "engine.server_args.attn-dp-size=2"],
            "raise engine.gpus_per_engine",
        ),
        (
            ["experiment=smoke", "cluster.hardware.host_memory_gb=0.1"],
            "of a node's own memory, a checkpoint's copy included, and it has 0.1 GB",
        ),
        (
            ["experiment=smoke", "engine.server_args.max-total-tokens=512"],
            "engine.server_args.max-total-tokens (512) is less than one session",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_mend(overrides, said):
    found = memory_problems(compose(overrides))
    assert any(said in one for one in found), found
    assert all("\n" not in one and one.endswith(".") for one in found)
    if "; write " in found[0]:
        mend = re.findall(r"[a-z_.-]+=[\w.]*\w", found[0].rpartition("; write ")[2])
        assert mend and memory_problems(compose([*overrides, *mend])) == []


def test_what_the_plan_refuses_is_not_queued(monkeypatch):
    config = compose(["optim.state_on_disk=false"])
    monkeypatch.setattr(preflight, "cluster_problems", lambda config: [])
    monkeypatch.setattr(preflight.shutil, "which", lambda name, *a, **k: f"/usr/bin/{name}")
    refused = memory_problems(config)
    # On the GPU, and where a checkpoint copies it.
    assert [sentence.split(" needs ")[0].split(" take ")[0] for sentence in refused] == [
        "A rank of pipeline stage 4",
        "The trainer's ranks",
    ]
    assert set(refused) <= set(preflight.problems(config))


def test_a_bfloat16_step_computes_what_its_parameters_take():
    """Without attention over long sequences, 6 operations a parameter and token, 8 recomputed."""
    config = compose(["rollout.max_turn_tokens=8", "rollout.max_session_tokens=16"])
    stages = parameters.stages(config)
    step = step_times(config, stages, trainer_ranks(config, stages))
    active = parameters.active(stages, config.model, config.parallel)
    assert step.tokens == 64 * 16
    assert step.flops == pytest.approx(8 * active * step.tokens, rel=1e-3)
    config.parallel.recompute = type(config.parallel.recompute).none
    step = step_times(config, stages, trainer_ranks(config, stages))
    assert step.flops == pytest.approx(6 * active * step.tokens, rel=1e-3)


def test_a_state_on_disk_is_read_and_written_by_every_rank_of_a_node():
    config = compose(["cluster.hardware.disk_gb_s=1"])
    stages = parameters.stages(config)
    ranks = trainer_ranks(config, stages)
    heaviest = max(rank.state.bytes for rank in ranks)
    assert step_times(config, stages, ranks).state_s == pytest.approx(2 * 4 * heaviest / 1e9)


def test_what_is_unknown_of_a_machine_is_not_made_up():
    config = compose(["cluster.hardware.fabric_gb_s=null", "cluster.hardware.gpu_memory_gb=null"])
    stages = parameters.stages(config)
    assert step_times(config, stages, trainer_ranks(config, stages)).floor_s is None
    assert update_times(config, stages)[0].floor_s is None
    assert engine_memory(config).kv_tokens is None
    assert memory_problems(config) == []


def test_a_plan_of_a_small_run_can_be_read(capsys):
    assert glm52(["plan", "experiment=smoke"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "1.05M parameters" in text
    assert "It fits." in text
    assert max(map(len, text.splitlines())) < 250


def test_json_has_the_same_in_bytes(capsys, monkeypatch):
    monkeypatch.setattr(
        planned, "count", lambda configs: [parameters.stages(one) for one in configs]
    )
    assert glm52(["plan", "experiment=smoke", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["problems"] == []
    assert found["parameters"]["total"] == 1_049_856
    (rank,) = found["ranks"]
    assert rank["bytes"]["weights"] == 4 * 1_049_856
    assert rank["bytes"]["gradients"] == 4 * 1_049_856
    assert rank["optimizer_state_bytes"] == 8 * 1_049_856
    assert rank["total_bytes"] == sum(rank["bytes"].values())
    assert found["engine"]["kv_tokens"] == 131072


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["parallel.tensor=3"], ["tensor x context x pipeline = 48", "model.num_heads (64)"]),
        (["parallel.expert=7"], ["parallel.expert (7) does not divide model.num_experts (256)"]),
        (["parallel.pipeline_layers=[20,20,20,18]"], ["stage at layer 21, 41, 61"]),
        (["parallel.pipeline_layers=[19,59,0,0]"], ["4 numbers above 0"]),
        (["parallel.expert_tensor=3"], ["model.expert_ffn_size (2048)", "do not divide"]),
        (["parallel.nodes=0"], ["parallel.nodes is 0"]),
        (["parallel.tensr=2"], ["did you mean 'parallel.tensor'?"]),
        (["parallel.tensor=two"], ["parallel.tensor"]),
    ],
)
def test_a_layout_that_is_none_is_refused_with_every_reason(capsys, overrides, said):
    assert glm52(["plan", *overrides]) == 2
    text = capsys.readouterr().err
    for part in said:
        assert part in text


def test_reasons_are_json_too(capsys):
    assert glm52(["plan", "parallel.expert=7", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"]
    assert any("num_experts" in one for one in found["problems"])
