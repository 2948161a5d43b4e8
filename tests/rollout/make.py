"""Samples for tests."""

import numpy as np

from glm52_tbench2.rollout.batch import Sample, Turn


def make_sample(
    group: int = 0,
    index: int = 0,
    *,
    step: int = 1,
    prompt: int = 5,
    turns: int = 2,
    turn_tokens: int = 3,
    version: int = 0,
    reward: float = 1.0,
    end_reason: str = "task_complete",
    task_id: str | None = None,
    seed: int = 0,
) -> Sample:
    """A well-formed sample: `turns` turns of `turn_tokens`, each but the last answered by 4."""
    rng = np.random.default_rng([seed, step, group, index])
    spans, length = [], prompt
    for number in range(turns):
        spans.append((length, length + turn_tokens))
        length += turn_tokens + (4 if number + 1 < turns else 0)
    mask = np.zeros(length, dtype=bool)
    for start, end in spans:
        mask[start:end] = True
    return Sample(
        sample_id=f"{step:06d}-{group}-{index}",
        step=step,
        group=group,
        index=index,
        task_id=task_id or f"task-{group}",
        end_reason=end_reason,
        reward=reward,
        truncated=end_reason in ("length", "budget"),
        tokens=rng.integers(0, 2000, length, dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -rng.random(length), 0).astype(np.float32),
        weight_versions=np.where(mask, version, -1).astype(np.int32),
        turns=[
            Turn(start, end, "stop", 0.25, start // 2, "ls", 0, 0.125, "größer\n\U0001f600")
            for start, end in spans
        ],
        prompt_tokens=prompt,
        generate_s=0.5,
        sandbox_s=0.25,
        verify_s=0.25,
        total_s=1.0,
        advantage=-0.5,
    )
