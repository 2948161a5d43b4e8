"""What must hold between the knobs of one run."""

import math
from collections.abc import Mapping
from functools import cache
from urllib.parse import urlsplit

import yaml

from .paths import CONF
from .schema import (
    Advantage,
    Correction,
    Device,
    KlEstimator,
    Mode,
    ModelFamily,
    Overlong,
    PolicyLoss,
    RunConfig,
    SandboxConfig,
    SandboxProvider,
    Scheduler,
    SentinelAction,
    Sign,
    WeightTransport,
)

SET_HERE: dict[str, str | None] = {
    "model-path": "model.path",
    "host": "cluster.fabric",
    "weight-version": None,
    "device": "engine.device",
    "dtype": "engine.dtype",
    "quantization": "engine.dtype",
    "tp-size": "engine.gpus_per_engine",
    "tensor-parallel-size": "engine.gpus_per_engine",
    "nnodes": "engine.nodes and engine.num_engines",
    "node-rank": None,
    "dist-init-addr": None,
    "random-seed": "seed",
}
"""Arguments of an engine's server -> the knobs that decide them; None: the run does."""

KNOWN_FILTERS = ("check_no_aborted", "check_reward_nonzero_std")
MAY_BE_ZERO = {
    "seed",
    "clip.correction_low",
    "clip.dppo_delta",
    "clip.entropy_coef",
    "clip.eps_high",
    "clip.eps_low",
    "clip.kl_coef",
    "clip.mis.veto",
    "clip.overlong_buffer",
    "clip.overlong_factor",
    "cluster.driver_node",
    "cluster.gpus_per_node",
    "cluster.hardware.gpu_reserved_gb",
    "cluster.max_restarts",
    "cluster.slurm.max_requeues",
    "cluster.slurm.memory_gb",
    "cluster.threads_per_engine",
    "cluster.threads_per_trainer",
    "engine.gpus_per_engine",
    "eval.every",
    "model.index_head_dim",
    "model.index_heads",
    "model.index_topk",
    "model.num_dense_layers",
    "model.num_mtp_layers",
    "model.num_shared_experts",
    "optim.beta1",
    "optim.beta2",
    "optim.clip_grad",
    "optim.warmup_steps",
    "optim.grad_split_every",
    "optim.weight_decay",
    "rollout.lag",
    "rollout.max_staleness",
}
"""Numbers that have a meaning at 0; every other is above, and none is below."""
UNBOUNDED = {"clip.correction_high", "clip.dual_clip", "clip.eps_high"}
"""Upper bounds, which .inf takes off."""


def problems(config: RunConfig) -> list[str]:
    """Every contradiction, each one sentence that names the knobs and the mend; empty: none."""
    if found := numbers(config):  # the rest reckons with them
        return found
    return [
        *_rollout(config),
        *_clip(config),
        *_parallel(config),
        *_cluster(config),
        *_checkpoint(config),
        *sandbox_problems(config.sandbox),
        *_transport(config),
        *_endpoint(config),
        *_server_args(config),
        *_sentinel(config),
    ]


def notes(config: RunConfig) -> list[str]:
    """Knobs that were set and have no effect, each as one sentence."""
    found = _slots_unused(config)
    if config.optim.steps_per_batch > 1:
        return found
    clip, reference = config.clip, _reference_clip()
    set_knobs = [
        name
        for name in ("eps_low", "eps_high", "dual_clip")
        if getattr(clip, name) != reference[name]
    ]
    if clip.loss is not PolicyLoss.ppo:
        set_knobs.append(f"loss={clip.loss.name}")
    return found + [
        f"clip.{knob} has no effect: with optim.steps_per_batch=1 the policy ratio is 1, "
        "so only the correction against the rollout policy acts."
        for knob in set_knobs
    ]


@cache
def _reference_clip() -> Mapping[str, object]:
    return yaml.safe_load((CONF / "clip" / "reference.yaml").read_text())


def _slots_unused(config: RunConfig) -> list[str]:
    rollout = config.rollout
    if rollout.mode is Mode.sync or rollout.max_staleness is None:
        return []
    most = (rollout.max_staleness + 1) * rollout.prompts_per_step * rollout.samples_per_prompt
    if most >= rollout.max_concurrent_samples:
        return []
    return [
        f"rollout.max_concurrent_samples ({rollout.max_concurrent_samples}) is never reached: "
        f"rollout.max_staleness={rollout.max_staleness} lets at most {most} samples be started "
        "before the next weights."
    ]


def numbers(config: RunConfig) -> list[str]:
    """Numbers that have no meaning, each as one sentence."""
    from .compose import leaves  # which imports this module

    found = []
    for name, value in leaves(config).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isnan(value) or (math.isinf(value) and name not in UNBOUNDED):
            found.append(f"{name} is {value}; write a number.")
        elif value < 0 or (value == 0 and name not in MAY_BE_ZERO):
            least = "at least 0" if name in MAY_BE_ZERO else "above 0"
            found.append(f"{name} is {value}; it must be {least}.")
    for name in ("beta1", "beta2"):
        if (value := getattr(config.optim, name)) >= 1:
            found.append(f"optim.{name} is {value}; it must be below 1.")
    if config.seed >= 2**32:
        found.append(f"seed is {config.seed}; it must be below 2**32.")
    return found + _ports(config)


def _ports(config: RunConfig) -> list[str]:
    engine = config.engine
    port = engine.server_args.get("port")
    last = 2**16 - engine.num_engines
    if port is None or (type(port) is int and 0 < port <= last):
        return []
    return [
        f"engine.server_args.port is {port!r}; write a whole number from 1 to {last}, "
        "or leave it out for a free one."
    ]


def _rollout(config: RunConfig) -> list[str]:
    rollout = config.rollout
    found = []
    if config.trains and rollout.samples_per_prompt == 1:
        found.append(
            "rollout.samples_per_prompt is 1, so that no sample differs from its group and every "
            "advantage is 0; write at least 2."
        )
    if rollout.max_turn_tokens >= rollout.max_session_tokens:
        found.append(
            f"rollout.max_turn_tokens ({rollout.max_turn_tokens}) leaves no room for a prompt in "
            f"rollout.max_session_tokens ({rollout.max_session_tokens}); lower the first."
        )
    if rollout.max_session_tokens > config.model.max_position:
        found.append(
            f"rollout.max_session_tokens ({rollout.max_session_tokens}) is above "
            f"model.max_position ({config.model.max_position}); lower the first."
        )
    for name in rollout.filters:
        if name not in KNOWN_FILTERS:
            found.append(
                f"rollout.filters names '{name}'; write one of {', '.join(KNOWN_FILTERS)}."
            )
    if rollout.mode is Mode.sync and rollout.max_staleness is not None:
        found.append(
            "rollout.max_staleness has no meaning in rollout.mode=sync, where every batch is "
            "rollout.lag versions behind; set it to null."
        )
    if rollout.mode is Mode.fully_async and rollout.lag:
        found.append(
            f"rollout.lag is {rollout.lag}, but with rollout.mode=fully_async the ages of tokens "
            "depend on timing; write rollout.mode=sync, or rollout.max_staleness for a bound."
        )
    if rollout.prompts_per_step % rollout.groups_per_draw:
        found.append(
            f"rollout.groups_per_draw ({rollout.groups_per_draw}) does not divide "
            f"rollout.prompts_per_step ({rollout.prompts_per_step}); change one of them."
        )
    if rollout.max_concurrent_samples > config.sandbox.max_concurrent:
        found.append(
            f"rollout.max_concurrent_samples ({rollout.max_concurrent_samples}) needs as many "
            f"sandboxes; raise sandbox.max_concurrent ({config.sandbox.max_concurrent})."
        )
    return found


def _clip(config: RunConfig) -> list[str]:
    clip = config.clip
    found = []
    if clip.kl_coef != 0:
        found.append("clip.kl_coef must be 0: no reference model is held to take a KL to.")
    if clip.kl_estimator is not KlEstimator.low_var_kl:
        found.append(
            "clip.kl_estimator must be low_var_kl: train_rollout_kl would not compare otherwise."
        )
    if clip.correction_low > clip.correction_high:
        found.append(
            f"clip.correction_low ({clip.correction_low}) is above clip.correction_high "
            f"({clip.correction_high}); swap them."
        )
    if clip.dual_clip is not None and clip.dual_clip <= 1:
        found.append(
            f"clip.dual_clip is {clip.dual_clip}, which takes the gradient from tokens of A < 0 "
            "that have not moved; write a number above 1, or null for none."
        )
    if clip.advantage is Advantage.max_rl and clip.overlong is Overlong.penalty:
        found.append(
            "clip.advantage=max_rl divides by the group's mean reward, which clip.overlong=penalty "
            "can bring to 0 and below; change one of them."
        )
    if clip.correction is Correction.dppo and clip.dppo_delta <= 0:
        found.append(f"clip.dppo_delta is {clip.dppo_delta}; it must be above 0.")
    if clip.overlong is Overlong.penalty and not (
        0 < clip.overlong_buffer <= config.rollout.max_session_tokens
    ):
        found.append(
            f"clip.overlong_buffer ({clip.overlong_buffer}) must lie between 1 and "
            f"rollout.max_session_tokens ({config.rollout.max_session_tokens})."
        )
    return found


def _parallel(config: RunConfig) -> list[str]:
    return [*_ranks(config), *_split_evenly(config), *_stages(config)]


def _ranks(config: RunConfig) -> list[str]:
    """What keeps the ranks from being cut into the groups asked for."""
    parallel = config.parallel
    found = []
    ranks = parallel.nodes * parallel.gpus_per_node
    expert_ranks = parallel.expert * parallel.expert_tensor * parallel.pipeline
    if ranks % expert_ranks:
        found.append(
            f"parallel: {ranks} ranks do not divide into expert x expert_tensor x pipeline = "
            f"{expert_ranks}; change one of them."
        )
    model_ranks = parallel.tensor * parallel.context * parallel.pipeline
    if ranks % model_ranks:
        return [
            f"parallel: {ranks} ranks (nodes x gpus_per_node) do not divide into tensor x context "
            f"x pipeline = {model_ranks}; change one of them.",
            *found,
        ]
    data = ranks // model_ranks
    batch = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    if batch % (data * config.optim.steps_per_batch):
        found.append(
            f"rollout: a batch of {batch} samples (prompts_per_step x samples_per_prompt) does not "
            f"divide by {data} data-parallel ranks x {config.optim.steps_per_batch} "
            "optim.steps_per_batch; change one of them."
        )
    return found


def _split_evenly(config: RunConfig) -> list[str]:
    """What of the model a layout cannot cut into equal parts."""
    parallel, model = config.parallel, config.model
    found = []
    for knob, parts, names in (
        ("expert", parallel.expert, ("num_experts",)),
        ("tensor", parallel.tensor, ("num_heads", "vocab_size", "dense_ffn_size")),
        ("expert_tensor", parallel.expert_tensor, ("expert_ffn_size",)),
    ):
        found += [
            f"parallel.{knob} ({parts}) does not divide model.{name} ({getattr(model, name)}); "
            f"write a parallel.{knob} that does."
            for name in names
            if getattr(model, name) % parts
        ]
    shared = model.num_shared_experts * model.expert_ffn_size
    if shared % parallel.tensor:
        found.append(
            f"parallel.tensor ({parallel.tensor}) does not divide the shared experts' width, "
            f"model.num_shared_experts x model.expert_ffn_size = {shared}; write a "
            "parallel.tensor that does."
        )
    return found


def stage_sizes(config: RunConfig) -> list[int]:
    """Layers of each pipeline stage, of a layout that :func:`problems` finds nothing wrong with."""
    parallel = config.parallel
    even = [config.model.num_layers // parallel.pipeline] * parallel.pipeline
    return list(parallel.pipeline_layers) or even


def _stages(config: RunConfig) -> list[str]:
    parallel, model = config.parallel, config.model
    if not parallel.pipeline_layers and model.num_layers % parallel.pipeline:
        return [
            f"parallel.pipeline ({parallel.pipeline}) does not divide model.num_layers "
            f"({model.num_layers}); list the layers of each stage in parallel.pipeline_layers."
        ]
    layers = stage_sizes(config)
    if len(layers) != parallel.pipeline or sum(layers) != model.num_layers or min(layers) < 1:
        return [
            f"parallel.pipeline_layers {layers} must hold {parallel.pipeline} numbers above 0 that "
            f"sum to model.num_layers ({model.num_layers})."
        ]
    if model.family is not ModelFamily.glm_moe_dsa:
        return []
    starts = [1 + sum(layers[:stage]) for stage in range(len(layers))]
    wrong = [start for start in starts if start not in model.index_layers]
    if not wrong:
        return []
    return [
        f"parallel.pipeline_layers {layers} starts a stage at layer {', '.join(map(str, wrong))}, "
        "which computes no indices of its own; start every stage at one of model.index_layers "
        f"{model.index_layers}."
    ]


def _checkpoint(config: RunConfig) -> list[str]:
    every, keep_every = config.checkpoint.every, config.checkpoint.keep_every
    if keep_every is None or keep_every % every == 0:
        return []
    return [
        f"checkpoint.keep_every is {keep_every}, but a checkpoint is written every {every} steps "
        "(checkpoint.every); write a multiple of that, or null."
    ]


def _cluster(config: RunConfig) -> list[str]:
    needed = max(config.parallel.nodes, 1)
    if config.cluster.gpus_per_node:
        needed += config.engine.nodes
    cluster, engine = config.cluster, config.engine
    found = []
    if cluster.nodes < needed:
        found.append(
            f"cluster.nodes is {cluster.nodes}, but parallel.nodes and engine.nodes need "
            f"{needed}; raise it."
        )
    if not 0 <= cluster.driver_node < cluster.nodes:
        found.append(
            f"cluster.driver_node is {cluster.driver_node}, but the nodes are 0 to "
            f"{cluster.nodes - 1}; write one of them."
        )
    if engine.num_engines % engine.nodes and engine.nodes % engine.num_engines:
        found.append(
            f"engine.num_engines ({engine.num_engines}) does not divide by engine.nodes "
            f"({engine.nodes}); change one of them."
        )
    elif engine.nodes_per_engine > 1:
        found += _spanning(config)
    if cluster.gpus_per_node:
        found += _gpus(config)
    if cluster.scheduler is Scheduler.slurm:
        found += _slurm(config)
    if config.sandbox.provider is SandboxProvider.docker and not cluster.fabric.startswith("127."):
        found.append(
            f"sandbox.provider=docker lets commands reach this machine's addresses, and on "
            f"cluster.fabric={cluster.fabric} the run's own servers listen, without a password; "
            "write cluster.fabric=127.0.0.1 on one machine, or sandbox=daytona."
        )
    return found


def _slurm(config: RunConfig) -> list[str]:
    """What a job would end for, after it has waited for its nodes."""
    cluster, slurm, found = config.cluster, config.cluster.slurm, []
    on_gpus = [
        knob
        for knob, device in (
            ("parallel.device", config.parallel.device),
            ("engine.device", config.engine.device),
        )
        if device is Device.cuda
    ]
    if on_gpus and not cluster.gpus_per_node:
        found.append(
            f"{' and '.join(on_gpus)} is cuda, but cluster.gpus_per_node is 0, so that the job "
            "asks for no GPU; write cluster.gpus_per_node=N."
        )
    if slurm.warning_s >= 60 * slurm.time_min:
        found.append(
            f"cluster.slurm.warning_s ({slurm.warning_s}) is no less than the job's time, "
            f"cluster.slurm.time_min={slurm.time_min} minutes, so that it would be warned and "
            "queued again before it trains; lower the first."
        )
    return found


def _spanning(config: RunConfig) -> list[str]:
    """What stands against engines over several nodes."""
    engine, nodes = config.engine, config.engine.nodes_per_engine
    spans = f"Each engine spans engine.nodes / engine.num_engines = {nodes} nodes"
    if engine.device is Device.cpu:
        if config.model.num_heads % nodes == 0:
            return []
        return [
            f"{spans}, which does not divide model.num_heads ({config.model.num_heads}); "
            "raise engine.num_engines."
        ]
    a_node = config.cluster.gpus_per_node
    if engine.gpus_per_engine == nodes * a_node:
        return []
    return [
        f"{spans} and takes all of their GPUs, but engine.gpus_per_engine is "
        f"{engine.gpus_per_engine} and cluster.gpus_per_node {a_node}; change one of them."
    ]


def sandbox_problems(sandbox: SandboxConfig) -> list[str]:
    """What of a sandbox's knobs contradicts its provider."""
    external, url = sandbox.provider is SandboxProvider.external, sandbox.url
    if url is None:
        if not external:
            return []
        return [
            "sandbox.provider=external needs the address of its server; "
            "write sandbox.url=http://HOST:PORT."
        ]
    if problem := _url_problem("sandbox.url", url, "write it as http://HOST:PORT"):
        return [problem]
    if not external:
        return [
            f"sandbox.url is {url}, but sandbox.provider={sandbox.provider.name} makes its own "
            "sandboxes; write sandbox=external, or leave sandbox.url out."
        ]
    return []


def _endpoint(config: RunConfig) -> list[str]:
    url = config.engine.url
    if url is None:
        return []
    instead = "put the key into the environment variable GLM52_ENDPOINT_KEY"
    problem = _url_problem("engine.url", url, instead)
    return [problem] if problem else []


def _server_args(config: RunConfig) -> list[str]:
    given = {name.replace("_", "-"): name for name in config.engine.server_args}
    return [
        f"engine.server_args.{name} is decided by {SET_HERE[flag] or 'the run'}; remove it."
        for flag, name in given.items()
        if flag in SET_HERE
    ]


def _url_problem(name: str, url: str, instead: str) -> str | None:
    """What is wrong with a URL, told without its secrets. `instead`: where a secret belongs."""
    # By its signs, since what is no URL has no parts and may hold a secret too.
    if any(sign in url for sign in "@?#"):
        return (
            f"{name} holds a user, a password, a query or a fragment, and would be written to the "
            f"run's files; {instead}."
        )
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError:  # which quotes a password with a slash
        return f"{name} is no URL; write it as http://HOST:PORT."
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{name} is {url}; write it as http://HOST:PORT."
    return None


def _sentinel(config: RunConfig) -> list[str]:
    found = []
    for sign, action in config.sentinel.actions.items():
        for word, known in ((sign, Sign), (action, SentinelAction)):
            if word not in known.__members__:
                found.append(
                    f"sentinel.actions holds {sign}: {action}, but '{word}' is none of "
                    f"{', '.join(known.__members__)}; write one of them."
                )
    return found


def _gpus(config: RunConfig) -> list[str]:
    """What does not fit on a node's accelerators."""
    cluster, engine, found = config.cluster, config.engine, []
    if config.parallel.gpus_per_node > cluster.gpus_per_node:
        found.append(
            f"parallel.gpus_per_node ({config.parallel.gpus_per_node}) is above "
            f"cluster.gpus_per_node ({cluster.gpus_per_node}); lower the first."
        )
    if engine.num_engines * engine.gpus_per_engine > engine.nodes * cluster.gpus_per_node:
        found.append(
            f"{engine.num_engines} engines of {engine.gpus_per_engine} GPUs "
            "(engine.num_engines, engine.gpus_per_engine) do not fit on engine.nodes x "
            f"cluster.gpus_per_node = {engine.nodes} x {cluster.gpus_per_node}; raise engine.nodes."
        )
    return found


def _transport(config: RunConfig) -> list[str]:
    engine, parallel = config.engine, config.parallel
    if engine.transport is WeightTransport.disk:
        return []
    name, found = engine.transport.name, []
    if engine.device is not parallel.device:
        found.append(
            f"engine.transport={name} needs trainer and engines on one kind of device, but "
            f"engine.device is {engine.device.name} and parallel.device is {parallel.device.name}; "
            "write engine.transport=disk."
        )
    if engine.transport is WeightTransport.tensor and config.cluster.nodes > 1:
        found.append(
            "engine.transport=tensor hands over memory of one machine, but cluster.nodes is "
            f"{config.cluster.nodes}; write engine.transport=distributed."
        )
    return found
