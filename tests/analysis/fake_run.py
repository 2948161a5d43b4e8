"""Runs made of numbers: what the driver and the trainer would have written, without either.

The files come from the real writers, so that a change of the schema reaches these tests.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.schema import Advantage, KlEstimator
from glm52_tbench2.rollout.advantages import advantages
from glm52_tbench2.rollout.batch import Sample, Turn, batch_path, write_batch
from glm52_tbench2.rollout.stats import eval_metrics, rollout_metrics
from glm52_tbench2.trainer.mismatch import ScoredTokens, mismatch_metrics

IDENTITY = "0123456789abcdef"
SPECIAL = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>")
FAMILIES = ("sort-unique", "csv-max", "fix-link", "set-mode", "git-restore", "count-matches")


def byte_tokenizer() -> Tokenizer:
    """A token a byte, and GLM's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return tokenizer


@dataclass
class FakeRun:
    """Writes one run's files. `drift`: how much faster than healthy the mismatch grows a step."""

    path: Path
    tokenizer: Tokenizer
    steps: int
    num_tasks: int = 24
    num_eval: int = 20
    groups: int = 8
    samples: int = 4
    drift: float = 0.0
    words: str = "Sort the lines of a.txt & keep them <unique>."

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(7)
        names = [f"task{i:02d}-{FAMILIES[i % len(FAMILIES)]}" for i in range(200)]
        self.tasks = names[: self.num_tasks]
        self.eval_tasks = names[self.num_tasks : self.num_tasks + self.num_eval]
        self.evaluated: set[int] = set()
        self.ease = dict(zip(names, self.rng.normal(-0.6, 1.3, len(names)), strict=True))

    def write(self, upto: int | None = None, eval_every: int = 6, finished: bool = True) -> Path:
        """The files of a run that has come as far as step `upto`."""
        self.start()
        upto = self.steps if upto is None else upto
        for step in range(upto + 1):
            if step:
                self.step(step)
            if step % eval_every == 0 or step == self.steps:
                self.evaluate(step)
        if finished:
            (self.path / "finished").write_text("now\n")
        return self.path

    def start(self) -> None:
        model = self.path.parent / "model"
        model.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(str(model / "tokenizer.json"))
        self.path.mkdir(parents=True)
        overrides = [
            "experiment=smoke",
            f"steps={self.steps}",
            f"model.path={model}",
            f"rollout.prompts_per_step={self.groups}",
            f"rollout.samples_per_prompt={self.samples}",
        ]
        save_run_config(compose(overrides), self.path)
        identity = {
            "hash": IDENTITY,
            "config": {},
            "code": "2" * 64,
            "task_sets": {"mini/train69": "0" * 64},
            "tasks": {"mini/train69": "3" * 64},
            "model": "1" * 64,
            "packages": {"torch": "2.13.0"},
            "made": {
                "revision": "f" * 40,
                "changes": "abc",
                "sources": {"trainer/step.py": "4" * 12},
                "task_ids": {"mini/train69": self.tasks},
                "task_files": dict.fromkeys(self.tasks, "5" * 12),
                "machine": {"cpu": "CPU", "cores": 2, "gpu": "none", "python": "3.11.0"},
                "origin": None,
            },
            "history": [],
        }
        (self.path / "identity.json").write_text(json.dumps(identity))

    def step(self, step: int) -> None:
        order = np.random.default_rng((step - 1) * self.groups // self.num_tasks)
        wheel = list(order.permutation(self.tasks)) * 2
        begin = (step - 1) * self.groups % self.num_tasks
        samples = []
        for group, task in enumerate(wheel[begin : begin + self.groups]):
            found = [self.sample(step, group, i, str(task), step) for i in range(self.samples)]
            values = advantages([s.reward for s in found], Advantage.grpo, True)
            for sample, value in zip(found, values, strict=True):
                sample.advantage = float(value)
            samples += found
        stats = {"wall_s": 6.0 + self.rng.random(), "wasted_tokens": 40.0}
        if step % 5 == 0:
            stats["replaced/sandbox"] = 1.0
        write_batch(batch_path(self.path, "rollouts", step), samples, IDENTITY, step, stats)
        metrics_log.append(self.path, step, "driver", rollout_metrics(samples, stats, step - 1, 96))
        metrics_log.append(self.path, step, "trainer", self.trainer_metrics(samples, step))

    def evaluate(self, step: int) -> None:
        samples = [
            self.sample(step, group, index, task, step)
            for group, task in enumerate(self.eval_tasks)
            for index in range(2)
        ]
        self.evaluated.add(step)
        stats = {"wall_s": 3.0, "missing": 0.0}
        write_batch(batch_path(self.path, "eval", step), samples, IDENTITY, step, stats)
        metrics_log.append(self.path, step, "eval", eval_metrics(samples, stats))

    def trainer_metrics(self, samples: list[Sample], step: int) -> dict[str, float]:
        rollout = np.concatenate([s.rollout_logprobs[s.loss_mask] for s in samples])
        counts = [s.num_generated for s in samples]
        advantage = np.repeat([s.advantage for s in samples], counts)
        scale = 0.02 * math.exp(self.drift * step) * (1 + (advantage < 0))
        noise = self.rng.standard_t(3, len(rollout)) * scale
        turns = np.array([turn.end - turn.start for s in samples for turn in s.turns])
        tokens = ScoredTokens(
            train_logp=(rollout + noise).astype(np.float32),
            rollout_logp=rollout,
            sample_index=np.repeat(np.arange(len(samples)), counts),
            advantages=advantage,
            truncated=np.repeat([s.truncated for s in samples], counts),
            staleness=np.zeros(len(rollout), dtype=np.int64),
            turn_fill=np.repeat(turns / 96, turns),
        )
        return {
            "trainer/loss": float(self.rng.normal(0, 0.05)),
            "trainer/policy_loss": 0.0,
            "trainer/entropy": 0.9 * math.exp(-step / 60) + 0.1 + 0.03 * self.rng.random(),
            "trainer/grad_norm": 0.4 + 0.3 * self.rng.random(),
            "trainer/lr": 3e-4,
            "time/train_compute": 2.2 + 0.3 * self.rng.random(),
            "time/train_push": 0.5,
            "time/train_wait": 10.0 if step - 1 in self.evaluated else 7.0,
            "time/train_step": 14.0 if step - 1 in self.evaluated else 11.0,
            **mismatch_metrics(tokens, len(samples), KlEstimator.low_var_kl),
        }

    def sample(self, step: int, group: int, index: int, task: str, trained: int) -> Sample:
        skill = self.ease[task] + 3.0 * trained / (trained + 20)
        collapse = self.drift * trained * 0.9
        chance = 1 / (1 + math.exp(-(skill - collapse)))
        reward = float(self.rng.random() < chance)
        if reward:
            end = "task_complete"
        else:
            lengthy = min(0.9, 0.25 + collapse / 3)
            others = (1 - lengthy) / 5
            end = str(
                self.rng.choice(
                    ["length", "no_command", "max_turns", "budget", "task_complete", "timeout"],
                    p=[lengthy, *[others] * 5],
                )
            )
        prompt = f"[gMASK]<sop><|system|>\nYou use a shell.<|user|>\n{self.words}<|assistant|>\n"
        tokens = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        prompt_tokens, spans, turns = len(tokens), [], []
        for number in range(int(self.rng.integers(1, 4))):
            said = f"Look first.\n```bash\nsort -u a.txt | head -{number + 3}\n```<|user|>"
            ids = self.tokenizer.encode(said, add_special_tokens=False).ids
            spans.append((len(tokens), len(tokens) + len(ids)))
            tokens += ids
            turns.append(
                Turn(
                    start=spans[-1][0],
                    end=spans[-1][1],
                    finish="stop",
                    generate_s=0.8,
                    command=f"sort -u a.txt | head -{number + 3}",
                    exit_code=0,
                    exec_s=0.05,
                    observation="apple\n<b>bold</b> & co\n<|assistant|>",
                )
            )
            tokens += self.tokenizer.encode("\napple<|assistant|>\n", add_special_tokens=False).ids
        mask = np.zeros(len(tokens), dtype=bool)
        for start, stop in spans:
            mask[start:stop] = True
        logprobs = np.where(mask, -np.abs(self.rng.normal(0, 0.7, len(tokens))), 0.0)
        return Sample(
            sample_id=f"{step:06d}-{group}-{index}",
            step=step,
            group=group,
            index=index,
            task_id=task,
            end_reason=end,
            reward=reward,
            truncated=end in ("length", "budget"),
            tokens=np.asarray(tokens, dtype=np.int32),
            loss_mask=mask,
            rollout_logprobs=logprobs.astype(np.float32),
            weight_versions=np.where(mask, max(step - 1, 0), -1).astype(np.int32),
            turns=turns,
            prompt_tokens=prompt_tokens,
            generate_s=2.4,
            sandbox_s=0.5,
            verify_s=0.3,
            total_s=3.6,
        )
