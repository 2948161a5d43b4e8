"""The model config as transformers' config.json writes it."""

import json
from pathlib import Path
from typing import Any

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.once import fact
from glm52_tbench2.config.schema import ModelConfig, ModelFamily


def hf_config(model: ModelConfig) -> dict[str, Any]:
    """The entries of transformers' config.json that decide what the model computes."""
    indexer: dict[str, Any] = {}
    if model.family is ModelFamily.glm_moe_dsa:
        indexer = {
            "index_n_heads": model.index_heads,
            "index_head_dim": model.index_head_dim,
            "index_topk": model.index_topk,
            "indexer_types": [
                "full" if number in model.index_layers else "shared"
                for number in range(1, model.num_layers + 1)
            ],
            # Under the name that SGLang reads.
            "indexer_rope_interleave": True,
        }
    return {
        "model_type": model.family.name,
        "num_hidden_layers": model.num_layers,
        "mlp_layer_types": ["dense"] * model.num_dense_layers
        + ["sparse"] * (model.num_layers - model.num_dense_layers),
        # The same fact under the name that SGLang reads.
        "first_k_dense_replace": model.num_dense_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.dense_ffn_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_heads,
        "q_lora_rank": model.q_lora_rank,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_nope_head_dim": model.qk_nope_head_dim,
        "qk_rope_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
        "n_routed_experts": model.num_experts,
        "num_experts_per_tok": model.experts_per_token,
        "n_shared_experts": model.num_shared_experts,
        "moe_intermediate_size": model.expert_ffn_size,
        "routed_scaling_factor": model.router_scaling,
        "vocab_size": model.vocab_size,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "rope_interleave": True,
        "tie_word_embeddings": False,
        **indexer,
    }


def check_hf_config(model: ModelConfig, folder: Path) -> None:
    """Raises UserError where the folder's config.json describes another model than `model`."""
    path = folder / "config.json"
    written = _written(path, model.family)
    for key, value in hf_config(model).items():
        # What a file leaves out is transformers' default, which shapes and logits would betray.
        if key in written and written[key] != value and not _same_rope(key, written[key], value):
            raise UserError(
                f"{path} has {key} = {written[key]}, but the model config makes it {value}; "
                "correct conf/model or name another model.path."
            )


@fact
def _written(path: Path, family: ModelFamily) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"model.path {path.parent} has no config.json; name a folder in HF format.")
    try:
        written = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error
    if family is ModelFamily.glm_moe_dsa and "indexer_types" not in written:
        from transformers import AutoConfig

        # The file has a rule for them, which transformers expands. Shapes would not betray another:
        # an indexer that the model lacks is handed on with the weights.
        written["indexer_types"] = AutoConfig.from_pretrained(path.parent).indexer_types
    return written


def _same_rope(key: str, written: Any, value: Any) -> bool:
    return key == "rope_parameters" and all(written.get(k) == v for k, v in value.items())
