"""What an engine holds: its weights on one GPU, and the tokens its KV cache has room for."""

from dataclasses import dataclass

from ...config.schema import Device, EngineDType, ModelConfig, RunConfig
from .memory import GB
from .parameters import attention_whole, expert, indexer

_BFLOAT16 = 2
_FLOAT32 = 4
_SCALED = 128
"""Values that share a float32 scale in an fp8 cache."""


@dataclass(frozen=True)
class EngineMemory:
    """One rank of an engine."""

    weights: float
    """Bytes."""
    token_bytes: int
    """Bytes of KV cache a token takes on one rank, all layers and the indexers' keys."""
    token_words: str
    """What they consist of."""
    kv_bytes: float | None
    """Bytes left for the KV cache; None: the GPU's memory or the engine's share of it
    is unknown."""
    kv_tokens: int | None
    """Tokens a rank with an attention of its own has room for."""
    attention_ranks: int
    """Ranks of one engine with requests of their own (dp attention)."""


def engine_memory(config: RunConfig) -> EngineMemory:
    """Of one rank, as server_args split it."""
    hardware = config.cluster.hardware
    weights = rank_weights(config)
    cached = _cached(config)
    token = sum(layers * size for layers, size, _ in cached)
    words = " + ".join(f"{layers} layers x {size} B of {what}" for layers, size, what in cached)
    left = None
    fraction = _number(config, "mem-fraction-static")
    gpu = hardware.gpu_memory_gb if config.engine.device is Device.cuda else None
    if gpu is not None and fraction is not None:
        left = (gpu * fraction - hardware.gpu_reserved_gb) * GB - weights
    tokens = None if left is None else max(0, int(left / token))
    if (limit := token_limit(config)) is not None:
        tokens = limit if tokens is None else min(tokens, limit)
        left = tokens * token
    return EngineMemory(weights, token, words, left, tokens, own_attentions(config))


def own_attentions(config: RunConfig) -> int:
    """Ranks of an engine that attend to requests of their own."""
    return max(1, int(_number(config, "attn-dp-size") or 1))


def token_limit(config: RunConfig) -> int | None:
    """Most tokens in the KV cache by the engine's own arguments; None: what memory holds."""
    limit = _number(config, "max-total-tokens")
    return None if limit is None else int(limit)


def _number(config: RunConfig, argument: str) -> float | None:
    """A server argument where it is a number: the server says what is wrong with others."""
    value = config.engine.server_args.get(argument)
    return value if isinstance(value, int | float) else None


def weight_bytes(config: RunConfig) -> float:
    """Bytes of one parameter in an engine."""
    return {
        EngineDType.fp8_rounded: _FLOAT32,
        EngineDType.fp8: 1 + _FLOAT32 / _SCALED**2,
        EngineDType.bfloat16: _BFLOAT16,
        EngineDType.float32: _FLOAT32,
    }[config.engine.dtype]


def _layers(config: RunConfig) -> int:
    """Layers an engine holds: those of speculative decoding too."""
    speculates = config.engine.server_args.get("speculative-algorithm")
    return config.model.num_layers + (config.model.num_mtp_layers if speculates else 0)


def _index_layers(config: RunConfig) -> int:
    more = _layers(config) - config.model.num_layers
    return len(config.model.index_layers) + (more if config.model.index_heads else 0)


def rank_weights(config: RunConfig) -> float:
    """Bytes of weights on one rank.

    Attention is whole on a rank with requests of its own and split otherwise, as is the embedding;
    so are shared experts under an all-to-all of tokens. Routed experts and dense layers are split
    over all ranks.
    """
    model, engine = config.model, config.engine
    ranks = max(1, engine.gpus_per_engine)
    attention = ranks // own_attentions(config)
    layers, each = _layers(config), weight_bytes(config)
    mixtures = layers - model.num_dense_layers
    routed = mixtures * model.num_experts * expert(model) / ranks
    over = 1 if engine.server_args.get("moe-a2a-backend") else ranks
    shared = mixtures * model.num_shared_experts * expert(model) / over
    dense = model.num_dense_layers * 3 * model.hidden_size * model.dense_ffn_size / ranks
    attended = layers * attention_whole(model) / max(1, attention)
    attended += _index_layers(config) * indexer(model)
    router = mixtures * model.num_experts * model.hidden_size
    vocabulary = model.vocab_size * model.hidden_size
    # Embedding, output layer, routers and norms stay in bfloat16 where the rest is fp8.
    wide = max(each, _BFLOAT16)
    kept = vocabulary / max(1, attention) + vocabulary / ranks + router
    kept += (layers - model.num_layers) * 2 * model.hidden_size**2
    return each * (routed + shared + dense + attended) + wide * kept


def _cached(config: RunConfig) -> list[tuple[int, int, str]]:
    """(layers, bytes, what) that one token takes in the KV cache of a rank: the latent, whole on
    each rank, and the keys of layers that compute indices."""
    model = config.model
    cached = [(_layers(config), _latent_bytes(config), "latents")]
    if model.index_heads:
        scales = model.index_head_dim // _SCALED * _FLOAT32
        cached.append((_index_layers(config), model.index_head_dim + scales, "index keys"))
    return cached


def _latent_bytes(config: RunConfig) -> int:
    """One token of one layer."""
    model: ModelConfig = config.model
    arguments = config.engine.server_args
    width = model.kv_lora_rank + model.qk_rope_head_dim
    fp8 = str(arguments.get("kv-cache-dtype") or "").startswith("fp8")
    if not fp8:
        return width * (_FLOAT32 if config.engine.dtype == "float32" else _BFLOAT16)
    backends = {arguments.get("dsa-prefill-backend"), arguments.get("dsa-decode-backend")}
    if not model.index_heads or "trtllm" in backends:
        return width
    # Sparse attention's kernels keep a scale for each 128 values, and the rotary part in bfloat16.
    scales = model.kv_lora_rank // _SCALED * _FLOAT32
    return model.kv_lora_rank + scales + model.qk_rope_head_dim * _BFLOAT16
