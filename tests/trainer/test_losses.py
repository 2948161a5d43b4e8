"""Losses and corrections against closed forms, autograd and their invariances."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import Tensor

from glm52_tbench2.config.paths import CONF
from glm52_tbench2.config.schema import (
    Capped,
    ClipConfig,
    Correction,
    MisLevel,
    MisMode,
    Overlong,
    PolicyLoss,
    Reduction,
)
from glm52_tbench2.trainer.losses import (
    BatchTotals,
    Tokens,
    policy_loss,
    reduce_tokens,
    rl_loss,
    token_weights,
)

# A loaded machine is slow, not wrong.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

CLIP_FILES = sorted(path.stem for path in (CONF / "clip").glob("*.yaml"))
LOSSES = list(PolicyLoss)
CORRECTIONS = list(Correction)
REDUCTIONS = list(Reduction)


def clip_config(**knobs: Any) -> ClipConfig:
    """conf/clip/reference.yaml with some knobs changed."""
    reference = OmegaConf.load(CONF / "clip" / "reference.yaml")
    merged = OmegaConf.merge(OmegaConf.structured(ClipConfig), reference, knobs)
    config = OmegaConf.to_object(merged)
    assert isinstance(config, ClipConfig)
    return config


def make_tokens(
    old_logp: list[float],
    rollout_logp: list[float] | None = None,
    advantages: float | list[float] = 1.0,
    sample_index: list[int] | None = None,
    mask: list[bool] | None = None,
    truncated: list[bool] | None = None,
    near_cap: list[bool] | None = None,
) -> Tokens:
    n = len(old_logp)
    advantages = [advantages] * n if isinstance(advantages, float) else advantages
    return Tokens(
        old_logp=torch.tensor(old_logp),
        rollout_logp=torch.tensor(old_logp if rollout_logp is None else rollout_logp),
        advantages=torch.tensor(advantages),
        truncated=torch.tensor(truncated or [False] * n),
        near_cap=torch.tensor(near_cap or [False] * n),
        mask=torch.tensor(mask or [True] * n),
        sample_index=torch.tensor(sample_index or [0] * n),
    )


def gradient(logp: Tensor, tokens: Tokens, clip: ClipConfig) -> Tensor:
    logp = logp.clone().requires_grad_()
    losses, _ = policy_loss(logp, tokens, clip)
    (grad,) = torch.autograd.grad(losses.sum(), logp)
    return grad


# --- corrections -------------------------------------------------------------------------------


def test_tis_clamps_and_lifts_a_collapsed_ratio_to_the_lower_bound() -> None:
    tokens = make_tokens([-31.0, -1.0, -1.0], [-1.0, -1.3, -5.0])
    clip = clip_config(correction="tis", correction_low=0.5, correction_high=2.0)
    weights = token_weights(tokens.old_logp, tokens, clip)
    torch.testing.assert_close(weights, torch.tensor([0.5, math.exp(0.3), 2.0]))


def test_icepop_drops_what_tis_would_clamp() -> None:
    tokens = make_tokens([-31.0, -1.0, -1.0], [-1.0, -1.3, -5.0])
    clip = clip_config(correction="icepop", correction_low=0.5, correction_high=2.0)
    weights = token_weights(tokens.old_logp, tokens, clip)
    torch.testing.assert_close(weights, torch.tensor([0.0, math.exp(0.3), 0.0]))


def test_no_correction_weighs_every_token_one() -> None:
    tokens = make_tokens([-31.0, -1.0], [-1.0, -5.0])
    weights = token_weights(tokens.old_logp, tokens, clip_config(correction="none"))
    torch.testing.assert_close(weights, torch.ones(2))


@pytest.mark.parametrize("level", list(MisLevel))
@pytest.mark.parametrize("mode", list(MisMode))
def test_mis_ratio_of_each_level_is_bounded_by_each_mode(level: MisLevel, mode: MisMode) -> None:
    # Sample 0: D = 1.0, 0.2. Sample 1: D = -1.0, -0.6. Bounds: 0.5 and 2.
    tokens = make_tokens([-1.0, -1.0, -2.0, -2.0], [-2.0, -1.2, -1.0, -1.4], 1.0, [0, 0, 1, 1])
    knobs = {"level": level.name, "mode": mode.name}
    clip = clip_config(correction="mis", correction_low=0.5, correction_high=2.0, mis=knobs)
    ratios = {
        MisLevel.token: [1.0, 0.2, -1.0, -0.6],
        MisLevel.sequence: [1.2, 1.2, -1.6, -1.6],
        MisLevel.geometric: [0.6, 0.6, -0.8, -0.8],
    }[level]
    bounded = {
        MisMode.truncate: lambda r: min(r, 2.0),
        MisMode.clip: lambda r: min(max(r, 0.5), 2.0),
        MisMode.mask: lambda r: r if 0.5 <= r <= 2.0 else 0.0,
    }[mode]
    expected = torch.tensor([bounded(math.exp(d)) for d in ratios])
    torch.testing.assert_close(token_weights(tokens.old_logp, tokens, clip), expected)


def test_mis_vetoes_the_whole_sample_that_holds_one_collapsed_token() -> None:
    tokens = make_tokens(
        [-1.0, -12.0, -1.0], [-1.0, -1.0, -1.0], sample_index=[0, 0, 1], advantages=1.0
    )
    clip = clip_config(correction="mis", mis={"level": "token", "mode": "truncate", "veto": 1e-4})
    weights = token_weights(tokens.old_logp, tokens, clip)
    torch.testing.assert_close(weights, torch.tensor([0.0, 0.0, 1.0]))


def test_mis_veto_ignores_tokens_off_the_mask() -> None:
    tokens = make_tokens([-1.0, -12.0], [-1.0, -1.0], mask=[True, False])
    weights = token_weights(tokens.old_logp, tokens, clip_config(correction="mis"))
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("advantage", "now", "rollout", "kept"),
    [
        (1.0, 0.8, 0.5, False),  # already up by 0.3, and would go up
        (1.0, 0.5, 0.8, True),  # down, and would go up again
        (1.0, 0.6, 0.5, True),  # up by less than 0.2
        (-1.0, 0.5, 0.8, False),
        (-1.0, 0.8, 0.5, True),
        (0.0, 0.1, 0.9, True),
    ],
)
def test_dppo_drops_tokens_that_would_move_on_in_the_direction_they_went(
    advantage: float, now: float, rollout: float, kept: bool
) -> None:
    logp, rollout_logp = math.log(now), math.log(rollout)
    tokens = make_tokens([logp], [rollout_logp], advantage)
    clip = clip_config(correction="dppo", correction_low=0.0, correction_high=2.0)
    weight = token_weights(torch.tensor([logp]), tokens, clip)
    expected = min(now / rollout, 2.0) if kept else 0.0
    torch.testing.assert_close(weight, torch.tensor([expected]))


def test_dppo_looks_at_the_probability_now_and_not_at_that_before_the_update() -> None:
    tokens = make_tokens([math.log(0.5)], [math.log(0.5)], 1.0)
    weight = token_weights(torch.tensor([math.log(0.9)]), tokens, clip_config(correction="dppo"))
    assert weight.item() == 0.0


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_on_policy_tokens_weigh_one_whatever_the_correction(correction: Correction) -> None:
    tokens = make_tokens([-0.3, -2.0, -0.1], sample_index=[0, 0, 1])
    clip = clip_config(correction=correction.name, correction_low=0.5)
    torch.testing.assert_close(token_weights(tokens.old_logp, tokens, clip), torch.ones(3))


@pytest.mark.parametrize("overlong", list(Overlong))
def test_only_overlong_mask_drops_truncated_samples(overlong: Overlong) -> None:
    tokens = make_tokens([-1.0, -1.0], sample_index=[0, 1], truncated=[True, False])
    weights = token_weights(tokens.old_logp, tokens, clip_config(overlong=overlong.name))
    first = 0.0 if overlong is Overlong.mask else 1.0
    torch.testing.assert_close(weights, torch.tensor([first, 1.0]))


@pytest.mark.parametrize("capped", list(Capped))
def test_capped_masks_turns_near_the_cap_by_the_sign_of_their_advantage(capped: Capped) -> None:
    """Of near and far turns with A < 0, A = 0 and A > 0."""
    near, advantages = [True] * 3 + [False] * 3, [-1.0, 0.0, 1.0] * 2
    tokens = make_tokens([-1.0] * 6, advantages=advantages, near_cap=near)
    weights = token_weights(tokens.old_logp, tokens, clip_config(capped=capped.name))
    dropped = {Capped.keep: None, Capped.mask_negative: 0, Capped.mask_positive: 2}[capped]
    expected = [float(place != dropped) for place in range(6)]
    torch.testing.assert_close(weights, torch.tensor(expected))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("capped", "sign"), [("mask_negative", -1), ("mask_positive", 1)])
def test_masked_capped_turns_lose_their_gradient_and_nothing_else_changes(
    reduction: Reduction, capped: str, sign: int
) -> None:
    """Divisors count every token: what is kept weighs neither more nor less."""
    case = random_case(3, [6] * 12)
    tokens, knobs = case[2], {"reduction": reduction.name, "entropy_coef": 0.1}

    def gradients(**more: str) -> Tensor:
        logp, entropy, _, totals = case
        return loss_and_gradients(logp, entropy, tokens, clip_config(**knobs, **more), totals)[1]

    kept, masked = gradients(), gradients(capped=capped)
    off = tokens.near_cap & (tokens.advantages.sign() == sign)
    assert (off & tokens.mask).any()
    torch.testing.assert_close(masked, torch.where(off, 0.0, kept), rtol=0, atol=0)


# --- policy losses -----------------------------------------------------------------------------


def test_ppo_is_the_clipped_surrogate_of_each_token() -> None:
    old = [-1.0] * 6
    ratios = [1.1, 1.5, 0.5, 1.1, 1.5, 0.5]
    advantages = [2.0, 2.0, 2.0, -2.0, -2.0, -2.0]
    tokens = make_tokens(old, advantages=advantages)
    logp = torch.tensor([-1.0 + math.log(r) for r in ratios])
    losses, clipped = policy_loss(logp, tokens, clip_config(eps_low=0.2, eps_high=0.28))
    torch.testing.assert_close(losses, torch.tensor([-2.2, -2.56, -1.0, 2.2, 3.0, 1.6]))
    assert clipped.tolist() == [False, True, False, False, False, True]


def test_ppo_gradient_is_minus_r_a_and_zero_where_the_clip_acts() -> None:
    tokens = make_tokens([-1.0] * 4, advantages=[2.0, 2.0, -2.0, -2.0])
    logp = torch.tensor([-1.0 + math.log(r) for r in (1.1, 1.5, 1.5, 0.5)])
    grad = gradient(logp, tokens, clip_config())
    torch.testing.assert_close(grad, torch.tensor([-2.2, 0.0, 3.0, 0.0]))


def test_dual_clip_bounds_the_loss_of_negative_advantages_only() -> None:
    tokens = make_tokens([-5.0, -5.0], advantages=[-1.0, 1.0])
    logp = torch.tensor([-1.0, -9.0])
    losses, clipped = policy_loss(logp, tokens, clip_config(dual_clip=3.0))
    torch.testing.assert_close(losses, torch.tensor([3.0, -math.exp(-4.0)]))
    assert clipped.tolist() == [True, False]
    grad = gradient(logp, tokens, clip_config(dual_clip=3.0))
    torch.testing.assert_close(grad, torch.tensor([0.0, -math.exp(-4.0)]))
    unbounded, _ = policy_loss(logp, tokens, clip_config())
    torch.testing.assert_close(unbounded[0], torch.tensor(math.exp(4.0)))


def test_gspo_gives_every_token_its_samples_geometric_mean_ratio() -> None:
    old = [-1.0, -2.0, -1.0, -3.0]
    tokens = make_tokens(old, sample_index=[0, 0, 0, 1], mask=[True, True, False, True])
    change = torch.tensor([0.3, -0.1, 9.0, 0.2])
    clip = clip_config(loss="gspo", eps_low=0.9, eps_high=0.9)
    losses, _ = policy_loss(tokens.old_logp + change, tokens, clip)
    expected = [-math.exp(0.1), -math.exp(0.1), 0.0, -math.exp(0.2)]
    torch.testing.assert_close(losses, torch.tensor(expected))


def test_gspo_gradient_flows_through_the_mean() -> None:
    # Two tokens of one sample: L = -2 A exp(mean log r), so dL/dlogp_t = -A exp(mean log r).
    tokens = make_tokens([-1.0, -2.0], advantages=1.5)
    clip = clip_config(loss="gspo", eps_low=0.9, eps_high=0.9)
    grad = gradient(tokens.old_logp + torch.tensor([0.4, 0.2]), tokens, clip)
    torch.testing.assert_close(grad, torch.full((2,), -1.5 * math.exp(0.3)))


def test_cispo_gradient_is_the_clipped_ratio_also_where_ppo_cuts_it() -> None:
    tokens = make_tokens([-1.0] * 3, advantages=[2.0, 2.0, -2.0])
    logp = torch.tensor([-1.0 + math.log(r) for r in (1.1, 5.0, 0.1)])
    clip = clip_config(loss="cispo", eps_low=1.0, eps_high=1.0)
    grad = gradient(logp, tokens, clip)
    torch.testing.assert_close(grad, torch.tensor([-2.2, -4.0, 0.2]))
    losses, clipped = policy_loss(logp, tokens, clip)
    torch.testing.assert_close(losses, grad * logp)
    assert clipped.tolist() == [False, True, False]


@pytest.mark.parametrize("loss", LOSSES)
def test_all_losses_have_the_same_gradient_when_the_policy_has_not_moved(loss: PolicyLoss) -> None:
    tokens = make_tokens([-1.0, -2.0, -0.5], advantages=[1.0, 1.0, -2.0], sample_index=[0, 0, 1])
    grad = gradient(tokens.old_logp, tokens, clip_config(loss=loss.name, dual_clip=3.0))
    torch.testing.assert_close(grad, -tokens.advantages)


# --- reduction ---------------------------------------------------------------------------------


def test_each_reduction_has_its_divisor() -> None:
    values = torch.tensor([1.0, 3.0, 10.0, 99.0])
    mask = torch.tensor([True, True, True, False])
    index = torch.tensor([0, 0, 1, 1])
    totals = BatchTotals(num_samples=2, num_tokens=3, max_tokens=100)
    expected = {
        Reduction.sample_mean: (2.0 + 10.0) / 2,
        Reduction.token_mean: 14.0 / 3,
        Reduction.token_sum_const: 14.0 / 200,
    }
    for reduction, value in expected.items():
        found = reduce_tokens(values, mask, index, reduction, totals)
        torch.testing.assert_close(found, torch.tensor(value))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_dropping_a_token_does_not_make_the_others_weigh_more(reduction: Reduction) -> None:
    clip = clip_config(correction="icepop", correction_low=0.5, reduction=reduction.name)
    totals = BatchTotals(num_samples=2, num_tokens=4, max_tokens=10)

    def grads(collapsed: bool) -> Tensor:
        old = [-1.0, -30.0 if collapsed else -1.0, -1.0, -1.0]
        tokens = make_tokens(old, [-1.0] * 4, sample_index=[0, 0, 0, 1])
        logp = tokens.old_logp.clone().requires_grad_()
        loss, _ = rl_loss(logp, torch.zeros(4), tokens, clip, totals)
        (grad,) = torch.autograd.grad(loss, logp)
        return grad

    kept, dropped = grads(False), grads(True)
    assert dropped[1] == 0.0
    torch.testing.assert_close(dropped[[0, 2, 3]], kept[[0, 2, 3]])


# --- the whole loss ----------------------------------------------------------------------------


def random_case(seed: int, lengths: list[int]) -> tuple[Tensor, Tensor, Tokens, BatchTotals]:
    """A packed batch of samples with `lengths` tokens each, a third of them observations."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(total, generator=generator)

    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    old = -normal(1.5).abs()
    mask = torch.rand(total, generator=generator) > 0.33
    tokens = Tokens(
        old_logp=old,
        rollout_logp=(old + normal(0.8)).clamp(max=0.0),
        advantages=torch.randn(len(lengths), generator=generator)[index],
        truncated=(torch.rand(len(lengths), generator=generator) > 0.7)[index],
        near_cap=torch.rand(total, generator=generator) > 0.7,
        mask=mask,
        sample_index=index,
    )
    logp = (old + normal(0.3)).clamp(max=0.0)
    totals = BatchTotals(len(lengths), max(int(mask.sum()), 1), 64)
    return logp, normal(1.0).abs(), tokens, totals


def select(tokens: Tokens, order: Tensor) -> Tokens:
    """The tokens at `order`, samples renumbered from 0 in order of appearance."""
    index = tokens.sample_index[order]
    fresh: dict[int, int] = {}
    renumbered = [fresh.setdefault(int(i), len(fresh)) for i in index]
    return Tokens(
        **{
            name: getattr(tokens, name)[order]
            for name in ("old_logp", "rollout_logp", "advantages", "truncated", "near_cap", "mask")
        },
        sample_index=torch.tensor(renumbered, dtype=torch.int64),
    )


def loss_and_gradients(
    logp: Tensor, entropy: Tensor, tokens: Tokens, clip: ClipConfig, totals: BatchTotals
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    logp, entropy = logp.clone().requires_grad_(), entropy.clone().requires_grad_()
    loss, metrics = rl_loss(logp, entropy, tokens, clip, totals)
    d_logp, d_entropy = torch.autograd.grad(loss, (logp, entropy))
    return loss.detach(), d_logp, d_entropy, metrics


knob_sets = st.fixed_dictionaries(
    {
        "loss": st.sampled_from([x.name for x in LOSSES]),
        "correction": st.sampled_from([x.name for x in CORRECTIONS]),
        "reduction": st.sampled_from([x.name for x in REDUCTIONS]),
        "overlong": st.sampled_from([x.name for x in Overlong]),
        "capped": st.sampled_from([x.name for x in Capped]),
        "dual_clip": st.sampled_from([None, 3.0]),
        "correction_low": st.sampled_from([0.0, 0.5]),
        "mis": st.fixed_dictionaries(
            {
                "level": st.sampled_from([x.name for x in MisLevel]),
                "mode": st.sampled_from([x.name for x in MisMode]),
                "veto": st.sampled_from([1e-4, 0.3]),
            }
        ),
    }
)
sample_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@settings(UNTIMED, max_examples=150)
@given(st.integers(0, 2**31), sample_lengths, knob_sets, st.data())
def test_any_packing_and_order_of_samples_gives_the_same_loss_and_gradients(
    seed: int, lengths: list[int], knobs: dict[str, Any], data: st.DataObject
) -> None:
    clip = clip_config(**knobs, entropy_coef=0.01)
    logp, entropy, tokens, totals = random_case(seed, lengths)
    loss, d_logp, d_entropy, metrics = loss_and_gradients(logp, entropy, tokens, clip, totals)

    shuffled = data.draw(st.permutations(range(len(lengths))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(lengths)))) | {0, len(lengths)})
    found_loss, found_metrics = torch.zeros(()), {name: 0.0 for name in metrics}
    found_logp, found_entropy = torch.zeros_like(d_logp), torch.zeros_like(d_entropy)
    for start, end in pairwise(cuts):
        members = [torch.nonzero(tokens.sample_index == i)[:, 0] for i in shuffled[start:end]]
        order = torch.cat(members)
        part = loss_and_gradients(logp[order], entropy[order], select(tokens, order), clip, totals)
        found_loss += part[0]
        found_logp[order], found_entropy[order] = part[1], part[2]
        for name, value in part[3].items():
            found_metrics[name] += value
    torch.testing.assert_close(found_loss, loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found_logp, d_logp, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found_entropy, d_entropy, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found_metrics, metrics, rtol=1e-5, atol=1e-5)


@settings(UNTIMED, max_examples=60)
@given(st.integers(0, 2**31), sample_lengths, knob_sets)
def test_tokens_off_the_mask_touch_nothing_even_when_they_are_nan(
    seed: int, lengths: list[int], knobs: dict[str, Any]
) -> None:
    clip = clip_config(**knobs, entropy_coef=0.01)
    logp, entropy, tokens, totals = random_case(seed, lengths)
    clean = loss_and_gradients(logp, entropy, tokens, clip, totals)

    def spoil(values: Tensor) -> Tensor:
        return torch.where(tokens.mask, values, float("nan"))

    spoiled = replace(
        tokens,
        old_logp=spoil(tokens.old_logp),
        rollout_logp=spoil(tokens.rollout_logp),
        advantages=spoil(tokens.advantages),
    )
    found = loss_and_gradients(spoil(logp), spoil(entropy), spoiled, clip, totals)
    torch.testing.assert_close(found, clean)
    assert (found[1][~tokens.mask] == 0).all()
    assert (found[2][~tokens.mask] == 0).all()
    assert (policy_loss(spoil(logp), spoiled, clip)[0][~tokens.mask] == 0).all()


@settings(UNTIMED, max_examples=60)
@given(st.integers(0, 2**31), sample_lengths, knob_sets)
def test_gradient_of_the_loss_agrees_with_finite_differences(
    seed: int, lengths: list[int], knobs: dict[str, Any]
) -> None:
    # cispo's factor and every weight are constants of the derivative, which a finite difference
    # would move along; so those are left to the closed forms above.
    knobs = {**knobs, "loss": "ppo" if knobs["loss"] == "cispo" else knobs["loss"]}
    clip = clip_config(**{**knobs, "correction": "tis"})
    logp, entropy, tokens, totals = random_case(seed, lengths)
    tokens = replace(
        tokens,
        **{
            name: getattr(tokens, name).double()
            for name in ("old_logp", "rollout_logp", "advantages")
        },
    )
    logp, entropy = logp.double(), entropy.double()

    def loss(values: Tensor) -> Tensor:
        return rl_loss(values, entropy, tokens, clip, totals)[0]

    assert torch.autograd.gradcheck(loss, (logp.requires_grad_(),), eps=1e-6, atol=1e-6)


def test_entropy_bonus_lowers_the_loss_by_its_coefficient() -> None:
    logp, entropy, tokens, totals = random_case(3, [4, 5])
    plain, _ = rl_loss(logp, entropy, tokens, clip_config(), totals)
    bonus, _ = rl_loss(logp, entropy, tokens, clip_config(entropy_coef=0.1), totals)
    mean = reduce_tokens(entropy, tokens.mask, tokens.sample_index, Reduction.sample_mean, totals)
    torch.testing.assert_close(bonus, plain - 0.1 * mean)


def test_no_gradient_flows_through_the_correction() -> None:
    logp, entropy, tokens, totals = random_case(5, [6, 3])
    clip = clip_config(correction="tis")
    leaf = logp.clone().requires_grad_()
    (found,) = torch.autograd.grad(rl_loss(leaf, entropy, tokens, clip, totals)[0], leaf)
    counts = torch.bincount(tokens.sample_index[tokens.mask], minlength=2).float()
    weights = token_weights(logp, tokens, clip)
    expected = gradient(logp, tokens, clip) * weights / counts[tokens.sample_index] / 2
    torch.testing.assert_close(found, expected)


def test_a_micro_batch_without_generated_tokens_costs_nothing() -> None:
    tokens = make_tokens([-1.0, -2.0], mask=[False, False])
    logp = tokens.old_logp.clone().requires_grad_()
    loss, metrics = rl_loss(logp, torch.zeros(2), tokens, clip_config(), BatchTotals(1, 1, 8))
    loss.backward()
    assert loss.item() == 0.0
    assert logp.grad is not None and (logp.grad == 0).all()
    assert all(value == 0 for value in metrics.values())


@pytest.mark.parametrize("name", CLIP_FILES)
def test_every_clip_file_composes_and_gives_a_finite_loss(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = hydra_compose(f"clip/{name}").clip
    typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ClipConfig), composed))
    assert isinstance(typed, ClipConfig)
    logp, entropy, tokens, totals = random_case(7, [5, 8, 2])
    loss, metrics = rl_loss(logp, entropy, tokens, typed, totals)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value) for value in metrics.values())


def test_the_reference_and_the_july_stack_differ_in_the_lower_bound_only() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        reference = OmegaConf.to_container(hydra_compose("clip/reference").clip)
        july = OmegaConf.to_container(hydra_compose("clip/july").clip)
    assert {k: (reference[k], july[k]) for k in reference if reference[k] != july[k]} == {
        "correction_low": (0.0, 0.5)
    }
