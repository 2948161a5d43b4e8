"""Rebuilds the small model's tokenizer and starting weights: glm52 warm-start --out data/tiny."""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import RolloutConfig, RunConfig
from glm52_tbench2.rollout.chat import ChatLayout
from glm52_tbench2.rollout.protocol import COMPLETE, NO_OUTPUT
from glm52_tbench2.tasks.sets import load_set
from glm52_tbench2.tasks.suite import load_suite

from .demos import (
    OPENERS,
    PROSE,
    Behaviour,
    Recording,
    demonstrate,
    draw,
    encode,
    fresh_instances,
    record,
)
from .measure import Episode, by_family, play, summary
from .tokenizer import corpus, train_tokenizer
from .train import Encoded, Lesson, Schedule, new_model, save, train

_SANDBOXES = 4
"""Tasks recorded side by side."""
_EPISODES = 64
"""Episodes measured side by side."""


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 2 for what the user can mend."""
    args = _arguments(argv)
    try:
        build(args, compose(["experiment=smoke"]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def build(args: argparse.Namespace, run: RunConfig) -> None:
    """Tokenizer, recordings, training, files and figures, in this order. Raises UserError."""
    out = args.out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Nothing can be written to --out {out}: {error.strerror}.") from error
    torch.set_num_threads(args.threads)
    # Denormals slow a small model's late training several times over.
    torch.set_flush_denormal(True)
    phrases = [run.rollout.system_prompt, COMPLETE, NO_OUTPUT, "```bash", *OPENERS, *PROSE]
    tokenizer = train_tokenizer(corpus(args.seed, phrases), run.model.vocab_size)
    if len(tokenizer) > run.model.vocab_size:
        raise UserError(f"model.vocab_size is {run.model.vocab_size}; write {len(tokenizer)}.")
    recordings = recorded(args, run)
    model = new_model(run.model, tokenizer, args.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    rng = Random(f"{args.seed}/training")
    # The right way first: it takes longest to learn, and the others are built on it.
    lessons = [
        Lesson(encoded(recordings, chooser, tokenizer, run.rollout, rng), steps)
        for chooser, steps in ((_good, args.good_steps), (draw, args.mixed_steps))
    ]
    progress = _Progress("step", args.good_steps + args.mixed_steps)
    train(model, lessons, Schedule(), rng, progress)
    save(model, tokenizer, out)
    print(f"{out} holds them; train from there with model.path={shlex.quote(str(out))}")
    if args.samples:
        measure(out, run, args.samples, args.seed)


def recorded(args: argparse.Namespace, run: RunConfig) -> list[Recording]:
    """The first `args.instances` recordings of the seed, kept in `args.recordings` if given."""
    kept = []
    if args.recordings and args.recordings.exists():
        lines = args.recordings.read_text().splitlines()
        kept = [Recording.from_json(line) for line in lines[: args.instances]]
    instances = fresh_instances(Random(f"{args.seed}/instances"))
    todo = islice(instances, len(kept), args.instances)
    progress = _Progress("recording", args.instances)
    for recording in record(todo, run.sandbox, run.rollout, _SANDBOXES):
        kept.append(recording)
        if args.recordings:
            with args.recordings.open("a") as file:
                file.write(recording.to_json() + "\n")
        progress(len(kept))
    return kept


def _good(_: Random) -> tuple[str, Behaviour]:
    return next(iter(OPENERS)), Behaviour.good


def encoded(
    recordings: list[Recording],
    choose: Callable[[Random], tuple[str, Behaviour]],
    tokenizer: PreTrainedTokenizerFast,
    rollout: RolloutConfig,
    rng: Random,
) -> Iterator[Encoded]:
    """Conversations without end; each pass over the recordings chooses behaviours anew."""
    chat = ChatLayout(tokenizer)
    order = list(recordings)
    while True:
        rng.shuffle(order)
        for recording in order:
            demo = demonstrate(recording, *choose(rng), rng)
            yield encode(demo, tokenizer, chat, rollout)


def measure(folder: Path, run: RunConfig, samples: int, seed: int) -> None:
    """Prints the mix of behaviours of the model in `folder` on the train and held-out sets."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chat = ChatLayout.load(folder)
    suite = load_suite(resolve(run.data.tasks_dir))
    torch.manual_seed(seed)
    for name in (run.data.train, run.data.eval):
        wanted = [suite[task_id] for task_id in load_set(name).ids for _ in range(samples)]
        episodes: list[Episode] = []
        for start in range(0, len(wanted), _EPISODES):
            batch = wanted[start : start + _EPISODES]
            episodes += play(model, chat, batch, run.rollout, run.sandbox)
        print(f"{name} at temperature {run.rollout.temperature}")
        for figures in (summary(episodes), by_family(episodes)):
            print("  " + "  ".join(f"{key} {value:.2f}" for key, value in figures.items()))


class _Progress:
    """A line a few seconds apart."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._start = self._last = time.monotonic()
        self._losses: list[float] = []

    def __call__(self, done: int, loss: float | None = None) -> None:
        if loss is not None:
            self._losses.append(loss)
        now = time.monotonic()
        if now - self._last < 10 and done < self._total:
            return
        self._last = now
        mean = f"  loss {sum(self._losses) / len(self._losses):.3f}" if self._losses else ""
        self._losses.clear()
        elapsed = now - self._start
        print(f"{self._what} {done}/{self._total}{mean}  {elapsed:.0f} s", flush=True)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="glm52 warm-start", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights and tokenizer")
    parser.add_argument("--seed", type=int, default=1, help="of tasks, weights and sampling")
    parser.add_argument("--instances", type=int, default=8000, help="tasks to demonstrate on")
    parser.add_argument("--good-steps", type=int, default=1600, help="steps on right solutions")
    parser.add_argument("--mixed-steps", type=int, default=1000, help="steps on all behaviours")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--samples", type=int, default=4, help="episodes a task measured; 0: none")
    parser.add_argument("--recordings", type=Path, help="file that keeps what sandboxes answered")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
