"""One training step: score the batch, take the loss, update the weights, say what happened."""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from glm52_tbench2.config.schema import NEAR_CAP, RunConfig
from glm52_tbench2.rollout.batch import Sample

from .losses import BatchTotals, rl_loss
from .microbatch import MicroBatch, Scores, micro_batches, repack, trained_length, unpack
from .mismatch import ScoredTokens, mismatch_metrics
from .model import score
from .optimizer import learning_rate, set_learning_rate, update_norms


class NonFiniteGradient(RuntimeError):
    """The gradient holds a NaN or an infinity; the weights were not touched."""


@dataclass(frozen=True)
class StepResult:
    """What a step found. On ranks other than 0, `scores` and `metrics` are empty."""

    scores: list[Scores]
    """One a sample, in the batch's order."""
    metrics: dict[str, float]
    """Metrics by their name in metrics.jsonl."""


# A micro-batch, its scores [2, T], and its share of the metrics.
_Result = tuple[MicroBatch, Tensor, dict[str, float]]


class TrainStep:
    """Trains on one batch after another."""

    def __init__(
        self, run: RunConfig, model: DistributedDataParallel, optimizer: MegatronOptimizer
    ) -> None:
        self.run, self.model, self.optimizer = run, model, optimizer

    def __call__(
        self, batch: Sequence[Sample], step: int, masked: Collection[int] = ()
    ) -> StepResult:
        """Trains on `batch`. A collective: every rank passes the same arguments.

        Args:
            batch: the samples of rollouts/step_N.
            step: N, 1-based. The weights before it are version N - 1.
            masked: samples, by place, whose policy loss is 0; they count in every divisor.

        Raises NonFiniteGradient.
        """
        started = time.perf_counter()
        num_updates = self.run.optim.steps_per_batch
        everything = range(len(batch))
        trained = [
            replace(sample, advantage=0.0) if place in masked else sample
            for place, sample in enumerate(batch)
        ]
        # From its second update on a batch, the policy is not the one the ratios start from; a
        # single update takes them from its own forward pass.
        old = self.score(batch) if num_updates > 1 else None
        score_s = time.perf_counter() - started

        scored = old or {}
        updates: list[dict[str, float]] = []
        for number, part in enumerate(np.array_split(everything, num_updates)):
            done = (step - 1) * num_updates + number
            found, metrics = self._update(trained, part.tolist(), old, done, step)
            updates.append(metrics)
            if old is None:
                scored = found
        everyone = _on_rank_0(scored)
        if everyone is None:
            return StepResult([], {})
        scores = in_order(everyone, batch)
        metrics = _over_updates(updates)
        if old is not None:
            metrics["time/train_score"] = score_s
        metrics["trainer/masked_samples"] = float(len(masked))
        metrics |= self._batch_metrics(batch, scores, step)
        metrics["time/train_compute"] = time.perf_counter() - started
        return StepResult(scores, metrics)

    def score(self, batch: Sequence[Sample]) -> dict[int, Scores]:
        """A forward pass alone: scores of the samples, by place, on every rank. A collective."""
        with torch.no_grad():
            results = self._schedule(self._micro_batches(batch, range(len(batch))), None)
        everyone: list[dict[int, Scores]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, _unpacked(results, batch) if _reports() else {})
        return {i: s for found in everyone for i, s in found.items()}

    def _update(
        self,
        batch: Sequence[Sample],
        indices: list[int],
        old: dict[int, Scores] | None,
        updates_done: int,
        step: int,
    ) -> tuple[dict[int, Scores], dict[str, float]]:
        """One optimizer step on the samples `indices`; metrics are those of all ranks."""
        started = time.perf_counter()
        micros = self._ready(batch, indices, old)
        num_micros = len(micros)
        totals = self._totals(batch, indices)
        every = self.run.optim.grad_split_every
        split = self._split(batch, indices, old, totals) if every and step % every == 0 else {}
        split_s = time.perf_counter() - started
        self._zero_grad()
        results = self._schedule(micros, totals, scored=old is not None)
        sums = _sum_metrics([metrics for _, _, metrics in results])
        forward_backward_s = time.perf_counter() - started - split_s

        rate = learning_rate(self.run.optim, updates_done)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.prepare_grads()
        if not math.isfinite(norm := self.optimizer.get_grad_norm()):
            raise NonFiniteGradient(
                f"Step {step}: the gradient is not finite (norm {norm}, loss "
                f"{sums.get('trainer/loss')}); the weights were left as they are."
            )
        self.optimizer.step()
        change, weights = update_norms(self.optimizer)
        if split:
            split = _with_cosine(split, norm, self.run.clip.entropy_coef)
            split["time/train_grad_split"] = split_s
        metrics = {
            **sums,
            **split,
            "trainer/grad_norm": float(norm),
            "trainer/update_norm": change,
            "trainer/update_relative": change / weights if weights else 0.0,
            "trainer/lr": rate,
            "trainer/micro_batches": float(num_micros),
            "time/train_forward_backward": forward_backward_s,
            "time/train_optimizer": time.perf_counter() - started - split_s - forward_backward_s,
        }
        return _unpacked(results, batch), metrics

    def _split(
        self,
        batch: Sequence[Sample],
        indices: list[int],
        old: dict[int, Scores] | None,
        totals: BatchTotals,
    ) -> dict[str, float]:
        """Norms of the gradient by the sign of the advantage, each in a pass of its own, so that
        the update stays the same to the bit whether or not they are taken."""
        found = {}
        for name, sign in (("positive", 1), ("negative", -1)):
            part = [i for i in indices if np.sign(batch[i].advantage) == sign]
            if part:
                self._take_gradient(batch, part, totals, old)
            found[f"trainer/grad_norm_{name}"] = (
                float(self.optimizer.get_grad_norm()) if part else 0.0
            )
        return found

    def gradient(self, batch: Sequence[Sample], part: Sequence[int]) -> None:
        """Leaves the gradient of some samples of `batch` alone, by place, in the optimizer: the
        batch's own is the sum over its parts. As yet unclipped, of the only update on the batch.

        A collective.
        """
        self._take_gradient(batch, part, self._totals(batch, range(len(batch))), None)

    def _take_gradient(
        self,
        batch: Sequence[Sample],
        part: Sequence[int],
        totals: BatchTotals,
        old: dict[int, Scores] | None,
    ) -> None:
        self._zero_grad()
        self._schedule(self._ready(batch, part, old), totals, scored=old is not None)
        self.optimizer.prepare_grads()

    def _totals(self, batch: Sequence[Sample], indices: Sequence[int]) -> BatchTotals:
        return BatchTotals(
            num_samples=len(indices),
            num_tokens=max(1, sum(batch[i].num_generated for i in indices)),
            max_tokens=self.run.rollout.max_session_tokens,
        )

    def _ready(
        self, batch: Sequence[Sample], indices: Sequence[int], old: dict[int, Scores] | None
    ) -> list[MicroBatch]:
        """Micro-batches that know their old log-probabilities, where `old` has them."""
        micros = self._micro_batches(batch, indices)
        if old is None:
            return micros
        return [micro.with_old_logp(repack(micro, old)) for micro in micros]

    def _zero_grad(self) -> None:
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()

    def _micro_batches(self, batch: Sequence[Sample], indices: Sequence[int]) -> list[MicroBatch]:
        return micro_batches(
            batch,
            indices,
            rank=parallel_state.get_data_parallel_rank(),
            num_ranks=parallel_state.get_data_parallel_world_size(),
            max_tokens=self.run.parallel.max_tokens_per_rank,
            multiple=parallel_state.get_tensor_model_parallel_world_size(),
            context=(
                parallel_state.get_context_parallel_rank(),
                parallel_state.get_context_parallel_world_size(),
            ),
            near_cap=NEAR_CAP * self.run.rollout.max_turn_tokens,
            device=torch.device(torch.cuda.current_device()),
        )

    def _schedule(
        self, micros: list[MicroBatch], totals: BatchTotals | None, scored: bool = False
    ) -> list[_Result]:
        """Runs micro-batches through the pipeline, with a backward pass if `totals` are given.

        Args:
            micros: taken away one by one, so that what a micro-batch gathers on its way, as
                sparse attention's choices, goes when its backward pass is done.
            scored: the micro-batches know their old log-probabilities.

        Returns:
            one result a micro-batch on the last pipeline stage, nothing on the others.
        """

        def loss(micro: MicroBatch, local: Tensor, non_loss_data: bool = False) -> Any:
            # Ratios may be taken over a whole sample: every context-parallel rank has the loss of
            # all tokens, and its gradient by its own.
            scores = micro.packed.whole(local.T, same_use=True).T
            if totals is None:
                return micro.without_choices(), scores, {}
            known = micro if scored else micro.with_old_logp(scores[0].detach())
            value, metrics = rl_loss(scores[0], scores[1], known.known, self.run.clip, totals)
            told = {name: m.item() for name, m in metrics.items()}
            result = micro.without_choices(), scores.detach(), told
            return value, torch.ones((), dtype=torch.int, device=value.device), result

        def forward(queue: Iterator[MicroBatch], model: Any) -> tuple[Tensor, Any]:
            micro = next(queue)
            scores = score(model, micro.tokens, micro.labels, micro.packed)
            return scores, partial(loss, micro)

        def taken() -> Iterator[MicroBatch]:
            while micros:
                yield micros.pop(0)

        return get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=taken(),
            model=[self.model],
            num_microbatches=len(micros),
            seq_length=1,  # sizes travel with the tensors
            micro_batch_size=1,
            forward_only=totals is None,
            collect_non_loss_data=totals is None,
        )

    def _batch_metrics(
        self, batch: Sequence[Sample], scores: list[Scores], step: int
    ) -> dict[str, float]:
        masks = [np.asarray(sample.loss_mask) for sample in batch]
        counts = [int(mask.sum()) for mask in masks]

        def picked(arrays: list[np.ndarray]) -> np.ndarray:
            return np.concatenate([a[m] for a, m in zip(arrays, masks, strict=True)])

        turns = np.array([turn.end - turn.start for s in batch for turn in s.turns], np.int64)
        tokens = ScoredTokens(
            train_logp=picked([s.logp for s in scores]),
            rollout_logp=picked([s.rollout_logprobs for s in batch]),
            sample_index=np.repeat(np.arange(len(batch)), counts),
            advantages=np.repeat(np.array([s.advantage for s in batch], np.float32), counts),
            truncated=np.repeat([s.truncated for s in batch], counts),
            staleness=step - 1 - picked([s.weight_versions for s in batch]),
            turn_fill=np.repeat(turns / np.float32(self.run.rollout.max_turn_tokens), turns),
        )
        return {
            "trainer/tokens": float(sum(trained_length(sample) for sample in batch)),
            "trainer/generated_tokens": float(sum(counts)),
            **mismatch_metrics(tokens, len(batch), self.run.clip.kl_estimator),
        }


def _over_updates(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Times added up; of everything else the mean over the updates that have it."""
    found = {}
    for name in {name: None for update in updates for name in update}:
        values = [update[name] for update in updates if name in update]
        found[name] = float(sum(values)) / (1 if name.startswith("time/") else len(values))
    return found


def _with_cosine(split: dict[str, float], norm: float, entropy_coef: float) -> dict[str, float]:
    """Adds the cosine of both parts, |g|^2 = |p|^2 + |n|^2 + 2 |p| |n| cos, where they are all of
    the gradient and neither is 0."""
    positive, negative = split.values()
    if entropy_coef or not positive * negative:
        return split
    cosine = (norm**2 - positive**2 - negative**2) / (2 * positive * negative)
    return {**split, "trainer/grad_cosine": min(1.0, max(-1.0, cosine))}


def _reports() -> bool:
    """Whether this rank speaks for its data-parallel replica."""
    return (
        parallel_state.is_pipeline_last_stage()
        and parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0
    )


def _sum_metrics(metrics: list[dict[str, float]]) -> dict[str, float]:
    """Adds metrics up over this rank's micro-batches, then over replicas. Same on every rank."""
    mine: dict[str, float] = {}
    for found in metrics if _reports() else []:
        for name, value in found.items():
            mine[name] = mine.get(name, 0.0) + value
    everyone: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    names = next((list(found) for found in everyone if found), [])
    return {name: sum(found[name] for found in everyone if found) for name in names}


def _unpacked(results: list[_Result], batch: Sequence[Sample]) -> dict[int, Scores]:
    return {i: s for micro, scores, _ in results for i, s in unpack(micro, scores, batch).items()}


def _on_rank_0(scored: dict[int, Scores]) -> dict[int, Scores] | None:
    """Every replica's scores on rank 0, None elsewhere."""
    everyone: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(scored if _reports() else {}, everyone, dst=0)
    return None if everyone is None else {i: s for found in everyone for i, s in found.items()}


def in_order(scored: dict[int, Scores], batch: Sequence[Sample]) -> list[Scores]:
    """Scores of every sample, from those by place; zeros for those without a generated token."""

    def zeros(index: int) -> Scores:
        return Scores(*np.zeros((2, len(batch[index].tokens)), dtype=np.float32))

    return [scored.get(index) or zeros(index) for index in range(len(batch))]
