"""A finished group: its penalties and advantages, and whether a batch takes it."""

import logging
from collections.abc import Sequence

from ..config.schema import Overlong, RunConfig
from . import filters
from .advantages import advantages, overlong_penalty
from .batch import Sample
from .outcome import has_verdict
from .player import MAX_ATTEMPTS, Player, RolloutError
from .stats import judged_tokens

MAX_DRAWS = 10
"""A step draws at most this many times the groups it needs."""

log = logging.getLogger(__name__)


class Judge:
    """Rates groups by a run's config and counts what it drops in the player's stats."""

    def __init__(self, config: RunConfig, player: Player) -> None:
        self._config, self._player = config, player
        self._filters = filters.named(config.rollout.filters)

    def rate(self, group: Sequence[Sample]) -> None:
        """Sets the penalty and the advantage of each sample of a whole group."""
        rollout, clip = self._config.rollout, self._config.clip
        if clip.overlong is Overlong.penalty:
            for sample in group:
                sample.penalty = overlong_penalty(
                    len(sample.tokens),
                    rollout.max_session_tokens,
                    clip.overlong_buffer,
                    clip.overlong_factor,
                )
        rewards = [s.reward + s.penalty for s in group]
        values = advantages(rewards, clip.advantage, clip.std_normalise)
        for sample, value in zip(group, values, strict=True):
            sample.advantage = float(value)

    def dropped_by(self, group: Sequence[Sample]) -> str | None:
        """The filter that drops the group, counted; None: a batch takes it.

        Raises RolloutError when a sample has no verdict and no filter says what to do then.
        """
        refused = filters.dropped_by(group, self._filters)
        lost = [s for s in group if not has_verdict(s.end_reason)]
        if refused is None and lost:
            raise RolloutError(
                f"sample {lost[0].sample_id} of task {lost[0].task_id} got no verdict in "
                f"{MAX_ATTEMPTS} attempts: {why(lost)}; check_no_aborted in rollout.filters would "
                "drop its group"
            )
        if refused is not None:
            self.drop(group, refused)
        return refused

    def drop(self, group: Sequence[Sample], cause: str) -> None:
        """Counts a group that no batch takes."""
        log.info("group %d (%s) dropped by %s", group[0].group, group[0].task_id, cause)
        self._player.stats["generate"][f"dropped/{cause}"] += 1
        self._player.waste("generate", cause, judged_tokens(group))
        self._player.progress.samples_total += len(group)

    def too_few(self, step: int, num_kept: int, num_drawn: int) -> RolloutError:
        """What to raise when filters leave too few groups of a step."""
        dropped = ", ".join(
            f"{name.removeprefix('dropped/')} dropped {count}"
            for name, count in sorted(self._player.stats["generate"].items())
            if name.startswith("dropped/")
        )
        return RolloutError(
            f"step {step} kept {num_kept} of {self._config.rollout.prompts_per_step} groups after "
            f"{num_drawn} draws ({dropped}); look at rollout.filters and at the rewards of the "
            "last steps"
        )


def why(samples: Sequence[Sample]) -> str:
    """How the last of some lost samples ended."""
    last = samples[-1]
    return f"{last.end_reason}, {last.error}"
