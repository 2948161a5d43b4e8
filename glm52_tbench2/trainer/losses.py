"""The loss: policy objectives, corrections against the rollout policy, reductions.

Pure functions over packed tokens: the samples of a micro-batch lie one after another in flat
tensors of shape [T], and ``sample_index`` says which sample each token belongs to. Every token of
a sample must be in one call (context-parallel ranks gather their log-probs first), because some
ratios are taken over a whole sample.

Notation, per generated token:
    r   = pi_theta / pi_old       the policy ratio; 1 with one optimizer step a batch
    rho = pi_old / pi_rollout     engine numerics, precision and staleness
    A   = the sample's advantage
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from glm52_tbench2.config.schema import (
    Capped,
    ClipConfig,
    Correction,
    MisConfig,
    MisLevel,
    MisMode,
    Overlong,
    PolicyLoss,
    Reduction,
)

# exp(20) = 4.9e8: far outside every clip, and finite in float32 also after multiplication.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Tokens:
    """What is known of each packed token before the update. All tensors are [T]; none has a grad.

    Values off the mask are never read.
    """

    old_logp: Tensor
    """float32, log pi_old: the trainer's own forward before the update."""
    rollout_logp: Tensor
    """float32, log pi_rollout as the engine reported it."""
    advantages: Tensor
    """float32, the sample's advantage, repeated on each of its tokens."""
    truncated: Tensor
    """bool, True on every token of a truncated sample."""
    near_cap: Tensor
    """bool, True on every token of a turn near the per-turn cap (config.schema.NEAR_CAP)."""
    mask: Tensor
    """bool, True on generated tokens."""
    sample_index: Tensor
    """int64, the token's sample, 0-based; numbers need not be contiguous."""


@dataclass(frozen=True)
class BatchTotals:
    """Sizes of the whole training batch, over all micro-batches and ranks.

    Each reduction divides by these, so that the losses of micro-batches and ranks *add up* to the
    batch's loss however it was cut.
    """

    num_samples: int
    """Samples, those that end up masked included."""
    num_tokens: int
    """Generated tokens, before any masking."""
    max_tokens: int
    """The session budget, tokens: the constant of token_sum_const."""


def sample_sums(values: Tensor, sample_index: Tensor) -> Tensor:
    """Sum of `values` [T] over each sample: [S], S = largest index + 1."""
    size = int(sample_index.max()) + 1 if sample_index.numel() else 0
    return values.new_zeros(size).index_add(0, sample_index, values)


def sample_means(values: Tensor, mask: Tensor, sample_index: Tensor) -> Tensor:
    """Mean of `values` [T] over each sample's masked-in tokens: [S]; 0 for a sample without any."""
    kept = torch.where(mask, values, 0.0)
    counts = sample_sums(mask.to(values.dtype), sample_index).clamp(min=1.0)
    return sample_sums(kept, sample_index) / counts


def token_weights(logp: Tensor, tokens: Tokens, clip: ClipConfig) -> Tensor:
    """The factor on each token's policy loss: correction against the rollout policy, and masking.

    Args:
        logp: [T] float32, log pi_theta now; read by dppo only, never differentiated.

    Returns:
        [T] float32 >= 0 without a grad; 0 off the mask.

    With rho = pi_old / pi_rollout and [lo, hi] = [correction_low, correction_high]:
        none    1
        tis     clamp(rho, lo, hi): a clamp and not a mask, lo > 0 lifts a collapsed ratio to lo.
                (truncated importance sampling, Yao et al. 2025, "Your efficient RL framework
                secretly brings you off-policy RL training")
        icepop  rho where lo <= rho <= hi, else 0 (Ling team 2025, IcePop)
        mis     see `mis_weights` (Liu et al. 2025, "When Speed Kills Stability")
        dppo    clamp(rho, lo, hi), but 0 where A > 0 and pi_theta - pi_rollout > dppo_delta, or
                A < 0 and pi_rollout - pi_theta > dppo_delta: the token would be pushed further in
                the direction it has already gone (Qi et al. 2026, arXiv 2602.04879, binary total
                variation). lo = hi = 1 leaves the mask alone.

    With overlong = mask, every token of a truncated sample gets 0; with capped = mask_negative,
    every token of a turn near the cap where A < 0, with mask_positive where A > 0.
    """
    with torch.no_grad():
        log_rho = torch.where(tokens.mask, tokens.old_logp - tokens.rollout_logp, 0.0)
        rho = log_rho.exp()
        low, high = clip.correction_low, clip.correction_high
        match clip.correction:
            case Correction.none:
                weights = torch.ones_like(rho)
            case Correction.tis:
                weights = rho.clamp(low, high)
            case Correction.icepop:
                weights = torch.where((rho >= low) & (rho <= high), rho, 0.0)
            case Correction.mis:
                weights = mis_weights(log_rho, tokens, low, high, clip.mis)
            case Correction.dppo:
                change = logp.exp() - tokens.rollout_logp.exp()
                runaway = torch.where(
                    tokens.advantages > 0, change > clip.dppo_delta, change < -clip.dppo_delta
                )
                runaway &= tokens.advantages != 0
                weights = torch.where(runaway, 0.0, rho.clamp(low, high))
        keep = tokens.mask
        if clip.overlong is Overlong.mask:
            keep = keep & ~tokens.truncated
        if clip.capped is Capped.mask_negative:
            keep = keep & ~(tokens.near_cap & (tokens.advantages < 0))
        elif clip.capped is Capped.mask_positive:
            keep = keep & ~(tokens.near_cap & (tokens.advantages > 0))
        return torch.where(keep, weights, 0.0)


def mis_weights(log_rho: Tensor, tokens: Tokens, low: float, high: float, mis: MisConfig) -> Tensor:
    """Masked importance sampling: a ratio a token or a sample, bounded, with a veto.

    Args:
        log_rho: [T] float32, log(pi_old / pi_rollout), 0 off the mask.

    Returns:
        [T] float32 >= 0.

    level: token, rho_t; sequence, prod_t rho_t; geometric, (prod_t rho_t)^(1/n).
    mode: truncate, min(ratio, high); clip, clamp(ratio, low, high); mask, 0 outside [low, high].
    veto: a sample with any rho_t < veto gets 0 on every token, whatever the level.
    """
    index = tokens.sample_index
    match mis.level:
        case MisLevel.token:
            ratio = log_rho.exp()
        case MisLevel.sequence:
            ratio = sample_sums(log_rho, index).exp()[index]
        case MisLevel.geometric:
            ratio = sample_means(log_rho, tokens.mask, index).exp()[index]
    match mis.mode:
        case MisMode.truncate:
            weights = ratio.clamp(max=high)
        case MisMode.clip:
            weights = ratio.clamp(low, high)
        case MisMode.mask:
            weights = torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)
    vetoed = (log_rho.exp() < mis.veto).float()  # log_rho is 0 off the mask
    return torch.where(sample_sums(vetoed, index)[index] > 0, 0.0, weights)


def policy_ratio(logp: Tensor, tokens: Tokens, clip: ClipConfig) -> Tensor:
    """r = pi_theta / pi_old: [T] float32 with a grad, 1 off the mask.

    For gspo every token of a sample gets the sample's exp(mean_t log r_t)
    (Zheng et al. 2025, arXiv 2507.18071).
    """
    log_ratio = torch.where(tokens.mask, logp - tokens.old_logp, 0.0)
    if clip.loss is PolicyLoss.gspo:
        log_ratio = sample_means(log_ratio, tokens.mask, tokens.sample_index)[tokens.sample_index]
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def policy_loss(logp: Tensor, tokens: Tokens, clip: ClipConfig) -> tuple[Tensor, Tensor]:
    """The policy loss of each token, before weights and reduction.

    Args:
        logp: [T] float32 with a grad, log pi_theta at the rollout's temperature.

    Returns:
        losses: [T] float32 with a grad, 0 off the mask.
        clipped: [T] bool, where a clip changes the loss (ppo, gspo: the grad is cut;
            cispo: the factor is).

    With clip(r) = clamp(r, 1 - eps_low, 1 + eps_high):
        ppo     max(-r A, -clip(r) A)   (Schulman et al. 2017; asymmetric eps: DAPO)
        gspo    the same on the sample's ratio, see `policy_ratio`
        cispo   -stop_grad(clip(r)) A log pi_theta   (MiniMax-M1, arXiv 2506.13585)
    dual_clip = c (ppo, gspo): for A < 0 the loss is at most -c A (Ye et al. 2020,
    arXiv 1912.09729).
    """
    advantages = torch.where(tokens.mask, tokens.advantages, 0.0)
    ratio = policy_ratio(logp, tokens, clip)
    bounded = ratio.clamp(1.0 - clip.eps_low, 1.0 + clip.eps_high)
    if clip.loss is PolicyLoss.cispo:
        factor = (bounded * advantages).detach()
        losses = -factor * torch.where(tokens.mask, logp, 0.0)
        clipped = (bounded != ratio) & (advantages != 0)
        return losses, clipped & tokens.mask
    losses = torch.maximum(-ratio * advantages, -bounded * advantages)
    clipped = -bounded * advantages > -ratio * advantages
    if clip.dual_clip is not None:
        ceiling = -clip.dual_clip * advantages
        over = (advantages < 0) & (losses > ceiling)
        losses = torch.where(over, ceiling, losses)
        clipped = clipped | over
    return losses, clipped & tokens.mask


def reduce_tokens(
    values: Tensor, mask: Tensor, sample_index: Tensor, reduction: Reduction, totals: BatchTotals
) -> Tensor:
    """This call's share of the batch's reduced value; shares add over micro-batches and ranks.

    Args:
        values: [T] float32. Tokens dropped by a correction hold 0: the divisors count every
            generated token, so dropping some never makes the others weigh more.
        mask: [T] bool, generated tokens.

    Returns:
        a float32 scalar.

        sample_mean      sum_i (sum_t v_it / n_i) / num_samples
        token_mean       sum_it v_it / num_tokens
        token_sum_const  sum_it v_it / (num_samples * max_tokens)   (Dr. GRPO, arXiv 2503.20783)
    """
    if reduction is Reduction.sample_mean:
        return sample_means(values, mask, sample_index).sum() / totals.num_samples
    kept = torch.where(mask, values, 0.0).sum()
    if reduction is Reduction.token_mean:
        return kept / totals.num_tokens
    return kept / (totals.num_samples * totals.max_tokens)


def rl_loss(
    logp: Tensor, entropy: Tensor, tokens: Tokens, clip: ClipConfig, totals: BatchTotals
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one micro-batch: reduce(weights * policy_loss - entropy_coef * entropy).

    Args:
        logp: [T] float32 with a grad, log pi_theta at the rollout's temperature.
        entropy: [T] float32 (nats), with a grad where entropy_coef is not 0.

    Returns:
        loss: a scalar to call backward() on. Losses, and so gradients, *add* over micro-batches
            and ranks to those of the whole batch: do not average them again.
        metrics: detached scalars that add up in the same way, by their name in metrics.jsonl.
    """
    weights = token_weights(logp, tokens, clip)
    losses, clipped = policy_loss(logp, tokens, clip)

    def reduce(values: Tensor, reduction: Reduction) -> Tensor:
        return reduce_tokens(values, tokens.mask, tokens.sample_index, reduction, totals)

    policy = reduce(weights * losses, clip.reduction)
    mean_entropy = reduce(entropy, clip.reduction)
    loss = policy
    if clip.entropy_coef != 0:
        loss = policy - clip.entropy_coef * mean_entropy

    def token_share(values: Tensor) -> Tensor:
        return reduce(values.float(), Reduction.token_mean)

    metrics = {
        "trainer/loss": loss,
        "trainer/policy_loss": policy,
        "trainer/entropy": reduce(entropy, Reduction.token_mean),
        "trainer/policy_kl": token_share(tokens.old_logp - logp),
        "trainer/policy_clip_share": token_share(clipped),
        "trainer/weight_mean": token_share(weights),
        "trainer/weight_zero_share": token_share(weights == 0),
    }
    return loss, {name: value.detach() for name, value in metrics.items()}
