from dataclasses import replace

import numpy as np
import pytest
import torch

from glm52_tbench2.config.schema import (
    NEAR_CAP,
    Capped,
    Correction,
    DType,
    Recompute,
    Reduction,
    RunConfig,
)
from glm52_tbench2.trainer.losses import BatchTotals, Tokens, rl_loss

from .parts import layout, make_batch


@pytest.fixture(scope="module")
def run(run: RunConfig) -> RunConfig:
    """Splits the gradient in every step."""
    return split_every(run, 1)


def split_every(run: RunConfig, steps: int) -> RunConfig:
    return replace(run, optim=replace(run.optim, grad_split_every=steps))


def clipped(run: RunConfig, **clip) -> RunConfig:
    return replace(run, clip=replace(run.clip, **clip))


def assert_same_training(found, expected, atol=2e-5):
    (metrics, scores, weights), (metrics_, scores_, weights_) = found, expected
    for mine, theirs in zip(metrics, metrics_, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - {"trainer/micro_batches"}:
            if not name.startswith("time/"):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    for mine, theirs in zip(scores, scores_, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=atol)
    for name in weights_:
        np.testing.assert_allclose(weights[name], weights_[name], atol=atol, err_msg=name)


def train_by_transformers(run, batches):
    """The same training in plain transformers and torch, one sample at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(run.model.path, dtype=torch.float32)
    plain = [p for p in model.parameters() if p.ndim == 1]
    decayed = [p for p in model.parameters() if p.ndim > 1]
    optim = run.optim
    adam = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": optim.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
    )
    found = []
    for batch in batches:
        totals = BatchTotals(
            len(batch), sum(s.num_generated for s in batch), run.rollout.max_session_tokens
        )
        adam.zero_grad()
        total, parts, trained = 0.0, {1: 0.0, -1: 0.0}, set()
        start = [p.detach().clone() for p in model.parameters()]
        for sample in batch:
            tokens = torch.from_numpy(sample.tokens.astype(np.int64))
            logits = model(tokens[None, :-1]).logits[0] / run.rollout.temperature
            dist = torch.distributions.Categorical(logits=logits)
            logp = dist.log_prob(tokens[1:])
            size = len(tokens) - 1
            near = torch.zeros(len(tokens), dtype=torch.bool)
            for turn in sample.turns:
                long = turn.end - turn.start >= NEAR_CAP * run.rollout.max_turn_tokens
                near[turn.start : turn.end] = long
            known = Tokens(
                old_logp=logp.detach(),
                rollout_logp=torch.from_numpy(sample.rollout_logprobs[1:]),
                advantages=torch.full((size,), sample.advantage),
                truncated=torch.full((size,), sample.truncated),
                near_cap=near[1:],
                mask=torch.from_numpy(sample.loss_mask[1:]),
                sample_index=torch.zeros(size, dtype=torch.int64),
            )
            loss, _ = rl_loss(logp, dist.entropy(), known, run.clip, totals)
            of_sample = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            flat = torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).view(-1)
                    for p, g in zip(start, of_sample, strict=True)
                ]
            )
            trained |= {place for place, g in enumerate(of_sample) if g is not None}
            parts[int(np.sign(sample.advantage)) or 1] += flat
            total += loss.item()
        whole = parts[1] + parts[-1]
        split = whole.split([p.numel() for p in start])
        for place, (p, g) in enumerate(zip(model.parameters(), split, strict=True)):
            p.grad = g.view_as(p) if place in trained else None
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip_grad))
        adam.step()
        change = torch.cat(
            [(p - b).detach().view(-1) for p, b in zip(model.parameters(), start, strict=True)]
        )
        weights = torch.cat([p.detach().view(-1) for p in model.parameters()])
        found.append(
            {
                "trainer/loss": total,
                "trainer/grad_norm": norm,
                "trainer/grad_norm_positive": float(parts[1].norm()),
                "trainer/grad_norm_negative": float(parts[-1].norm()),
                "trainer/grad_cosine": float(torch.cosine_similarity(parts[1], parts[-1], dim=0)),
                "trainer/update_norm": float(change.norm()),
                "trainer/update_relative": float(change.norm() / weights.norm()),
            }
        )
    return found, model


@pytest.fixture(scope="module")
def batches(run):
    return [make_batch(run, step) for step in (1, 2, 3)]


@pytest.fixture(scope="module")
def trained(ranks, run, batches):
    return ranks(run, "train", batches)[0]


def test_three_steps_are_those_of_plain_transformers(ranks, run, batches, trained):
    metrics, _, weights = trained
    expected, model = train_by_transformers(run, batches)
    for mine, theirs in zip(metrics, expected, strict=True):
        for name, value in theirs.items():
            near_0 = 1e-5 if name in ("trainer/loss", "trainer/grad_cosine") else 0
            assert mine[name] == pytest.approx(value, rel=1e-4, abs=near_0), name
    final = model.state_dict()
    for name in ("lm_head.weight", "model.layers.2.self_attn.q_a_layernorm.weight"):
        np.testing.assert_allclose(weights[name], final[name].numpy(), atol=2e-5, err_msg=name)
    experts = final["model.layers.1.mlp.experts.down_proj"].numpy()
    mine = weights["model.layers.1.mlp.experts.5.down_proj.weight"]
    np.testing.assert_allclose(mine, experts[5], atol=2e-5)


def test_splitting_the_gradient_leaves_the_training_the_same_to_the_bit(
    ranks, run, batches, trained
):
    (found,) = ranks(split_every(run, 2), "train", batches)
    told = ["trainer/grad_norm_positive" in metrics for metrics in found[0]]
    assert told == [False, True, False]
    for name, weights in trained[2].items():
        np.testing.assert_array_equal(found[2][name], weights, err_msg=name)


def test_a_batch_of_one_sign_has_no_gradient_of_the_other(ranks, run):
    batch = [replace(one, advantage=abs(one.advantage)) for one in make_batch(run, 1)]
    ((metrics,), _, _) = ranks(run, "train", [batch])[0]
    assert metrics["trainer/grad_norm_negative"] == 0
    assert metrics["trainer/grad_norm_positive"] == pytest.approx(metrics["trainer/grad_norm"])
    assert "trainer/grad_cosine" not in metrics


def test_turns_near_the_cap_are_masked_as_in_plain_transformers(ranks, run, batches):
    run = clipped(run, capped=Capped.mask_negative)
    run = replace(run, rollout=replace(run.rollout, max_turn_tokens=20))
    metrics = ranks(run, "train", batches)[0][0]
    expected, _ = train_by_transformers(run, batches)
    assert all(0 < m["trainer/weight_zero_share"] < 1 for m in metrics)
    for name, most in (("trainer/loss", {"abs": 1e-5}), ("trainer/grad_norm", {"rel": 1e-4})):
        found = [m[name] for m in metrics]
        assert found == pytest.approx([e[name] for e in expected], **most), name


def test_a_metric_that_only_one_update_has_is_told(ranks, run):
    """The second update's samples are all pushed up, so its gradient has no second part."""
    batch = make_batch(run, 1)
    half = len(batch) // 2
    signs = [1, -1] * half
    batch = [
        replace(one, advantage=abs(one.advantage) * (signs[i] if i < half else 1))
        for i, one in enumerate(batch)
    ]
    twice = replace(run, optim=replace(run.optim, steps_per_batch=2))
    ((metrics,), _, _) = ranks(twice, "train", [batch])[0]
    assert -1 <= metrics["trainer/grad_cosine"] <= 1


def test_scores_are_the_log_probs_before_the_update_on_generated_tokens_alone(
    run, batches, trained
):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(run.model.path, dtype=torch.float32)
    for sample, (logp, entropy) in zip(batches[0], trained[1][0], strict=True):
        tokens = torch.from_numpy(sample.tokens.astype(np.int64))
        with torch.no_grad():
            logits = model(tokens[None, :-1]).logits[0] / run.rollout.temperature
        dist = torch.distributions.Categorical(logits=logits)
        mask = sample.loss_mask
        np.testing.assert_allclose(logp[mask], dist.log_prob(tokens[1:])[mask[1:]], atol=2e-5)
        np.testing.assert_allclose(entropy[mask], dist.entropy()[mask[1:]], atol=2e-5)
        assert not logp[~mask].any()


@pytest.mark.parametrize("reduction", list(Reduction), ids=lambda r: r.name)
def test_the_packing_changes_nothing(ranks, run, batches, reduction):
    run = clipped(run, reduction=reduction, entropy_coef=0.01)
    (few,) = ranks(layout(run, 1, max_tokens_per_rank=4096), "train", batches)
    (many,) = ranks(layout(run, 1, max_tokens_per_rank=40), "train", batches)
    assert few[0][0]["trainer/micro_batches"] == 1
    assert many[0][0]["trainer/micro_batches"] > 4
    assert_same_training(many, few)


SHARDED = {"tensor": 2, "sequence_parallel": True}
LAYOUTS = {
    "data": (2, {}),
    "tensor": (2, {**SHARDED, "expert_tensor": 2}),
    "tensor-expert": (2, {**SHARDED, "expert": 2}),
    "tensor-whole-experts": (2, SHARDED),
    "pipeline": (2, {"pipeline": 2, "pipeline_layers": [2, 1]}),
    "context": (2, {"context": 2}),
    "data-expert": (2, {"expert": 2}),
    "context-4": (4, {"context": 4, "expert": 4}),
    "tensor-pipeline": (
        4,
        {**SHARDED, "expert": 2, "pipeline": 2, "pipeline_layers": [2, 1]},
    ),
    "tensor-context-expert": (4, {**SHARDED, "context": 2, "expert": 2}),
    "context-pipeline": (4, {"context": 2, "pipeline": 2, "pipeline_layers": [2, 1]}),
    "context-data": (4, {"context": 2}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_trains_as_one_rank(ranks, run, batches, trained, name):
    number, parallel = LAYOUTS[name]
    found = ranks(layout(run, number, max_tokens_per_rank=100, **parallel), "train", batches)
    assert_same_training(found[0], trained)


def test_more_ranks_than_samples_train_as_one(ranks, run):
    batch = make_batch(run, 1, num_samples=1)
    (expected,) = ranks(run, "train", [batch])
    assert_same_training(ranks(layout(run, 2), "train", [batch])[0], expected)


def test_recomputation_changes_nothing(ranks, run, batches, trained):
    (found,) = ranks(layout(run, 1, recompute=Recompute.full), "train", batches)
    assert_same_training(found, trained)


def test_a_second_update_on_a_batch_takes_its_ratios_from_before_the_first(ranks, run):
    batch = make_batch(run, 1)
    run = clipped(run, correction=Correction.none)
    twice = replace(run, optim=replace(run.optim, steps_per_batch=2))
    (found,) = ranks(twice, "train", [batch])
    (once,) = ranks(run, "train", [batch])
    # Scored before both updates, so as a single update does.
    np.testing.assert_allclose(found[1][0][7][0], once[1][0][7][0], atol=2e-5)
    # The ratios of the second half have left 1, those of a single update cannot.
    assert abs(found[0][0]["trainer/policy_kl"]) > 1e-4
    assert once[0][0]["trainer/policy_kl"] == 0
    assert_same_training(ranks(layout(twice, 2, context=2), "train", [batch])[0], found)


def test_a_sample_without_generated_tokens_counts_in_the_mean_and_trains_nothing(ranks, run):
    batch = make_batch(run, 1, num_samples=4)
    silent = replace(
        batch[0],
        loss_mask=np.zeros_like(batch[0].loss_mask),
        weight_versions=np.full_like(batch[0].weight_versions, -1),
        turns=[],
    )
    (rest,) = ranks(run, "train", [batch[1:]])
    (found,) = ranks(run, "train", [[silent, *batch[1:]]])
    assert found[0][0]["trainer/loss"] == pytest.approx(
        rest[0][0]["trainer/loss"] * 3 / 4, rel=1e-4
    )
    assert not found[1][0][0][0].any()


def test_a_masked_sample_trains_nothing_and_counts_in_every_divisor(ranks, run, batches):
    """As an advantage of 0, but told by the advantage it has."""
    batch = batches[0]
    without = [
        replace(sample, advantage=0.0) if i == 2 else sample for i, sample in enumerate(batch)
    ]
    (masked, _, weights), *_ = ranks(run, "train_masked", batch, [2])
    (plain, _, expected), *_ = ranks(run, "train", [without])
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert masked[0]["trainer/masked_samples"] == 1
    name = "trainer/mismatch/advantage_zero/token_share"
    assert name not in masked[0] and plain[0][name] > 0


def test_the_routing_bias_stays_as_it_was(run, start_weights, trained):
    from safetensors.torch import load_file

    before = load_file(start_weights / "model.safetensors")
    biases = [name for name in before if name.endswith("e_score_correction_bias")]
    assert biases
    for name in biases:
        np.testing.assert_array_equal(trained[2][name], before[name].numpy())


def test_norms_are_not_decayed_and_everything_else_is(ranks, run):
    (found,) = ranks(run, "decays")
    assert {name for name, decay in found.items() if decay == 0} == {
        name for name in found if "norm" in name
    }
    assert {decay for decay in found.values() if decay} == {run.optim.weight_decay}


def test_a_gradient_that_is_not_finite_leaves_the_weights_and_names_the_step(ranks, run, trained):
    batch = make_batch(run, 1)
    batch[2].advantage = float("nan")
    (found,) = ranks(run, "train_non_finite", batch)
    text, weights = found
    assert "Step 1: the gradient is not finite" in text
    (start,) = ranks(run, "round_trip")
    for name in start:
        np.testing.assert_array_equal(weights[name], start[name])


def test_bfloat16_trains_close_to_float32(ranks, run, batches, trained):
    half = replace(run, model=replace(run.model, dtype=DType.bfloat16))
    (found,) = ranks(half, "train", batches)
    for mine, expected in zip(found[0], trained[0], strict=True):
        assert mine["trainer/loss"] == pytest.approx(expected["trainer/loss"], abs=0.1)
        assert mine["trainer/grad_norm"] == pytest.approx(expected["trainer/grad_norm"], rel=0.2)


def test_the_learning_rate_rises_from_the_first_step_to_the_last_of_the_warm_up(ranks, run):
    warm = replace(run, optim=replace(run.optim, lr=1.0, warmup_steps=4, steps_per_batch=2))
    (rates,) = ranks(warm, "learning_rates", 10)
    assert rates == pytest.approx([0.125 * (n + 1) for n in range(8)] + [1.0, 1.0])
    cold = replace(run, optim=replace(run.optim, lr=1.0, warmup_steps=0))
    assert ranks(cold, "learning_rates", 1) == [[1.0]]
