"""What must hold between the knobs of one run."""

from .schema import Correction, KlEstimator, Mode, ModelFamily, Overlong, PolicyLoss, RunConfig

KNOWN_FILTERS = ("check_no_aborted", "check_reward_nonzero_std")


def problems(config: RunConfig) -> list[str]:
    """Every contradiction, each one sentence that names the knobs and the mend; empty: none."""
    return [
        *_positive(config),
        *_rollout(config),
        *_clip(config),
        *_parallel(config),
        *_cluster(config),
    ]


def notes(config: RunConfig, reference_clip: dict[str, object]) -> list[str]:
    """Knobs that were set and have no effect. `reference_clip`: conf/clip/reference.yaml."""
    if config.optim.steps_per_batch > 1:
        return []
    clip = config.clip
    set_knobs = [
        name
        for name in ("eps_low", "eps_high", "dual_clip")
        if getattr(clip, name) != reference_clip[name]
    ]
    if clip.loss is not PolicyLoss.ppo:
        set_knobs.append(f"loss={clip.loss.name}")
    return [
        f"clip.{knob} has no effect: with optim.steps_per_batch=1 the policy ratio is 1, "
        "so only the correction against the rollout policy acts."
        for knob in set_knobs
    ]


def _positive(config: RunConfig) -> list[str]:
    rollout, sandbox = config.rollout, config.sandbox
    values = {
        "steps": config.steps,
        "rollout.prompts_per_step": rollout.prompts_per_step,
        "rollout.samples_per_prompt": rollout.samples_per_prompt,
        "rollout.temperature": rollout.temperature,
        "rollout.max_turn_tokens": rollout.max_turn_tokens,
        "rollout.max_session_tokens": rollout.max_session_tokens,
        "rollout.max_turns": rollout.max_turns,
        "rollout.episode_timeout_s": rollout.episode_timeout_s,
        "rollout.observation_chars": rollout.observation_chars,
        "rollout.max_concurrent_samples": rollout.max_concurrent_samples,
        "sandbox.max_concurrent": sandbox.max_concurrent,
        "sandbox.command_timeout_s": sandbox.command_timeout_s,
        "optim.lr": config.optim.lr,
        "optim.steps_per_batch": config.optim.steps_per_batch,
        "eval.samples_per_task": config.eval.samples_per_task,
        "eval.temperature": config.eval.temperature,
        "checkpoint.every": config.checkpoint.every,
        "checkpoint.keep_last": config.checkpoint.keep_last,
        "parallel.max_tokens_per_rank": config.parallel.max_tokens_per_rank,
        "parallel.logprob_chunk": config.parallel.logprob_chunk,
        "engine.num_engines": config.engine.num_engines,
    }
    return [
        f"{name} is {value}; it must be above 0." for name, value in values.items() if value <= 0
    ]


def _rollout(config: RunConfig) -> list[str]:
    rollout = config.rollout
    found = []
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
    if rollout.mode is Mode.sync and rollout.max_staleness not in (None, 0):
        found.append(
            "rollout.max_staleness has no meaning in rollout.mode=sync, where nothing is stale; "
            "set it to null."
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
    parallel, model = config.parallel, config.model
    found = []
    ranks = parallel.nodes * parallel.gpus_per_node
    model_ranks = parallel.tensor * parallel.context * parallel.pipeline
    if ranks % model_ranks:
        return [
            f"parallel: {ranks} ranks (nodes x gpus_per_node) do not divide into tensor x context "
            f"x pipeline = {model_ranks}; change one of them."
        ]
    data = ranks // model_ranks
    batch = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    if batch % (data * config.optim.steps_per_batch):
        found.append(
            f"rollout: a batch of {batch} samples (prompts_per_step x samples_per_prompt) does not "
            f"divide by {data} data-parallel ranks x {config.optim.steps_per_batch} "
            "optim.steps_per_batch; change one of them."
        )
    expert_ranks = parallel.expert * parallel.expert_tensor * parallel.pipeline
    if ranks % expert_ranks:
        found.append(
            f"parallel: {ranks} ranks do not divide into expert x expert_tensor x pipeline = "
            f"{expert_ranks}; change one of them."
        )
    if model.num_experts % parallel.expert:
        found.append(
            f"parallel.expert ({parallel.expert}) does not divide model.num_experts "
            f"({model.num_experts})."
        )
    if model.num_heads % parallel.tensor:
        found.append(
            f"parallel.tensor ({parallel.tensor}) does not divide model.num_heads "
            f"({model.num_heads})."
        )
    found += _stages(config)
    return found


def _stages(config: RunConfig) -> list[str]:
    parallel, model = config.parallel, config.model
    layers = parallel.pipeline_layers
    if not layers:
        if model.num_layers % parallel.pipeline:
            return [
                f"parallel.pipeline ({parallel.pipeline}) does not divide model.num_layers "
                f"({model.num_layers}); list the layers of each stage in parallel.pipeline_layers."
            ]
        layers = [model.num_layers // parallel.pipeline] * parallel.pipeline
    if len(layers) != parallel.pipeline or sum(layers) != model.num_layers:
        return [
            f"parallel.pipeline_layers {layers} must hold {parallel.pipeline} numbers that sum to "
            f"model.num_layers ({model.num_layers})."
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


def _cluster(config: RunConfig) -> list[str]:
    needed = max(config.parallel.nodes, 1)
    if config.cluster.gpus_per_node:
        needed += config.engine.nodes
    if config.cluster.nodes < needed:
        return [
            f"cluster.nodes is {config.cluster.nodes}, but parallel.nodes and engine.nodes need "
            f"{needed}; raise it."
        ]
    return []
