"""What a change of each knob does to a comparison of two runs: one table, by prefix of its name.

A knob is judged by its longest prefix here. "Speed only" is a promise: results stay the same up to
rounding and, in rollout.mode=fully_async, up to the ages of tokens. Where a knob could do more, it
changes training.
"""

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """Classes of a difference, the gravest first."""

    measured = "changes what is measured"
    training = "changes training"
    speed = "changes speed only"
    cosmetic = "cosmetic"


@dataclass(frozen=True)
class Judgement:
    """The class of a knob."""

    effect: Effect
    why: str = ""
    """Of what is measured: what is no longer the same thing."""
    held_out: bool = True
    """Of what is measured: whether held-out evaluations are touched too."""


def _measured(why: str, held_out: bool = True) -> Judgement:
    return Judgement(Effect.measured, why, held_out)


_TRAINING = Judgement(Effect.training)
_SPEED = Judgement(Effect.speed)
_COSMETIC = Judgement(Effect.cosmetic)

LABEL = "name"
"""The one knob that is no difference: it only names the run folder."""

CLASSES: dict[str, Judgement] = {
    LABEL: _COSMETIC,
    "seed": _TRAINING,
    # A longer run passes through the same steps, but its outcome is that of more training.
    "steps": _TRAINING,
    "runs_dir": _COSMETIC,
    "model": _TRAINING,
    "model.name": _COSMETIC,
    "model.checkpoint": _SPEED,
    "data.suite": _measured("the tasks come from another suite"),
    "data.train": _measured("a step visits other tasks", held_out=False),
    "data.eval": _measured("other tasks are held out"),
    "data.tasks_dir": _measured("the tasks are read from elsewhere"),
    "rollout.prompts_per_step": _measured("a step holds another number of groups", held_out=False),
    "rollout.samples_per_prompt": _measured(
        "a group holds another number of samples", held_out=False
    ),
    "rollout.groups_per_draw": _measured("a step visits other tasks", held_out=False),
    "rollout.temperature": _measured("samples are drawn at another temperature", held_out=False),
    "rollout.max_turn_tokens": _measured("a turn is cut at another length"),
    "rollout.max_session_tokens": _measured("an episode is cut at another length"),
    "rollout.max_turns": _measured("an episode has another number of turns"),
    "rollout.episode_timeout_s": _measured("an episode has another time limit"),
    "rollout.observation_chars": _measured("outputs are cut at another length"),
    "rollout.system_prompt": _measured("the policy is told something else"),
    "rollout.filters": _measured("other groups are left out of a batch", held_out=False),
    "rollout.max_concurrent_samples": _SPEED,
    "rollout.mode": _TRAINING,
    "rollout.pause_mode": _TRAINING,
    "rollout.max_staleness": _TRAINING,
    "rollout.lag": _TRAINING,
    "rollout.batch_order": _TRAINING,
    "rollout.max_waiting_batches": _TRAINING,
    "clip": _TRAINING,
    "clip.kl_estimator": _measured("train_rollout_kl is estimated in another way", held_out=False),
    "parallel": _SPEED,
    "engine.url": _measured("another endpoint answers"),
    "engine.api": _measured("the endpoint is asked in another way"),
    "engine.model": _measured("another model of the endpoint answers"),
    "engine.device": _SPEED,
    "engine.nodes": _SPEED,
    "engine.num_engines": _SPEED,
    "engine.gpus_per_engine": _SPEED,
    "engine.dtype": _TRAINING,
    "engine.transport": _SPEED,
    "engine.bucket_bytes": _SPEED,
    "engine.weights_dir": _COSMETIC,
    "engine.request_timeout_s": _SPEED,
    "engine.server_env": _TRAINING,
    # An argument that is not named below may change the engine's numerics, as a cache's type does.
    "engine.server_args": _TRAINING,
    "engine.server_args.max-running-requests": _SPEED,
    "engine.server_args.chunked-prefill-size": _SPEED,
    "engine.server_args.page-size": _SPEED,
    "engine.server_args.cuda-graph-max-bs-decode": _SPEED,
    "engine.server_args.watchdog-timeout": _SPEED,
    "engine.server_args.sleep-on-idle": _SPEED,
    "engine.server_args.skip-server-warmup": _SPEED,
    "engine.server_args.log-level-http": _COSMETIC,
    "sandbox.provider": _measured("commands run in another kind of sandbox"),
    "sandbox.url": _measured("commands run on another server's machines"),
    "sandbox.api_key_file": _COSMETIC,
    "sandbox.max_concurrent": _SPEED,
    "sandbox.max_starting": _SPEED,
    "sandbox.start_timeout_s": _SPEED,
    "sandbox.auto_stop_min": _SPEED,
    "sandbox.command_timeout_s": _measured("a command has another time limit"),
    "sandbox.verifier_timeout_s": _measured("a verification has another time limit"),
    "sandbox.memory_mb": _measured("a sandbox has another limit of memory"),
    "sandbox.disk_mb": _measured("a sandbox has another limit of disk"),
    "sandbox.max_processes": _measured("a sandbox has another limit of processes"),
    "sandbox.output_bytes": _measured("outputs are cut at another length"),
    "cluster": _SPEED,
    "cluster.driver_node": _COSMETIC,
    "cluster.fabric": _COSMETIC,
    "cluster.slurm": _COSMETIC,
    "cluster.slurm.container_image": _TRAINING,
    "cluster.slurm.setup": _TRAINING,
    "cluster.deadlines": _COSMETIC,
    "cluster.max_restarts": _COSMETIC,
    "cluster.hardware": _COSMETIC,
    "optim": _TRAINING,
    "optim.grad_split_every": _SPEED,
    "optim.state_on_disk": _SPEED,
    "optim.state_dir": _COSMETIC,
    "optim.state_bucket_bytes": _SPEED,
    # Evaluations further apart are points of the same curve.
    "eval.every": _SPEED,
    "eval.samples_per_task": _measured("an evaluation takes another number of samples"),
    "eval.temperature": _measured("an evaluation samples at another temperature"),
    "checkpoint": _SPEED,
    "checkpoint.keep_last": _COSMETIC,
    "checkpoint.keep_every": _COSMETIC,
    # Masked samples, a pause or an early end change what is trained; a note does not.
    "sentinel": _TRAINING,
    "tracking": _COSMETIC,
}
"""Prefix of knob names -> judgement; the longest that fits decides."""


def judge(knob: str) -> Judgement:
    """The class of a dotted knob, or of a key of one that holds keys (engine.server_args.KEY).

    A knob that this version does not have, as in a run of another, changes training.
    """
    return CLASSES.get(deciding_prefix(knob), _TRAINING)


def effect(knob: str) -> Effect:
    """What a change of `knob` does to a comparison."""
    return judge(knob).effect


def deciding_prefix(knob: str) -> str:
    """The key of CLASSES that decides on `knob`; "" if there is none."""
    while knob and knob not in CLASSES:
        knob = knob.rpartition(".")[0]
    return knob
