"""What a rank holds, against what `glm52 plan` says it does."""

from copy import deepcopy

import numpy as np
import pytest

from glm52_tbench2.config.schema import DType, Recompute
from glm52_tbench2.launch.plan import parameters
from glm52_tbench2.launch.plan.findings import trainer_ranks
from glm52_tbench2.rollout.batch import Sample, Turn

from .parts import layout

SAMPLES = 4
BFLOAT16 = {"model.dtype": DType.bfloat16}
FULL = {"parallel.recompute": Recompute.full}
SHARDED = {"tensor": 2, "sequence_parallel": True}


def sessions(run, tokens: int) -> list[Sample]:
    """Samples that fill so many tokens, all but ten of them generated."""
    rng, mask = np.random.default_rng(0), np.arange(tokens) >= 10
    return [
        Sample(
            sample_id=f"000001-0-{number}",
            step=1,
            group=0,
            index=number,
            task_id="files-1",
            end_reason="budget",
            reward=0.0,
            truncated=True,
            tokens=rng.integers(0, run.model.vocab_size, tokens).astype(np.int32),
            loss_mask=mask,
            rollout_logprobs=np.where(mask, -5, 0).astype(np.float32),
            weight_versions=np.where(mask, 0, -1).astype(np.int32),
            turns=[Turn(10, tokens, "length", 0.1)],
            prompt_tokens=10,
            advantage=number - 1.5,
        )
        for number in range(SAMPLES)
    ]


@pytest.mark.parametrize(
    ("ranks_used", "parallel", "session", "knobs"),
    [
        (1, {}, 256, {}),
        (1, {}, 256, {**FULL, **BFLOAT16}),
        (1, {}, 64, BFLOAT16),
        (2, {}, 256, FULL),
        (2, {**SHARDED, "expert": 2}, 256, BFLOAT16),
        (2, {**SHARDED, "expert_tensor": 2}, 256, FULL),
        (2, {"pipeline": 2, "pipeline_layers": [1, 2]}, 256, {}),
        (2, {"pipeline": 2, "pipeline_layers": [1, 2]}, 64, FULL),
        (2, {"expert": 2}, 256, FULL),
    ],
    ids=lambda value: "-".join(value) or "plain" if isinstance(value, dict) else str(value),
)
def test_a_rank_holds_what_the_plan_says(ranks, run, ranks_used, parallel, session, knobs):
    config = layout(run, ranks_used, max_tokens_per_rank=32, **parallel)
    config = with_knobs(config, session, knobs)
    measured = ranks(config, "memory", sessions(run, 16), sessions(run, session))
    planned = trainer_ranks(config, parameters.stages(config))
    for rank, found in enumerate(measured):
        expected = planned[rank * len(planned) // ranks_used]
        parts = {part.name: part.bytes for part in expected.parts}
        assert found["weights"] == pytest.approx(parts["weights"], rel=0.01)
        assert found["gradients"] == pytest.approx(parts["gradients"], rel=0.01)
        for name in ("optimizer state", "activations"):
            assert found[name] == pytest.approx(parts[name], rel=0.1), (rank, name)
        assert sum(found.values()) == pytest.approx(expected.bytes, rel=0.1)


def with_knobs(config, session, knobs):
    """A copy with a session budget and knobs by their dotted names."""
    config = deepcopy(config)
    config.rollout.max_session_tokens = session
    config.rollout.prompts_per_step, config.rollout.samples_per_prompt = 1, SAMPLES
    for name, value in knobs.items():
        group, _, knob = name.partition(".")
        setattr(getattr(config, group), knob, value)
    return config
