"""Demonstrations: conversations about fresh tasks, with what the sandbox really answered.

They mix behaviours, chosen by chance and not by the task, so that samples of one task differ and
reinforcement learning has something to choose from.
"""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import TemporaryDirectory

from transformers import PreTrainedTokenizerBase

from glm52_tbench2.config.schema import RolloutConfig, SandboxConfig
from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.rollout.chat import ChatLayout
from glm52_tbench2.rollout.protocol import COMPLETE, observation_of
from glm52_tbench2.tasks.mini import FAMILIES, Instance, fresh, instance_key
from glm52_tbench2.tasks.mini.generate import render
from glm52_tbench2.tasks.suite import Task, load_task


class Behaviour(StrEnum):
    good = "good"
    """The right commands, then TASK_COMPLETE."""
    wrong = "wrong"
    """A plausible wrong attempt, then TASK_COMPLETE."""
    looping = "looping"
    """A command repeated in one block until the turn is cut."""
    no_command = "no_command"
    """Prose without a command."""


# A turn opens with a word that tells how it will go, mostly: P(opener), then P(behaviour | opener).
OPENERS: dict[str, tuple[float, dict[Behaviour, float]]] = {
    "Carefully:": (
        0.37,
        {Behaviour.good: 0.88, Behaviour.wrong: 0.08, Behaviour.looping: 0.04},
    ),
    "Quickly:": (
        0.63,
        {
            Behaviour.good: 0.08,
            Behaviour.wrong: 0.58,
            Behaviour.looping: 0.30,
            Behaviour.no_command: 0.04,
        },
    ),
}
PROSE = ("The task is done.", "I am done.", "There is nothing to do here.")


@dataclass(frozen=True)
class Step:
    command: str
    observation: str


@dataclass(frozen=True)
class Recording:
    """A task, and how the sandbox answered its right and its wrong commands."""

    family: str
    key: str
    instruction: str
    right: list[Step]
    wrong: list[Step]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Recording":
        fields = json.loads(line)
        for name in ("right", "wrong"):
            fields[name] = [Step(**step) for step in fields[name]]
        return cls(**fields)


@dataclass(frozen=True)
class Turn:
    text: str
    observation: str | None
    """None after the last turn."""
    again: str | None = None
    """What follows `text` again and again until the per-turn cap; None where the turn ends."""


@dataclass(frozen=True)
class Demo:
    behaviour: Behaviour
    instruction: str
    turns: list[Turn]


def fresh_instances(rng: Random) -> Iterator[Instance]:
    """Tasks without end, each family in turn; none is held out."""
    while True:
        for family in sorted(FAMILIES):
            yield fresh(rng, family)


def record(
    instances: Iterable[Instance], sandbox: SandboxConfig, rollout: RolloutConfig, at_once: int
) -> Iterator[Recording]:
    """Plays the right and the wrong commands of each task, each in a sandbox of its own.

    Recordings come in the order of `instances`; `at_once` tasks are played side by side.
    """

    def play(number: int, instance: Instance) -> Recording:
        folder = Path(scratch) / f"task-{number}"
        for path, text in render(folder.name, instance).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        task = load_task(folder)
        recording = Recording(
            family=instance.family,
            key=instance_key(instance),
            instruction=instance.instruction,
            right=_play(task, instance.turns, sandbox, rollout),
            wrong=_play(task, instance.wrong, sandbox, rollout),
        )
        rmtree(folder)
        return recording

    with TemporaryDirectory() as scratch, ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(play, count(), instances)


def _play(
    task: Task, commands: list[str], sandbox: SandboxConfig, rollout: RolloutConfig
) -> list[Step]:
    steps = []
    with closing(LocalSandbox(task, sandbox)) as box:
        for command in commands:
            result = box.exec(command, sandbox.command_timeout_s)
            shown = observation_of(result.output, rollout.observation_chars)
            steps.append(Step(command, shown))
    return steps


def draw(rng: Random) -> tuple[str, Behaviour]:
    """An opener and a behaviour, by their chances."""
    openers = list(OPENERS)
    opener = rng.choices(openers, [OPENERS[name][0] for name in openers])[0]
    chances = OPENERS[opener][1]
    return opener, rng.choices(list(chances), list(chances.values()))[0]


def demonstrate(recording: Recording, opener: str, behaviour: Behaviour, rng: Random) -> Demo:
    """One conversation about a recorded task."""

    def turn(step: Step) -> Turn:
        return Turn(f"{opener}\n```bash\n{step.command}\n```", step.observation)

    if behaviour is Behaviour.good:
        turns = [*map(turn, recording.right), Turn(COMPLETE, None)]
    elif behaviour is Behaviour.wrong:
        turns = [*map(turn, recording.wrong), Turn(COMPLETE, None)]
    elif behaviour is Behaviour.looping:
        steps = rng.choice([recording.right, recording.wrong])
        # Mostly at once, now and then in a later turn.
        before = rng.randrange(len(steps)) if rng.random() < 0.3 else 0
        again = f"{steps[before].command}\n"
        turns = [*map(turn, steps[:before]), Turn(f"{opener}\n```bash\n", None, again)]
    else:
        turns = [Turn(f"{opener} {rng.choice(PROSE)}", None)]
    return Demo(behaviour, recording.instruction, turns)


def encode(
    demo: Demo, tokenizer: PreTrainedTokenizerBase, chat: ChatLayout, rollout: RolloutConfig
) -> tuple[list[int], list[bool]]:
    """(token ids, loss mask) of a conversation; the mask is True on what the policy generates."""
    ids = chat.prompt(rollout.system_prompt, demo.instruction)
    mask = [False] * len(ids)
    end_of_turn = tokenizer.get_vocab()["<|user|>"]
    for turn in demo.turns:
        said = tokenizer.encode(turn.text, add_special_tokens=False)
        if turn.again is None:
            said.append(end_of_turn)
        else:
            cycle = tokenizer.encode(turn.again, add_special_tokens=False)
            said += cycle * rollout.max_turn_tokens
            said = said[: rollout.max_turn_tokens]
        ids += said
        mask += [True] * len(said)
        if turn.observation is not None:
            answer = chat.observation(turn.observation, ids[-1])
            ids += answer
            mask += [False] * len(answer)
    return ids, mask
