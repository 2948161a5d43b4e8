from dataclasses import replace

import numpy as np
import torch

from .parts import layout

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=3, size=(11, 16)).astype(np.float32)
LOGITS[0, 3] = 200.0  # certain: every other token has probability 0
LABELS = RNG.integers(0, 16, 11)
GRADS = RNG.normal(size=(2, 11)).astype(np.float32)


def by_autograd() -> tuple[np.ndarray, np.ndarray]:
    logits = torch.from_numpy(LOGITS).double().requires_grad_()
    logp = torch.log_softmax(logits, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    scores = torch.stack((logp[torch.arange(11), torch.from_numpy(LABELS)], entropy))
    scores.backward(torch.from_numpy(GRADS).double())
    assert logits.grad is not None
    return scores.detach().numpy(), logits.grad.numpy()


def test_log_probs_entropies_and_gradients_are_those_of_autograd(ranks, run):
    (found,) = ranks(run, "scores_and_grad", LOGITS, LABELS, GRADS)
    for mine, expected in zip(found, by_autograd(), strict=True):
        np.testing.assert_allclose(mine, expected, atol=2e-5)


def test_a_vocabulary_split_over_two_ranks_changes_nothing(ranks, run):
    split = layout(run, 2, tensor=2, expert_tensor=2)
    (scores, left), (same, right) = ranks(split, "scores_and_grad", LOGITS, LABELS, GRADS)
    expected, grad = by_autograd()
    np.testing.assert_array_equal(scores, same)
    np.testing.assert_allclose(scores, expected, atol=2e-5)
    np.testing.assert_allclose(np.concatenate([left, right], axis=1), grad, atol=2e-5)


def test_chunks_of_the_vocabulary_projection_change_neither_scores_nor_gradients(ranks, run):
    tokens = [int(t) for t in RNG.integers(0, 256, 50)]
    with_entropy = replace(run, clip=replace(run.clip, entropy_coef=0.1))
    (whole,) = ranks(with_entropy, "chunked_scores", tokens)
    (cut,) = ranks(layout(with_entropy, 1, logprob_chunk=7), "chunked_scores", tokens)
    np.testing.assert_allclose(cut[0], whole[0], atol=1e-5)
    np.testing.assert_allclose(cut[1], whole[1], atol=1e-4)
