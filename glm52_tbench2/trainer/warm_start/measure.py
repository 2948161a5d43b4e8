"""How the trained model does: episodes on committed tasks, in the real sandbox.

A plain sampler on transformers stands for the engine here: it needs no server, and what it measures
is the mix of behaviours, not the run's numbers.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import torch
from transformers import Glm4MoeLiteForCausalLM

from glm52_tbench2.config.schema import RolloutConfig, SandboxConfig
from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.rollout.chat import ChatLayout
from glm52_tbench2.rollout.outcome import OUTCOMES, EndReason
from glm52_tbench2.rollout.protocol import command_of, is_complete, observation_of
from glm52_tbench2.tasks.suite import Task

from .demos import OPENERS


@dataclass
class Episode:
    task: Task
    ids: list[int]
    end: EndReason | None = None
    reward: float = 0.0
    turns: list[str] = field(default_factory=list)

    @property
    def opener(self) -> str:
        """The word its first turn opened with; "other" for none that was taught."""
        first = self.turns[0] if self.turns else ""
        return next((opener for opener in OPENERS if first.startswith(opener)), "other")


@torch.no_grad()
def generate(
    model: Glm4MoeLiteForCausalLM,
    prompts: list[list[int]],
    stop_token_ids: list[int],
    temperature: float,
    max_new_tokens: int,
) -> list[list[int]]:
    """Samples a turn for each prompt; a turn keeps the token that ended it."""
    length = max(map(len, prompts))
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt)
        mask[row, length - len(prompt) :] = 1
    sampled = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_new_tokens,
        eos_token_id=stop_token_ids,
    )
    turns = []
    for row in sampled[:, length:].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in stop_token_ids), len(row))
        turns.append(row[:end])
    return turns


def play(
    model: Glm4MoeLiteForCausalLM,
    chat: ChatLayout,
    tasks: Iterable[Task],
    rollout: RolloutConfig,
    sandbox: SandboxConfig,
) -> list[Episode]:
    """Plays one episode of each task, side by side, and takes the verdicts."""
    episodes = [Episode(t, chat.prompt(rollout.system_prompt, t.instruction)) for t in tasks]
    with ExitStack() as open_boxes:
        boxes = [
            open_boxes.enter_context(closing(LocalSandbox(episode.task, sandbox)))
            for episode in episodes
        ]
        for number in range(rollout.max_turns):
            going = [i for i, episode in enumerate(episodes) if episode.end is None]
            if not going:
                break
            said = generate(
                model,
                [episodes[i].ids for i in going],
                chat.stop_token_ids,
                rollout.temperature,
                rollout.max_turn_tokens,
            )
            for i, turn in zip(going, said, strict=True):
                _act(episodes[i], turn, boxes[i], chat, rollout, sandbox)
                if episodes[i].end is None and number + 1 == rollout.max_turns:
                    episodes[i].end = EndReason.max_turns
        for episode, box in zip(episodes, boxes, strict=True):
            episode.reward = box.verify().reward or 0.0
    return episodes


def _act(
    episode: Episode,
    turn: list[int],
    box: LocalSandbox,
    chat: ChatLayout,
    rollout: RolloutConfig,
    sandbox: SandboxConfig,
) -> None:
    """Does what a turn says, as the agent loop would."""
    text = chat.text(turn)
    episode.turns.append(text)
    if turn[-1] not in chat.stop_token_ids:
        episode.end = EndReason.length
        return
    command = command_of(text)
    if command is None:
        done = is_complete(text)
        episode.end = EndReason.task_complete if done else EndReason.no_command
        return
    result = box.exec(command, sandbox.command_timeout_s)
    shown = observation_of(
        result.output,
        rollout.observation_chars,
        sandbox.command_timeout_s if result.timed_out else None,
    )
    episode.ids += turn
    episode.ids += chat.observation(shown, turn[-1])
    if len(episode.ids) + rollout.max_turn_tokens > rollout.max_session_tokens:
        episode.end = EndReason.budget


def summary(episodes: list[Episode]) -> dict[str, float]:
    """Figures of the mix: reward, truncated share, and share and reward of each opener."""
    count = len(episodes)
    figures = {
        "episodes": float(count),
        "reward": sum(e.reward for e in episodes) / count,
        "truncated": sum(OUTCOMES[e.end].truncated for e in episodes if e.end) / count,
    }
    for end, number in sorted(Counter(str(e.end) for e in episodes).items()):
        figures[f"end/{end}"] = number / count
    figures |= _grouped(episodes, lambda e: e.opener, "opener", count)
    return figures


def by_family(episodes: list[Episode]) -> dict[str, float]:
    """Mean reward of each family's episodes that opened with the careful word."""
    careful = [e for e in episodes if e.opener == next(iter(OPENERS))]
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for episode in careful:
        rewards[episode.task.family].append(episode.reward)
    return {family: sum(found) / len(found) for family, found in sorted(rewards.items())}


def _grouped(
    episodes: list[Episode], key: Callable[[Episode], str], name: str, count: int
) -> dict[str, float]:
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        groups[key(episode)].append(episode.reward)
    figures = {}
    for group, rewards in sorted(groups.items()):
        figures[f"{name}/{group}/share"] = len(rewards) / count
        figures[f"{name}/{group}/reward"] = sum(rewards) / len(rewards)
    return figures
