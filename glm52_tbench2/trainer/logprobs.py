"""Log-probabilities and entropies of tokens from hidden states, without all logits at once."""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor
from torch.distributed import ReduceOp, all_reduce
from torch.utils.checkpoint import checkpoint


class _Scores(torch.autograd.Function):
    """log softmax(z)[label] and the entropy of softmax(z), z split by vocabulary over TP ranks.

    With p = softmax(z): d logp / dz_j = [j = label] - p_j; dH / dz_j = -p_j (log p_j + H).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, with_entropy_grad: bool) -> Tensor:
        group = parallel_state.get_tensor_model_parallel_group()
        first = group.rank() * logits.size(-1)
        peak = logits.amax(dim=-1)
        all_reduce(peak, op=ReduceOp.MAX, group=group)
        shifted = logits - peak[:, None]
        probs = shifted.exp()
        local = labels - first
        here = (local >= 0) & (local < logits.size(-1))
        local = torch.where(here, local, 0)
        sums = torch.stack(
            (
                probs.sum(dim=-1),
                torch.einsum("tv,tv->t", probs, shifted),
                torch.where(here, shifted.gather(-1, local[:, None])[:, 0], 0.0),
            )
        )
        all_reduce(sums, group=group)
        normaliser, weighted, label_logit = sums
        log_normaliser = normaliser.log()
        logp = label_logit - log_normaliser
        entropy = log_normaliser - weighted / normaliser
        probs /= normaliser[:, None]
        ctx.save_for_backward(probs, local, here, entropy)
        ctx.with_entropy_grad = with_entropy_grad
        return torch.stack((logp, entropy))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        probs, local, here, entropy = ctx.saved_tensors
        logp_grad, entropy_grad = grads[0]
        grad = probs * -logp_grad[:, None]
        grad.scatter_add_(-1, local[:, None], torch.where(here, logp_grad, 0.0)[:, None])
        if ctx.with_entropy_grad:
            # log(0) * 0 counts as 0: an impossible token adds nothing to the entropy.
            log_probs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
            grad -= entropy_grad[:, None] * probs * (log_probs + entropy[:, None])
        return grad, None, None


def token_scores(logits: Tensor, labels: Tensor, with_entropy_grad: bool) -> Tensor:
    """Log-probability and entropy of each label.

    Args:
        logits: [tokens, vocabulary of this TP rank] float32, already divided by the temperature.
        labels: [tokens] int64, ids in the whole vocabulary.
        with_entropy_grad: whether the entropy is differentiated.

    Returns:
        [2, tokens] float32, log-probabilities and entropies in nats; the same on every TP rank.
    """
    return _Scores.apply(logits, labels, with_entropy_grad)


def score_hidden(
    hidden: Tensor,
    labels: Tensor,
    output_layer: ColumnParallelLinear,
    temperature: float,
    chunk: int,
    with_entropy_grad: bool,
) -> Tensor:
    """`token_scores` of the output layer's logits, `chunk` tokens at a time.

    Args:
        hidden: [tokens, 1, hidden size]; with sequence parallelism, this rank's share of them.
        labels: [tokens] int64, the whole micro-batch's.
        temperature: what logits are divided by, as the engine does before it samples.
        chunk: tokens whose logits exist at one time; more are recomputed in the backward pass.

    Returns:
        [2, tokens] float32.
    """
    # Once for all chunks instead of inside the layer; the gradient is added up over TP ranks here.
    if output_layer.sequence_parallel:
        hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
    else:
        hidden = copy_to_tensor_model_parallel_region(hidden)

    def score(rows: Tensor, targets: Tensor) -> Tensor:
        logits = torch.nn.functional.linear(rows, output_layer.weight).float() / temperature
        return token_scores(logits, targets, with_entropy_grad)

    rows = hidden[:, 0]
    if rows.size(0) <= chunk:
        return score(rows, labels)
    parts = [
        checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(rows.split(chunk), labels.split(chunk), strict=True)
    ]
    return torch.cat(parts, dim=1)
