"""Every knob of a run: its type, and one line on what it does.

The values live in conf/; this file holds none, so each default has one home.
Doc lines are read by `glm52 diff` and `glm52 knobs` through :mod:`glm52_tbench2.config.docs`.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from omegaconf import MISSING

NEAR_CAP = 0.9
"""A turn of at least this share of rollout.max_turn_tokens is a giant one."""


class ModelFamily(Enum):
    glm_moe_dsa = "glm_moe_dsa"
    glm4_moe_lite = "glm4_moe_lite"


class DType(Enum):
    float32 = "float32"
    bfloat16 = "bfloat16"


class EngineDType(StrEnum):
    """The finest first."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    fp8 = "fp8"
    fp8_rounded = "fp8_rounded"


class Mode(Enum):
    sync = "sync"
    fully_async = "fully_async"


class PauseMode(Enum):
    in_place = "in_place"
    retract = "retract"


class BatchOrder(Enum):
    first_finished = "first_finished"
    in_order = "in_order"


class Advantage(Enum):
    grpo = "grpo"
    dr_grpo = "dr_grpo"
    rloo = "rloo"
    max_rl = "max_rl"


class PolicyLoss(Enum):
    ppo = "ppo"
    gspo = "gspo"
    cispo = "cispo"


class Correction(Enum):
    none = "none"
    tis = "tis"
    icepop = "icepop"
    mis = "mis"
    dppo = "dppo"


class MisLevel(Enum):
    token = "token"
    sequence = "sequence"
    geometric = "geometric"


class MisMode(Enum):
    truncate = "truncate"
    clip = "clip"
    mask = "mask"


class Reduction(Enum):
    sample_mean = "sample_mean"
    token_mean = "token_mean"
    token_sum_const = "token_sum_const"


class Overlong(Enum):
    keep = "keep"
    mask = "mask"
    penalty = "penalty"


class Capped(Enum):
    keep = "keep"
    mask_negative = "mask_negative"
    mask_positive = "mask_positive"


class KlEstimator(Enum):
    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    low_var_kl = "low_var_kl"


class Recompute(Enum):
    none = "none"
    full = "full"


class Device(Enum):
    cuda = "cuda"
    cpu = "cpu"


class WeightTransport(Enum):
    disk = "disk"
    tensor = "tensor"
    distributed = "distributed"


class Api(Enum):
    sglang = "sglang"
    openai = "openai"


class SandboxProvider(Enum):
    local = "local"
    docker = "docker"
    daytona = "daytona"
    external = "external"


class Scheduler(Enum):
    local = "local"
    slurm = "slurm"


class Sign(Enum):
    mismatch_growth = "mismatch_growth"
    capped_burst = "capped_burst"
    negative_truncated = "negative_truncated"
    sign_persistent = "sign_persistent"
    repetition = "repetition"
    visits = "visits"
    entropy = "entropy"
    length = "length"
    reward_collapse = "reward_collapse"
    zero_signal = "zero_signal"
    silent = "silent"
    held_out_churn = "held_out_churn"
    stalled = "stalled"


class SentinelAction(Enum):
    ignore = "ignore"
    note = "note"
    checkpoint = "checkpoint"
    mask = "mask"
    pause = "pause"
    stop = "stop"


class WandbMode(Enum):
    online = "online"
    offline = "offline"
    disabled = "disabled"


@dataclass
class ModelConfig:
    name: str = MISSING
    """Name shown in reports."""
    family: ModelFamily = MISSING
    """Architecture by transformers' name: glm_moe_dsa (GLM-5.2), glm4_moe_lite (GLM-4.7-Flash)."""
    path: str = MISSING
    """Folder with the starting weights (HF safetensors), config.json and the tokenizer."""
    checkpoint: str | None = MISSING
    """What glm52 weights import made of that folder, for the trainer to start from; or null."""
    dtype: DType = MISSING
    """Precision of the trainer's forward and backward pass."""
    num_layers: int = MISSING
    """Transformer layers, without the multi-token-prediction layer."""
    num_dense_layers: int = MISSING
    """Leading layers with a dense FFN; the rest are mixture-of-experts."""
    hidden_size: int = MISSING
    """Width of the residual stream."""
    dense_ffn_size: int = MISSING
    """FFN width of a dense layer."""
    num_heads: int = MISSING
    """Attention heads."""
    q_lora_rank: int = MISSING
    """Rank of the compressed query of multi-head latent attention."""
    kv_lora_rank: int = MISSING
    """Rank of the compressed key/value latent, which is what the KV cache holds."""
    qk_nope_head_dim: int = MISSING
    """Query/key size a head without rotary embedding."""
    qk_rope_head_dim: int = MISSING
    """Query/key size a head with rotary embedding, shared by all heads on the key side."""
    v_head_dim: int = MISSING
    """Value size a head."""
    num_experts: int = MISSING
    """Routed experts of a mixture layer."""
    experts_per_token: int = MISSING
    """Routed experts each token visits."""
    num_shared_experts: int = MISSING
    """Experts every token visits."""
    expert_ffn_size: int = MISSING
    """FFN width of one expert."""
    router_scaling: float = MISSING
    """Factor on the routed experts' summed output."""
    vocab_size: int = MISSING
    """Rows of the embedding and of the output layer."""
    norm_eps: float = MISSING
    """Epsilon of RMSNorm."""
    rope_base: float = MISSING
    """Base of the rotary embedding."""
    max_position: int = MISSING
    """Longest sequence the model is configured for, tokens."""
    index_heads: int = MISSING
    """Heads of the sparse-attention indexer; 0: dense attention."""
    index_head_dim: int = MISSING
    """Size of an indexer head."""
    index_topk: int = MISSING
    """Keys the indexer keeps for each query."""
    index_layers: list[int] = MISSING
    """1-based layers that compute their own indices; the others reuse the last computed."""
    num_mtp_layers: int = MISSING
    """Multi-token-prediction layers, used by speculative decoding only."""


@dataclass
class DataConfig:
    suite: str = MISSING
    """Task suite: tbench2 or mini."""
    train: str = MISSING
    """Task set trained on: a manifest under data/, as SUITE/SET."""
    eval: str = MISSING
    """Task set held out: a manifest under data/, disjoint from the train set."""
    tasks_dir: str = MISSING
    """Folder with one sub-folder a task, in Terminal-Bench-2's layout."""


@dataclass
class RolloutConfig:
    prompts_per_step: int = MISSING
    """Task groups in one training batch."""
    samples_per_prompt: int = MISSING
    """Episodes of one group."""
    groups_per_draw: int = MISSING
    """Groups in a row that a drawn task gets; prompts_per_step in sync: a step trains one task."""
    temperature: float = MISSING
    """Sampling temperature; log-probs are taken at the same temperature."""
    max_turn_tokens: int = MISSING
    """Most tokens generated in one turn; a turn that reaches it ends the episode (`length`)."""
    max_session_tokens: int = MISSING
    """Most tokens in one episode, prompt and observations included (`budget`)."""
    max_turns: int = MISSING
    """Most turns in one episode (`max_turns`)."""
    episode_timeout_s: float = MISSING
    """Wall clock of one episode, seconds (`timeout`, reward 0)."""
    observation_chars: int = MISSING
    """A command's output is cut to this many characters before the policy sees it."""
    system_prompt: str = MISSING
    """System turn of every episode."""
    max_concurrent_samples: int = MISSING
    """Episodes in flight; a slot is freed when its sample ends."""
    mode: Mode = MISSING
    """sync: generate, then train, in turn; fully_async: generate while training."""
    pause_mode: PauseMode = MISSING
    """Running requests at a weight update: in_place keeps their KV cache, retract drops it."""
    max_staleness: int | None = MISSING
    """Most weight versions a token may be behind when it is trained (fully_async); null: any."""
    lag: int = MISSING
    """sync: weight versions that each batch is behind when it is trained, but at the start."""
    batch_order: BatchOrder = MISSING
    """fully_async: a batch takes the first groups that finish, or in the order they were drawn."""
    max_waiting_batches: int = MISSING
    """fully_async: batches that may wait for the trainer; then no more groups start."""
    filters: list[str] = MISSING
    """Group filters in order: check_no_aborted, check_reward_nonzero_std."""


@dataclass
class MisConfig:
    level: MisLevel = MISSING
    """Ratio taken a token, a whole sequence, or as a sequence's geometric mean."""
    mode: MisMode = MISSING
    """truncate: cap from above; clip: clamp both sides; mask: zero outside the bounds."""
    veto: float = MISSING
    """Drop a sequence that holds a token with a ratio below this."""


@dataclass
class ClipConfig:
    advantage: Advantage = MISSING
    """How a group's rewards become advantages."""
    std_normalise: bool = MISSING
    """Divide grpo advantages by the group's unbiased standard deviation."""
    loss: PolicyLoss = MISSING
    """Policy loss."""
    eps_low: float = MISSING
    """Lower clip of the policy ratio, 1 - eps_low; inert with one optimizer step a batch."""
    eps_high: float = MISSING
    """Upper clip of the policy ratio, 1 + eps_high; inert with one optimizer step a batch."""
    dual_clip: float | None = MISSING
    """Bound on the loss of negative-advantage tokens, in units of -A; null: off."""
    correction: Correction = MISSING
    """Correction of the trainer/rollout ratio rho."""
    correction_low: float = MISSING
    """Lower bound on rho for tis (a clamp), icepop, mis and dppo."""
    correction_high: float = MISSING
    """Upper bound on rho for tis (a clamp), icepop, mis and dppo."""
    mis: MisConfig = MISSING
    """Masked importance sampling, read when correction is mis."""
    dppo_delta: float = MISSING
    """Largest change in probability dppo keeps."""
    reduction: Reduction = MISSING
    """How token losses become one number."""
    overlong: Overlong = MISSING
    """Truncated samples: kept, masked from the loss, or penalised in reward."""
    capped: Capped = MISSING
    """Turns near the per-turn cap: kept, or masked from the loss where A < 0, or where A > 0."""
    overlong_buffer: int = MISSING
    """penalty: tokens before the session budget over which the penalty grows."""
    overlong_factor: float = MISSING
    """penalty: reward lost at the session budget."""
    kl_coef: float = MISSING
    """Weight of the KL to the starting model; must be 0 (no reference model is held)."""
    entropy_coef: float = MISSING
    """Weight of the entropy bonus."""
    kl_estimator: KlEstimator = MISSING
    """Estimator behind train_rollout_kl."""


@dataclass
class ParallelConfig:
    nodes: int = MISSING
    """Nodes that train."""
    gpus_per_node: int = MISSING
    """Trainer ranks a node."""
    tensor: int = MISSING
    """Tensor-parallel size (TP)."""
    context: int = MISSING
    """Context-parallel size (CP): ranks that share each sequence, all-gather of keys and values."""
    pipeline: int = MISSING
    """Pipeline stages (PP)."""
    pipeline_layers: list[int] = MISSING
    """Layers of each pipeline stage; empty: split evenly."""
    expert: int = MISSING
    """Expert-parallel size (EP)."""
    expert_tensor: int = MISSING
    """Tensor-parallel size inside an expert."""
    sequence_parallel: bool = MISSING
    """Shard norms and dropout along the sequence inside a TP group."""
    recompute: Recompute = MISSING
    """Activations recomputed in the backward pass."""
    max_tokens_per_rank: int = MISSING
    """A rank's tokens of one micro-batch; a sample with more is a micro-batch of its own."""
    logprob_chunk: int = MISSING
    """Tokens whose logits exist at one time."""
    device: Device = MISSING
    """Where trainer ranks run."""


@dataclass
class EngineConfig:
    url: str | None = MISSING
    """Server of somebody else that generates, for an evaluation; null: engines are started."""
    api: Api = MISSING
    """What engine.url speaks: sglang (token ids, log-probs) or openai (chat completions, text)."""
    model: str | None = MISSING
    """api openai: the model asked for; null: the only one that engine.url serves."""
    device: Device = MISSING
    """Where engines run."""
    nodes: int = MISSING
    """Nodes that generate; with fewer engines than nodes, each engine spans several."""
    num_engines: int = MISSING
    """SGLang servers in all."""
    gpus_per_engine: int = MISSING
    """Accelerators one server spans, over all of its nodes; 0 on a CPU."""
    dtype: EngineDType = MISSING
    """Weights' precision; fp8_rounded: values of fp8 in float32."""
    transport: WeightTransport = MISSING
    """How new weights reach engines: disk, distributed (NCCL, gloo), tensor (shared memory)."""
    bucket_bytes: int = MISSING
    """Bytes of weights sent at one time (transports distributed and tensor)."""
    weights_dir: str = MISSING
    """Folder for weights on their way to the engines (transport disk)."""
    server_args: dict[str, Any] = MISSING
    """SGLang server arguments, by their command-line names."""
    server_env: dict[str, str] = MISSING
    """Environment variables of the server process."""
    request_timeout_s: float = MISSING
    """Longest wait for one generation, seconds."""

    @property
    def nodes_per_engine(self) -> int:
        """Nodes one server spans."""
        return max(1, self.nodes // self.num_engines)

    @property
    def ranks_per_engine(self) -> int:
        """Processes that share one server's weights: one a GPU, on a CPU one a node."""
        return self.gpus_per_engine if self.device is Device.cuda else self.nodes_per_engine


@dataclass
class SandboxConfig:
    provider: SandboxProvider = MISSING
    """Where model-written commands run."""
    url: str | None = MISSING
    """external: address of a running OpenEnv tbench2 server, as http://HOST:PORT."""
    api_key_file: str | None = MISSING
    """daytona: file that holds the API key; null: the variable DAYTONA_API_KEY."""
    max_concurrent: int = MISSING
    """Sandboxes alive at one time."""
    max_starting: int = MISSING
    """docker, daytona: sandboxes being made at one time."""
    start_timeout_s: float = MISSING
    """Longest making of one sandbox, seconds: image build, queues and retries included."""
    auto_stop_min: int = MISSING
    """daytona: minutes without a sign of life from us after which a sandbox deletes itself."""
    command_timeout_s: float = MISSING
    """Longest single command, seconds; its whole process tree is then killed."""
    verifier_timeout_s: float | None = MISSING
    """Longest verification, seconds; null: the task's own limit."""
    memory_mb: int | None = MISSING
    """Memory of one sandbox (local: of each process), MiB; null: the task's own limit."""
    disk_mb: int | None = MISSING
    """Writable disk of one sandbox, MiB; null: the task's own limit. docker keeps neither."""
    max_processes: int = MISSING
    """Processes alive in one sandbox; daytona does not limit them."""
    output_bytes: int = MISSING
    """A command's output is cut to this many bytes before it leaves the sandbox."""


@dataclass
class DeadlinesConfig:
    env: float = MISSING
    """Seconds the environment server may take to be ready."""
    engine: float = MISSING
    """Seconds an engine may take to be ready."""
    driver: float = MISSING
    """Seconds the driver may take to be ready."""
    trainer: float = MISSING
    """Seconds the trainer may take to be ready."""


@dataclass
class SlurmConfig:
    partition: str | None = MISSING
    """Partition; null: the cluster's default."""
    account: str | None = MISSING
    """Account to charge; null: the user's default."""
    qos: str | None = MISSING
    """Quality of service."""
    reservation: str | None = MISSING
    """Reservation to run in."""
    constraint: str | None = MISSING
    """Features that the nodes must have."""
    time_min: int = MISSING
    """Time limit of one job, minutes; a run that needs more goes on in the next."""
    warning_s: int = MISSING
    """How long before its end a job is told, to write a checkpoint and be queued again, seconds."""
    max_requeues: int = MISSING
    """How often a job is queued again before it fails."""
    exclusive: bool = MISSING
    """Whether no other job may share the nodes."""
    cpus_per_node: int | None = MISSING
    """CPUs a node; null: what the partition gives."""
    memory_gb: float | None = MISSING
    """Memory a node, GiB; null: what the partition gives, 0: all of the node's."""
    comment: str | None = MISSING
    """Comment of the job."""
    extra: dict[str, Any] = MISSING
    """More sbatch options, as +cluster.slurm.extra.mail-type=END."""
    setup: list[str] = MISSING
    """Shell lines that the job runs before anything else."""
    python: str | None = MISSING
    """Python that the job runs, as /opt/env/bin/python; null: the one that queues it."""
    container_image: str | None = MISSING
    """Container image that the job runs in (srun --container-image)."""
    container_mounts: list[str] = MISSING
    """Mounts of that container, as /data:/data (srun --container-mounts)."""
    max_parallel: int = MISSING
    """Points of a sweep that run at one time."""
    wait: bool = MISSING
    """Whether to follow the job after submitting it."""


@dataclass
class HardwareConfig:
    """What `glm52 plan` and the checks before a run reckon with; null: unknown, so not reckoned."""

    gpu_memory_gb: float | None = MISSING
    """Memory of one GPU that a process can use, GB (1e9 bytes)."""
    gpu_reserved_gb: float = MISSING
    """Of that, what CUDA's context, communication buffers and the like take, GB."""
    gpu_bf16_tflops: float | None = MISSING
    """Peak of one GPU in dense bfloat16, 1e12 operations a second."""
    gpu_link_gb_s: float | None = MISSING
    """Bandwidth of one GPU to the others of its node, one direction, GB/s."""
    fabric_gb_s: float | None = MISSING
    """Bandwidth of one GPU to other nodes, one direction, GB/s."""
    disk_gb_s: float | None = MISSING
    """Bandwidth of a node's own disks together, reading or writing, GB/s."""
    disk_gb: float | None = MISSING
    """Room on a node's own disks, GB."""
    host_memory_gb: float | None = MISSING
    """Memory of a node beside its GPUs', GB; null with scheduler local: as this machine has."""


@dataclass
class ClusterConfig:
    scheduler: Scheduler = MISSING
    """local: this machine; slurm: through submitit."""
    nodes: int = MISSING
    """Nodes of the job: those that train and those that generate."""
    gpus_per_node: int = MISSING
    """Accelerators a node; 0 on a CPU."""
    driver_node: int = MISSING
    """Node, counted from 0, of the driver, the environment server and the tracker."""
    fabric: str = MISSING
    """Address prefix that servers listen on, as 10.0. ; 127. keeps everything on the loopback."""
    threads_per_trainer: int = MISSING
    """CPU threads a trainer rank; 0: what torch chooses."""
    threads_per_engine: int = MISSING
    """CPU threads an engine; 0: what torch chooses."""
    deadlines: DeadlinesConfig = MISSING
    """Readiness gates."""
    max_restarts: int = MISSING
    """Restarts of one role before the run fails."""
    hardware: HardwareConfig = MISSING
    """What a node is, as far as a plan reckons with it."""
    slurm: SlurmConfig = MISSING
    """The job, read when scheduler is slurm."""


@dataclass
class OptimConfig:
    lr: float = MISSING
    """Adam's learning rate, constant."""
    warmup_steps: int = MISSING
    """Steps over which the learning rate rises linearly from 0."""
    weight_decay: float = MISSING
    """Decoupled weight decay."""
    beta1: float = MISSING
    """Adam's first moment decay."""
    beta2: float = MISSING
    """Adam's second moment decay."""
    eps: float = MISSING
    """Adam's epsilon."""
    clip_grad: float = MISSING
    """Bound on the gradient norm; 0: off."""
    steps_per_batch: int = MISSING
    """Optimizer steps on one batch; 1 makes the policy ratio 1 and its clips inert."""
    grad_split_every: int = MISSING
    """Steps between splits of the gradient norm by the sign of A, a second pass each; 0: never."""
    state_on_disk: bool = MISSING
    """Keep the optimizer state in node-local files and stream it through memory."""
    state_dir: str = MISSING
    """Folder of those files, on a disk of each node: twice the state of its ranks in size."""
    state_bucket_bytes: int = MISSING
    """Bytes of state a rank updates at one time; three times as many are in its memory."""


@dataclass
class EvalConfig:
    every: int = MISSING
    """Steps between evaluations; also before the first step and after the last. 0: never."""
    samples_per_task: int = MISSING
    """Episodes of each held-out task."""
    temperature: float = MISSING
    """Sampling temperature of an evaluation."""


@dataclass
class CheckpointConfig:
    every: int = MISSING
    """Steps between checkpoints; one is also written after the last step."""
    keep_last: int = MISSING
    """Newest complete checkpoints kept; older ones are deleted."""
    keep_every: int | None = MISSING
    """Steps between checkpoints that are never deleted; null: there are none."""


@dataclass
class SentinelConfig:
    action: SentinelAction = MISSING
    """What an alarm does: ignore, note, checkpoint, mask (offending samples), pause or stop."""
    actions: dict[str, str] = MISSING
    """Sign -> what its alarm does instead, as +sentinel.actions.length=ignore."""
    min_steps: int = MISSING
    """Steps that tell what is usual, before anything is said to grow."""
    similarity: float = MISSING
    """Share of common shingles from which two giant turns are near-identical."""
    repeats: int = MISSING
    """repetition: steps in which near-identical giant turns come again."""
    persistence: int = MISSING
    """sign_persistent: visits of a task in a row that push its giant turns down."""
    visits: float = MISSING
    """visits: times each task has been trained, on average."""
    capped_drift: float = MISSING
    """capped_burst: mean |log p_trainer - log p_rollout| on turns near the cap."""
    truncated_share: float = MISSING
    """length: share of truncated samples."""


@dataclass
class TrackingConfig:
    wandb: WandbMode = MISSING
    """online, offline (a folder to sync later) or disabled."""
    project: str = MISSING
    """wandb project."""
    entity: str | None = MISSING
    """wandb entity; null: the account's default."""


@dataclass
class RunConfig:
    """One run, whole."""

    name: str = MISSING
    """Prefix of the run folder's name."""
    seed: int = MISSING
    """Seed of everything random: task order, sampling, the trainer."""
    steps: int = MISSING
    """Training steps."""
    runs_dir: str = MISSING
    """Folder in which run folders are made."""
    model: ModelConfig = MISSING
    """What is trained."""
    data: DataConfig = MISSING
    """On which tasks."""
    rollout: RolloutConfig = MISSING
    """How episodes are generated."""
    clip: ClipConfig = MISSING
    """How rewards become a loss."""
    parallel: ParallelConfig = MISSING
    """How the trainer is laid out."""
    engine: EngineConfig = MISSING
    """How tokens are generated."""
    sandbox: SandboxConfig = MISSING
    """Where commands run."""
    cluster: ClusterConfig = MISSING
    """On which machines."""
    optim: OptimConfig = MISSING
    """How weights are updated."""
    eval: EvalConfig = MISSING
    """How progress is measured."""
    checkpoint: CheckpointConfig = MISSING
    """What survives a kill."""
    sentinel: SentinelConfig = MISSING
    """What is done about a run that turns unhealthy."""
    tracking: TrackingConfig = MISSING
    """Where metrics go."""

    @property
    def trains(self) -> bool:
        """Whether it trains: an evaluation by itself is a run without steps."""
        return self.steps > 0
