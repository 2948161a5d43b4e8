"""Writes a run folder made of numbers, healthy at first: python -m benchmarks.synthetic_run FOLDER

Its files are those of the driver and the trainer, at the reference's size by default: 100 steps of
64 samples of up to 65,536 tokens, 200 million in all. From --onset on it goes wrong in one of the
ways of --kind; `repeated` is the published divergence: failing tasks say near-identical giant turns
step after step, with negative advantages, and the trainer's log-probs walk away from them.
"""

import argparse
import json
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tokenizers import Tokenizer

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.files import SCHEMA_VERSION, atomic_path
from glm52_tbench2.config.paths import DATA, ROOT
from glm52_tbench2.config.schema import Advantage, KlEstimator
from glm52_tbench2.rollout.advantages import advantages
from glm52_tbench2.rollout.batch import Sample, Turn, batch_path, write_batch
from glm52_tbench2.rollout.stats import eval_metrics, rollout_metrics
from glm52_tbench2.tasks.sets import load_set
from glm52_tbench2.trainer.mismatch import ScoredTokens, mismatch_metrics

KINDS = ("healthy", "repeated", "stale", "engine", "churn", "collapse", "length", "silent")
IDENTITY = "5" * 16
_CHUNK = 12
"""Tokens in a row that text has in common with its source."""
_LOOP = 60
"""Tokens of a loop."""
_EVAL_EVERY = 10


@dataclass
class SyntheticRun:
    """One run to write."""

    path: Path
    kind: str = "repeated"
    """One of KINDS."""
    steps: int = 100
    onset: int = 40
    """First step that is unhealthy."""
    prompts: int = 8
    """Groups a step, each of a task of its own, the same every step."""
    samples: int = 8
    """Samples a group."""
    tokens: int = 65_536
    """Most of a sample."""
    cap: int = 8192
    """Most of a turn."""
    failing: int = 2
    """Tasks that fail and repeat themselves, the first ones."""
    seed: int = 0

    @cached_property
    def source(self) -> NDArray[np.int32]:
        """Token ids of a text, which everything said is made of."""
        tokenizer = Tokenizer.from_file(str(DATA / "tiny" / "tokenizer.json"))
        text = "\n".join(path.read_text() for path in sorted(ROOT.glob("docs/*.md")))
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Ids of the tasks that are trained."""
        return load_set("tbench2/train69").ids[: self.prompts]

    def write(self, hold: int | None = None) -> Path:
        """Writes the folder; `hold`: only as far as this step, as of a run that goes on."""
        self.path.mkdir(parents=True)
        experiment = ["experiment=job2350", "model.path=data/tiny"]
        knobs = [
            f"steps={self.steps}",
            f"rollout.prompts_per_step={self.prompts}",
            f"rollout.samples_per_prompt={self.samples}",
            f"rollout.max_turn_tokens={self.cap}",
            f"rollout.max_session_tokens={self.tokens}",
        ]
        save_run_config(compose([*experiment, *knobs]), self.path)
        (self.path / "identity.json").write_text(json.dumps({"hash": IDENTITY, "history": []}))
        last = self.steps if hold is None else hold
        for step in range(last + 1):
            if step:
                self.step(step)
            if step % _EVAL_EVERY == 0:
                self.evaluate(step)
        if hold is None:
            (self.path / "finished").write_text("now\n")
        return self.path

    def step(self, step: int) -> None:
        """Writes one step's files and metrics."""
        rng = np.random.default_rng([self.seed, step])
        batch, distances = [], []
        for group, task in enumerate(self.tasks):
            made = [self._sample(rng, step, group, index, task) for index in range(self.samples)]
            values = advantages([one.reward for one, _ in made], Advantage.grpo, True)
            for (sample, distance), value in zip(made, values, strict=True):
                sample.advantage = float(value)
                batch.append(sample)
                distances.append(distance)
        stats = {"wall_s": 300.0}
        write_batch(batch_path(self.path, "rollouts", step), batch, IDENTITY, step, stats)
        metrics = rollout_metrics(batch, stats, step - 1, self.cap)
        metrics_log.append(self.path, step, "driver", metrics)
        trainer = [
            np.minimum(one.rollout_logprobs + d, 0) for one, d in zip(batch, distances, strict=True)
        ]
        level = 0.5 * (0.85 ** max(0, step - self.onset) if self.kind == "collapse" else 1.0)
        entropy = [
            np.where(sample.loss_mask, level * (1 + d), 0)
            for sample, d in zip(batch, distances, strict=True)
        ]
        self._write_scores(step, batch, trainer, entropy)
        self._trainer_metrics(rng, step, batch, trainer, level)

    def evaluate(self, step: int) -> None:
        """Writes an evaluation after `step` steps."""
        rng = np.random.default_rng([self.seed, step, 1])
        lost = self.kind == "churn" and step >= self.onset
        rows = []
        for group, task in enumerate(load_set("tbench2/eval20").ids):
            able = group % 4 < (1 if lost else 3)
            for index in range(2):
                sample, _ = self._sample(rng, 0, group, index, task, reward=float(able))
                sample.step = step
                sample.sample_id = f"{step:06d}-{group}-{index}"
                sample.weight_versions = np.where(sample.loss_mask, step, -1).astype(np.int32)
                rows.append(sample)
        stats = {"wall_s": 200.0, "missing": 0.0}
        write_batch(batch_path(self.path, "eval", step), rows, IDENTITY, step, stats)
        metrics_log.append(self.path, step, "eval", eval_metrics(rows, stats))

    def _sample(
        self,
        rng: np.random.Generator,
        step: int,
        group: int,
        index: int,
        task: str,
        reward: float | None = None,
    ) -> tuple[Sample, NDArray[np.float32]]:
        """A sample and D of its tokens [T]."""
        since = step - self.onset
        wrong = since >= 0 and step > 0
        repeats = self.kind == "repeated" and wrong and group < self.failing
        longer = min(6.0, 1.1**since) if self.kind == "length" and wrong else 1.0
        if reward is None:
            reward = float(rng.random() < (0.12 if group < self.failing else 0.7))
        by_chance = step > 0 and rng.random() < min(0.9, 0.1 * longer**2)
        if self.kind == "length" and by_chance:
            reward = 0.0
        giant = not reward and (repeats or by_chance)
        parts = self._parts(rng, giant, longer)
        text = self._text(rng, sum(told + said for told, said in parts))
        mask = np.zeros(len(text), bool)
        turns, place = [], 0
        for told, said in parts:
            place += told
            mask[place : place + said] = True
            finish = "length" if said == self.cap else "stop"
            turns.append(Turn(place, place + said, finish, 0.02 * said, 0, "ls", 0, 0.1, "a.txt"))
            place += said
        likely = -rng.exponential(0.5, len(text))
        distance = 0.02 * rng.laplace(size=len(text))
        age = int(rng.integers(0, 3)) if step else 0
        if self.kind == "stale" and wrong:
            age = int(rng.integers(0, 9))
            distance *= 1 + 4.0 * age
        if self.kind == "engine" and wrong:
            distance *= 20
        if giant and repeats:
            at = slice(turns[-1].start + self.cap // 40, turns[-1].end)
            text[at] = self._loop(rng, group, at.stop - at.start)
            likely[at] *= 0.02
            distance[at] -= rng.exponential(0.06 * min(64.0, 1.15**since), at.stop - at.start)
        return Sample(
            sample_id=f"{step:06d}-{group}-{index}",
            step=step,
            group=group,
            index=index,
            task_id=task,
            end_reason="length" if giant else "task_complete",
            reward=reward,
            truncated=giant,
            tokens=text,
            loss_mask=mask,
            rollout_logprobs=np.where(mask, likely, 0).astype(np.float32),
            weight_versions=np.where(mask, max(0, step - 1 - age), -1).astype(np.int32),
            turns=turns,
            prompt_tokens=parts[0][0],
            generate_s=200.0,
            total_s=240.0,
        ), distance.astype(np.float32)

    def _parts(self, rng: np.random.Generator, giant: bool, longer: float) -> list[tuple[int, int]]:
        """Tokens told and said by turn."""
        usual = int(self.cap * 0.1 * longer)
        said = np.clip(rng.lognormal(np.log(usual), 0.7, 24).astype(int), 8, int(self.cap * 0.85))
        told = np.clip(rng.lognormal(np.log(self.tokens / 90), 0.7, 24).astype(int), 4, None)
        room = self.tokens - (self.cap + int(told.max()) if giant else 0)
        fit = int(np.searchsorted(np.cumsum(said + told), room))
        parts = list(zip(told[:fit].tolist(), said[:fit].tolist(), strict=True))
        parts = parts[: int(rng.integers(12, 25))]
        return [*parts, (int(told[0]), self.cap)] if giant else parts

    def _text(self, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
        starts = rng.integers(0, len(self.source) - _CHUNK, count // _CHUNK + 1)
        return self.source[(starts[:, None] + np.arange(_CHUNK)).ravel()[:count]]

    def _loop(self, rng: np.random.Generator, group: int, count: int) -> NDArray[np.int32]:
        """The loop of a task, left for a token now and then."""
        said = np.resize(self._text(np.random.default_rng(group), _LOOP), count)
        places = rng.integers(0, count, count // 500)
        said[places] = rng.choice(self.source, len(places))
        return said

    def _write_scores(
        self, step: int, batch: list[Sample], trainer: list[Any], entropy: list[Any]
    ) -> None:
        table = pa.table(
            {
                "sample_id": [sample.sample_id for sample in batch],
                "trainer_logprobs": pa.array(trainer, pa.list_(pa.float32())),
                "entropy": pa.array([e.astype(np.float32) for e in entropy]),
            }
        ).replace_schema_metadata(
            {"schema_version": SCHEMA_VERSION, "identity": IDENTITY, "step": str(step)}
        )
        with atomic_path(batch_path(self.path, "train", step)) as temporary:
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)

    def _trainer_metrics(
        self,
        rng: np.random.Generator,
        step: int,
        batch: list[Sample],
        trainer: list[Any],
        entropy: float,
    ) -> None:
        counts = [sample.num_generated for sample in batch]
        turns = np.array([turn.end - turn.start for s in batch for turn in s.turns])
        said = [sample.loss_mask for sample in batch]
        tokens = ScoredTokens(
            train_logp=np.concatenate([t[m] for t, m in zip(trainer, said, strict=True)]),
            rollout_logp=np.concatenate([s.rollout_logprobs[s.loss_mask] for s in batch]),
            sample_index=np.repeat(np.arange(len(batch)), counts),
            advantages=np.repeat([s.advantage for s in batch], counts),
            truncated=np.repeat([s.truncated for s in batch], counts),
            staleness=step - 1 - np.concatenate([s.weight_versions[s.loss_mask] for s in batch]),
            turn_fill=np.repeat(turns / self.cap, turns),
        )
        still = self.kind == "silent" and step >= self.onset
        metrics = {
            "trainer/entropy": entropy * float(rng.uniform(0.95, 1.05)),
            "trainer/grad_norm": 0.0 if still else float(rng.uniform(0.2, 0.6)),
            "trainer/lr": 1e-6,
            "time/train_step": 360.0,
            **mismatch_metrics(tokens, len(batch), KlEstimator.low_var_kl),
        }
        metrics_log.append(self.path, step, "trainer", metrics)


def main() -> None:
    """Writes the folder that the command line asks for; prints its size and the time it took."""
    parser = argparse.ArgumentParser("python -m benchmarks.synthetic_run", description=__doc__)
    parser.add_argument("folder", type=Path, help="must not be there yet")
    parser.add_argument("--kind", choices=KINDS, default="repeated")
    for name in ("steps", "onset", "prompts", "samples", "tokens", "cap", "seed"):
        default = getattr(SyntheticRun, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    options = vars(parser.parse_args())
    began = time.perf_counter()
    path = SyntheticRun(options.pop("folder"), **options).write()
    size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
    print(f"{path}: {size / 1e9:.2f} GB in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
