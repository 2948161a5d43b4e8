"""The policy: Megatron's GPTModel in the shape of GLM's multi-latent attention and mixture."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.post_training.modelopt.layers import Linear
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig
from torch import Tensor
from torch.nn import functional as F

from glm52_tbench2.config.schema import (
    Device,
    DType,
    ModelConfig,
    ModelFamily,
    ParallelConfig,
    Recompute,
    RunConfig,
)

from .attention import PackedAttention, RMSNorm
from .dsa import SparseSelfAttention
from .logprobs import score_hidden
from .packed import Packed

# transformers fixes it for the norms of the compressed query and key/value, whatever norm_eps says.
LATENT_NORM_EPS = 1e-6


class LatentRMSNorm(RMSNorm):
    """The norm of a compressed query or key/value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "eps": LATENT_NORM_EPS})


class PolicyModel(GPTModel):
    """A GPTModel that answers labels with log-probabilities and entropies; see :func:`score`."""

    def __init__(self, *args: Any, run: RunConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._temperature = run.rollout.temperature
        self._chunk = run.parallel.logprob_chunk
        self._with_entropy_grad = run.clip.entropy_coef != 0

    def _postprocess(
        self, hidden_states: Tensor, labels: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        if not self.post_process or labels is None:
            return super()._postprocess(hidden_states, labels=labels, **kwargs)
        return score_hidden(
            hidden_states,
            labels[0],
            self.output_layer,
            self._temperature,
            self._chunk,
            self._with_entropy_grad,
        )


def score(model: torch.nn.Module, tokens: Tensor, labels: Tensor, packed: Packed) -> Tensor:
    """One micro-batch through a PolicyModel, wrapped or not.

    Args:
        tokens, labels: [tokens of this rank] int64; labels[t] is the token after tokens[t].
        packed: which tokens form a sequence.

    Returns:
        on the last pipeline stage [2, tokens of this rank] float32: log-probabilities of the labels
        at the rollout's temperature and entropies, in nats; on the others the hidden states to
        send.
    """
    return model(tokens[None], None, None, labels=labels[None], packed_seq_params=packed)


def transformer_config(model: ModelConfig, parallel: ParallelConfig) -> MLATransformerConfig:
    """Megatron's description of the architecture and of its layout."""
    dtype = getattr(torch, model.dtype.name)
    recompute: dict[str, Any] = {}
    if parallel.recompute is Recompute.full:
        recompute = {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    return MLATransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_heads,
        q_lora_rank=model.q_lora_rank,
        kv_lora_rank=model.kv_lora_rank,
        qk_head_dim=model.qk_nope_head_dim,
        qk_pos_emb_head_dim=model.qk_rope_head_dim,
        v_head_dim=model.v_head_dim,
        qk_layernorm=True,
        dsa_indexer_n_heads=model.index_heads,
        dsa_indexer_head_dim=model.index_head_dim,
        dsa_indexer_topk=model.index_topk,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        rope_type="rope",
        rotary_base=model.rope_base,
        rotary_scaling_factor=1.0,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        add_bias_linear=False,
        activation_func=F.silu,
        gated_linear_unit=True,
        ffn_hidden_size=model.dense_ffn_size,
        moe_layer_freq=[int(i >= model.num_dense_layers) for i in range(model.num_layers)],
        num_moe_experts=model.num_experts,
        moe_ffn_hidden_size=model.expert_ffn_size,
        moe_shared_expert_intermediate_size=model.num_shared_experts * model.expert_ffn_size,
        moe_router_topk=model.experts_per_token,
        moe_router_topk_scaling_factor=model.router_scaling,
        moe_router_score_function="sigmoid",
        moe_router_dtype="fp32",
        # The expert bias steers the choice of experts and stays as it was trained: a rate of 0.
        moe_router_enable_expert_bias=True,
        moe_router_bias_update_rate=0.0,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        moe_grouped_gemm=parallel.device is Device.cuda,
        # Every weight is loaded: from the starting model, or from a checkpoint.
        init_method=_leave_unset,
        output_layer_init_method=_leave_unset,
        params_dtype=dtype,
        bf16=model.dtype is DType.bfloat16,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=parallel.tensor,
        context_parallel_size=parallel.context,
        pipeline_model_parallel_size=parallel.pipeline,
        pipeline_model_parallel_layout=_stages(parallel),
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
        sequence_parallel=parallel.tensor > 1,
        variable_seq_lengths=True,
        # Losses come normalised over the whole batch: gradients add up over all micro-batches.
        calculate_per_token_loss=True,
        gradient_accumulation_fusion=False,
        **recompute,
    )


def build_model(run: RunConfig) -> PolicyModel:
    """This rank's part of the policy, its weights unset, in run.model.dtype."""
    config = transformer_config(run.model, run.parallel)
    block = layer_specs(config, run.model)
    if run.parallel.device is Device.cuda:
        use_transformer_engine(block, config)
    model = PolicyModel(
        config,
        block,
        run.model.vocab_size,
        run.model.max_position,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        run=run,
    )
    for name, weight in model.named_parameters():
        if ".experts." in name:
            # Their gradients are added up over all ranks that have them, also where that is not
            # every data-parallel rank: without expert parallelism Megatron takes it to be.
            weight.allreduce = False
    return model.to(torch.cuda.current_device())


@contextmanager
def shapes_only() -> Iterator[None]:
    """Megatron, which asks for the current device, makes tensors without memory."""
    device = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment,return-value]
    try:
        yield
    finally:
        torch.cuda.current_device = device


def wrap(model: PolicyModel) -> DistributedDataParallel:
    """The model with its gradients reduced over the data-parallel ranks, in float32."""
    config = model.config
    inner = Float16Module(config, model) if config.bf16 else model
    for module in model.modules():
        if isinstance(module, TopKRouter):
            # Float16Module rounds its bias too; Megatron takes that back in its first forward pass,
            # when weights are loaded and sent already.
            module._maintain_float32_expert_bias()
    return DistributedDataParallel(
        config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), inner
    )


def _leave_unset(weight: Tensor) -> None:
    """An initialisation that only lets Megatron mark how the weight is sharded."""


def layer_specs(config: MLATransformerConfig, model: ModelConfig) -> TransformerBlockSubmodules:
    """The parts of this rank's layers, in plain torch."""
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm"
    )
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = RMSNorm
        layer.submodules.pre_mlp_layernorm = RMSNorm
        if model.family is ModelFamily.glm_moe_dsa:
            layer.submodules.self_attention.module = SparseSelfAttention
            layer.submodules.self_attention.params["index_layers"] = model.index_layers
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = PackedAttention
        # Whole on every tensor-parallel rank. Split by columns, the rotary part of the key, which
        # all heads share, would miss the gradient of the other ranks' heads.
        attention.linear_q_down_proj = attention.linear_kv_down_proj = Linear
        attention.q_layernorm = attention.kv_layernorm = LatentRMSNorm
    block.layer_norm = RMSNorm
    return block


def use_transformer_engine(block: TransformerBlockSubmodules, config: MLATransformerConfig) -> None:
    """Gives the layers Transformer Engine's matrix products, those of a rank's experts in one.

    Norms and attention stay as they are. Megatron-core 0.16's own sparse attention knows neither
    packed sequences nor context parallelism nor layers that share a choice, and Transformer
    Engine's fused norms would give the latents the epsilon of the others.
    """
    from megatron.core.extensions.transformer_engine import (
        TEColumnParallelLinear,
        TERowParallelLinear,
    )

    for layer in block.layer_specs:
        attention = layer.submodules.self_attention.submodules
        attention.linear_q_up_proj = attention.linear_kv_up_proj = TEColumnParallelLinear
        attention.linear_proj = TERowParallelLinear
        if layer.submodules.mlp.module is MoELayer:
            layer.submodules.mlp = get_moe_module_spec(
                use_te=True, num_experts=config.num_moe_experts, moe_grouped_gemm=True
            )
        else:
            layer.submodules.mlp.submodules.linear_fc1 = TEColumnParallelLinear
            layer.submodules.mlp.submodules.linear_fc2 = TERowParallelLinear


def _stages(parallel: ParallelConfig) -> list[list[str]] | None:
    """Megatron's layout of uneven pipeline stages; None: split evenly."""
    if not parallel.pipeline_layers or parallel.pipeline == 1:
        return None
    stages = [["decoder"] * layers for layers in parallel.pipeline_layers]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return stages
