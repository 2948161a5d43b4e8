"""The trainer's step against the same step in plain transformers, in turn in one process.

    python benchmarks/train_step.py [--repeats N] [OVERRIDE ...]

Both take log-probs, entropies, the configured loss, its gradient, clipping and an Adam update on
the same micro-batches of a synthetic batch, from random weights of the configured shape.
transformers gets each micro-batch padded, as its users do, with its own attention and experts.
Prints the median of each, and of the ratio of neighbouring runs, which is the less disturbed by
whatever else runs; the target is a ratio of at most 1.3.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.schema import NEAR_CAP, RunConfig
from glm52_tbench2.rollout.batch import Sample, Turn
from glm52_tbench2.trainer.cpu import install
from glm52_tbench2.trainer.hf import hf_config

install()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM  # noqa: E402

from glm52_tbench2.trainer import ranks  # noqa: E402
from glm52_tbench2.trainer.convert import load_hf  # noqa: E402
from glm52_tbench2.trainer.losses import BatchTotals, Tokens, rl_loss  # noqa: E402
from glm52_tbench2.trainer.microbatch import MicroBatch, micro_batches  # noqa: E402
from glm52_tbench2.trainer.model import build_model, wrap  # noqa: E402
from glm52_tbench2.trainer.optimizer import build_optimizer  # noqa: E402
from glm52_tbench2.trainer.step import TrainStep  # noqa: E402


def make_batch(run: RunConfig) -> list[Sample]:
    """Episodes of a quarter to the whole session budget, a third of their tokens generated."""
    rng = np.random.default_rng(run.seed)
    budget = run.rollout.max_session_tokens
    batch = []
    for number in range(run.rollout.prompts_per_step * run.rollout.samples_per_prompt):
        length = int(rng.integers(budget // 4, budget + 1))
        starts = range(length // 4, length - 40, 120)
        mask = np.zeros(length, dtype=bool)
        for start in starts:
            mask[start : start + 40] = True
        batch.append(
            Sample(
                sample_id=f"{number}",
                step=1,
                group=number,
                index=0,
                task_id="synthetic",
                end_reason="task_complete",
                reward=0.0,
                truncated=False,
                tokens=rng.integers(0, run.model.vocab_size, length).astype(np.int32),
                loss_mask=mask,
                rollout_logprobs=np.where(mask, -7.0, 0.0).astype(np.float32),
                weight_versions=np.where(mask, 0, -1).astype(np.int32),
                turns=[Turn(start, start + 40, "stop", 0.0) for start in starts],
                prompt_tokens=length // 4,
                advantage=float(rng.normal()),
            )
        )
    return batch


def megatron_step(run: RunConfig, folder: Path, batch: list[Sample]) -> Callable[[], float]:
    """A function that takes one step and returns the loss."""
    model = build_model(run)
    wrapped = wrap(model)
    load_hf(model, folder)
    step = TrainStep(run, wrapped, build_optimizer(run, wrapped))
    return lambda: step(batch, 1).metrics["trainer/loss"]


def transformers_step(run: RunConfig, folder: Path, batch: list[Sample]) -> Callable[[], float]:
    """The same for plain transformers."""
    model = Glm4MoeLiteForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optim = run.optim
    plain = [p for p in model.parameters() if p.ndim == 1]
    decayed = [p for p in model.parameters() if p.ndim > 1]
    adam = torch.optim.AdamW(
        [{"params": plain, "weight_decay": 0.0}, {"params": decayed}],
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
    )
    totals = BatchTotals(
        len(batch), sum(s.num_generated for s in batch), run.rollout.max_session_tokens
    )

    def loss_of(micro: MicroBatch) -> torch.Tensor:
        lengths = micro.packed.lengths
        rows = torch.nn.utils.rnn.pad_sequence(micro.tokens.split(lengths), batch_first=True)
        here = torch.arange(rows.size(1)) < torch.tensor(lengths)[:, None]
        logits = model(rows, attention_mask=here.long()).logits[here] / run.rollout.temperature
        logps = torch.log_softmax(logits, dim=-1)
        logp = logps.gather(-1, micro.labels[:, None])[:, 0]
        with torch.no_grad():
            entropy = -(logps.exp() * logps).sum(-1)
        known = Tokens(**{**vars(micro.known), "old_logp": logp.detach()})
        return rl_loss(logp, entropy, known, run.clip, totals)[0]

    def step() -> float:
        adam.zero_grad()
        total = 0.0
        for micro in micro_batches(
            batch,
            range(len(batch)),
            rank=0,
            num_ranks=1,
            max_tokens=run.parallel.max_tokens_per_rank,
            multiple=1,
            context=(0, 1),
            near_cap=NEAR_CAP * run.rollout.max_turn_tokens,
            device=torch.device("cpu"),
        ):
            loss = loss_of(micro)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip_grad)
        adam.step()
        return total

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="timed steps of each")
    parser.add_argument("overrides", nargs="*", help="as for glm52 train, after experiment=smoke")
    given = parser.parse_args()
    run = compose(["experiment=smoke", *given.overrides])
    ranks.connect(run, dist.HashStore(), 0, 1)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(run.seed)
        Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**hf_config(run.model))).save_pretrained(folder)
        batch = make_batch(run)
        steps = {
            "trainer": megatron_step(run, Path(folder), batch),
            "transformers": transformers_step(run, Path(folder), batch),
        }
    tokens = sum(len(sample.tokens) for sample in batch)
    print(f"{len(batch)} samples, {tokens} tokens, {torch.get_num_threads()} threads")

    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(
        given.repeats + 1
    ):  # the first warms up, and shows that both compute the same
        losses = {}
        for name, step in steps.items():
            started = perf_counter()
            losses[name] = step()
            times[name].append(perf_counter() - started)
        if turn == 0:  # warms up, and shows that both compute the same
            first = {name: found.pop() for name, found in times.items()}
            print(
                "first step: "
                + ", ".join(f"{n} {first[n]:.2f} s (loss {losses[n]:.6f})" for n in steps)
            )
    for name, found in times.items():
        median = statistics.median(found)
        print(f"{name:12} median {median:.3f} s a step, {tokens / median:,.0f} tokens/s")
    ratios = [a / b for a, b in zip(times["trainer"], times["transformers"], strict=True)]
    print(
        f"ratio        median {statistics.median(ratios):.2f} of {len(ratios)} pairs, "
        f"{min(ratios):.2f} to {max(ratios):.2f}"
    )
    ranks.disconnect()


if __name__ == "__main__":
    main()
