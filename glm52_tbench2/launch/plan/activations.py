"""What a trainer rank holds between the forward and the backward pass, at its highest point.

Each term is a tensor that autograd saves, or that a backward pass makes; tests compare the sums
with what the trainer allocates. Experts are taken to be visited evenly.
"""

from dataclasses import dataclass

from ...config.checks import stage_sizes
from ...config.schema import Device, DType, Recompute, RunConfig

_FLOAT32 = 4


@dataclass(frozen=True)
class Activations:
    """The highest points of a rank, bytes."""

    saved: int
    """Kept for the backward pass of all micro-batches under way; under recomputation the inputs of
    layers."""
    layer: int
    """One layer's tensors and gradients, made anew for its backward pass, beside those saved."""
    logits: int
    """Logits and what is made of them, of one chunk, beside those saved; last stage only."""

    @property
    def peak(self) -> int:
        """Bytes at the highest point: layers are computed backward after the logits are gone."""
        return self.saved + max(self.layer, self.logits)


def element_bytes(config: RunConfig) -> int:
    """Bytes of a weight or an activation."""
    return 2 if config.model.dtype is DType.bfloat16 else _FLOAT32


def longest(config: RunConfig) -> int:
    """Most tokens of one micro-batch: a full one, or a session of its own."""
    parallel = config.parallel
    full = parallel.max_tokens_per_rank * parallel.context
    together = parallel.context * parallel.tensor
    tokens = max(full, config.rollout.max_session_tokens)
    return -(-tokens // together) * together


def activations(config: RunConfig, stage: int) -> Activations:
    """Of a rank of the pipeline stage `stage`, every micro-batch under way as long as can be."""
    sizes, shape = stage_sizes(config), _Shape(config)
    first = sum(sizes[:stage])
    layers = range(first, first + sizes[stage])
    # One forward, one backward: a stage has as many under way as stages follow, and its own.
    under_way = min(len(sizes) - stage, _samples(config))
    mixtures = [layer >= config.model.num_dense_layers for layer in layers]
    last = stage == len(sizes) - 1
    logits = shape.logits() if last else 0
    choosing = [layer for layer in layers if layer + 1 in config.model.index_layers]
    choices = under_way * len(choosing) * shape.choice()
    if config.parallel.recompute is Recompute.full:
        saved = under_way * len(layers) * shape.layer_input() + choices
        return Activations(saved, max(shape.backward(one) for one in set(mixtures)), logits)
    kept = [shape.attention() + shape.mlp(mixture) for mixture in mixtures]
    return Activations(
        under_way * sum(kept) + choices, shape.backward(mixtures[-1]) - kept[-1], logits
    )


def _samples(config: RunConfig) -> int:
    """Samples one data-parallel replica trains between two updates."""
    parallel, rollout = config.parallel, config.rollout
    replicas = (parallel.nodes * parallel.gpus_per_node) // (
        parallel.tensor * parallel.context * parallel.pipeline
    )
    batch = rollout.prompts_per_step * rollout.samples_per_prompt
    return max(1, batch // (replicas * config.optim.steps_per_batch))


class _Shape:
    """Bytes of one layer's tensors on one rank, for the longest micro-batch."""

    def __init__(self, config: RunConfig) -> None:
        self.model, self.parallel = config.model, config.parallel
        self.bytes = element_bytes(config)
        self.all_tokens, self.session = longest(config), config.rollout.max_session_tokens
        # Attention and dense layers see a context-parallel rank's tokens, the rest its share.
        self.tokens = self.all_tokens // config.parallel.context
        self.share = self.tokens // config.parallel.tensor
        self.heads = config.model.num_heads // config.parallel.tensor
        self.query = config.model.qk_nope_head_dim + config.model.qk_rope_head_dim

    def layer_input(self) -> int:
        return self.share * self.model.hidden_size * self.bytes

    def choice(self) -> int:
        """The keys that an indexer chose, int32."""
        return self.tokens * self.model.index_topk * 4

    def _norm(self, width: int) -> int:
        """A norm's input in float32, what it normalised, and its output."""
        return self.share * width * (_FLOAT32 + 2 * self.bytes)

    def attention(self) -> int:
        """Saved for the backward pass of a layer's attention."""
        model = self.model
        latents = self._norm(model.q_lora_rank) + self._norm(model.kv_lora_rank)
        rotary = 2 * self.tokens * model.qk_rope_head_dim * self.bytes
        output = self.tokens * self.heads * model.v_head_dim * self.bytes
        return self._norm(model.hidden_size) + latents + rotary + self._core() + output

    def _core(self) -> int:
        """Saved by scaled_dot_product_attention: on a CPU it works in float32 and keeps scores."""
        query = self.tokens * self.heads * self.query
        key = self.all_tokens * self.heads * self.query
        value = self.all_tokens * self.heads * self.model.v_head_dim
        if self.parallel.device is Device.cpu:
            return _FLOAT32 * (query + key + value) + self._scores()
        output = self.tokens * self.heads * self.model.v_head_dim
        normalisers = _FLOAT32 * self.tokens * self.heads
        # Keys that an indexer did not choose are masked.
        sparse = self.model.index_heads > 0 and self.all_tokens > self.model.index_topk
        mask = self._pairs() if sparse else 0
        return self.bytes * (query + key + value + output + mask) + normalisers

    def _scores(self) -> int:
        """Attention's probabilities, [heads, queries, keys], where they exist at all."""
        if self.parallel.device is not Device.cpu:
            return 0
        return _FLOAT32 * self.heads * self._pairs()

    def _pairs(self) -> int:
        """Queries of this rank times the keys they are held against."""
        context = self.parallel.context
        pairs = self.tokens * min(self.all_tokens, self.session)
        # Two blocks of a sequence under context parallelism, which end where their queries do.
        return pairs * (2 * context + 1) // (4 * context) if context > 1 else pairs

    def mlp(self, mixture: bool) -> int:
        """Saved for the backward pass of a layer's dense or expert FFN."""
        model, parallel = self.model, self.parallel
        norm = self._norm(model.hidden_size)
        if not mixture:
            return norm + self._dense(model.dense_ffn_size)
        visits = self._visits()
        # Both halves of the first projection, silu of one, the other, their product, the weighted.
        experts = visits * 6 * model.expert_ffn_size // parallel.expert_tensor * self.bytes
        router = 3 * self.share * model.num_experts * _FLOAT32
        dispatched = visits * model.hidden_size * self.bytes + self._sent()
        shared = self._dense(model.num_shared_experts * model.expert_ffn_size)
        return norm + router + dispatched + experts + shared

    def _visits(self) -> int:
        """Tokens that this rank's experts see."""
        return self.share * self.model.experts_per_token * self.parallel.expert_tensor

    def _sent(self) -> int:
        """This rank's tokens, once for each expert they visit, on their way to other ranks."""
        if self.parallel.expert * self.parallel.expert_tensor == 1:
            return 0
        return self.share * self.model.experts_per_token * self.model.hidden_size * self.bytes

    def _dense(self, width: int) -> int:
        return self.tokens * 5 * width // self.parallel.tensor * self.bytes

    def backward(self, mixture: bool) -> int:
        """Most that exists in one layer's backward pass, what is saved for it included."""
        model = self.model
        residual = 2 * self.share * model.hidden_size * self.bytes
        if mixture:
            gradient = 2 * self._visits() * model.hidden_size * self.bytes + self._sent()
        else:
            gradient = 2 * self.tokens * model.dense_ffn_size // self.parallel.tensor * self.bytes
        return residual + max(
            self.attention() + self.mlp(mixture) + gradient,
            self.attention() + self._core_gradients(),
        )

    def _core_gradients(self) -> int:
        """Most that scaled_dot_product_attention adds in its backward pass, when the output's copy
        is gone."""
        model, tokens = self.model, self.tokens
        output = tokens * self.heads * model.v_head_dim * self.bytes
        if self.parallel.device is Device.cpu:
            return 2 * self._scores() - output
        inputs = self.query * tokens + (self.query + model.v_head_dim) * self.all_tokens
        return self.heads * self.bytes * inputs

    def logits(self) -> int:
        """Of the last norm, its gathered output, and a chunk's logits, shifted and exponentiated;
        or, in its backward pass, two gradients and the output layer's."""
        model, tensor = self.model, self.parallel.tensor
        norm = self._norm(model.hidden_size)
        gathered = self.tokens * model.hidden_size * self.bytes if tensor > 1 else 0
        vocabulary = model.vocab_size // tensor
        one = min(self.parallel.logprob_chunk, self.tokens) * vocabulary * _FLOAT32
        return norm + gathered + max(3 * one, 2 * one + vocabulary * model.hidden_size * self.bytes)
