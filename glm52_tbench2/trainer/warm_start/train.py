"""Supervised training of the small model on demonstrations."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random
from string import digits

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM, PreTrainedTokenizerFast
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteTopkRouter

from glm52_tbench2.config.schema import ModelConfig
from glm52_tbench2.tasks.mini import WORDS
from glm52_tbench2.trainer.hf import hf_config

from .copying import seed_copying
from .tokenizer import EOS_TOKENS

Encoded = tuple[list[int], list[bool]]
"""(token ids, loss mask) of one conversation."""


@dataclass(frozen=True)
class Lesson:
    """What is taught for a number of steps."""

    demos: Iterator[Encoded]
    steps: int


@dataclass(frozen=True)
class Schedule:
    batch_tokens: int = 2048
    """Tokens of a batch, padding included."""
    lr: float = 2e-3
    """Peak of Adam's learning rate; linear warm-up, linear decay to 0 over the last 40 %."""
    warmup: int = 50
    weight_decay: float = 0.05
    bias_rate: float = 1e-3
    """Step of the routers' expert bias towards an equal load."""


def new_model(
    config: ModelConfig, tokenizer: PreTrainedTokenizerFast, seed: int
) -> Glm4MoeLiteForCausalLM:
    """The model before training, float32."""
    entries = hf_config(config) | {
        "max_position_embeddings": config.max_position,
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids(list(EOS_TOKENS)),
        "pad_token_id": tokenizer.pad_token_id,
    }
    model = Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**entries))
    seed_copying(model, config, tokenizer, (*WORDS, *digits), seed)
    return model


def batches(demos: Iterator[Encoded], rng: Random, batch_tokens: int) -> Iterator[list[Encoded]]:
    """Batches of conversations of similar length, `batch_tokens` tokens each with padding."""
    while True:
        pool = sorted((next(demos) for _ in range(512)), key=lambda demo: len(demo[0]))
        found: list[list[Encoded]] = [[]]
        for demo in pool:
            if (len(found[-1]) + 1) * len(demo[0]) > batch_tokens:
                found.append([])
            found[-1].append(demo)
        rng.shuffle(found)
        yield from found


def loss_of(model: Glm4MoeLiteForCausalLM, batch: list[Encoded]) -> Tensor:
    """Mean cross-entropy of the tokens that the policy generates."""
    length = max(len(ids) for ids, _ in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    mask = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, (tokens, generated) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = torch.tensor(generated)
    # Padding is on the right, where a causal model does not see it.
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1]
    taught = mask[:, 1:]
    return F.cross_entropy(model.lm_head(hidden[taught]), ids[:, 1:][taught])


class LoadBalance:
    """Moves each router's expert bias towards an equal load, as DeepSeek-V3 does it."""

    def __init__(self, model: Glm4MoeLiteForCausalLM, rate: float) -> None:
        self._rate = rate
        for module in model.modules():
            if isinstance(module, Glm4MoeLiteTopkRouter):
                module.register_forward_hook(self._move)

    @torch.no_grad()
    def _move(
        self, router: Glm4MoeLiteTopkRouter, _: object, output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        if router.training:
            bias = router.e_score_correction_bias
            load = torch.bincount(output[2].flatten(), minlength=len(bias)).float()
            bias.add_(torch.sign(load.mean() - load), alpha=self._rate)


def train(
    model: Glm4MoeLiteForCausalLM,
    lessons: Sequence[Lesson],
    schedule: Schedule,
    rng: Random,
    progress: Callable[[int, float], None],
) -> None:
    """Trains in place; calls `progress` with (steps done, loss) after each step."""
    LoadBalance(model, schedule.bias_rate)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=schedule.lr,
        betas=(0.9, 0.95),
        weight_decay=schedule.weight_decay,
        fused=True,
    )
    steps = sum(lesson.steps for lesson in lessons)
    plan = chain.from_iterable(
        islice(batches(lesson.demos, rng, schedule.batch_tokens), lesson.steps)
        for lesson in lessons
    )
    for step, batch in enumerate(plan):
        rise = (step + 1) / schedule.warmup
        fall = (steps - step) / (0.4 * steps)
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr * min(1.0, rise, fall)
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"the loss of step {step + 1} is not finite")
        progress(step + 1, loss.item())
    model.eval()


def save(model: Glm4MoeLiteForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes weights (bfloat16; routers float32), configs and tokenizer as transformers does."""
    state = {
        name: tensor if ".mlp.gate." in name else tensor.to(torch.bfloat16)
        for name, tensor in model.state_dict().items()
    }
    model.generation_config.do_sample = True
    model.save_pretrained(out, state_dict=state)
    tokenizer.save_pretrained(out, save_jinja_files=False)
