"""What the trainer cannot do with a config. Imports neither torch nor Megatron."""

from glm52_tbench2.config.schema import ModelConfig, ModelFamily, RunConfig


def problems(run: RunConfig) -> list[str]:
    """Each as one sentence that says what to write instead; empty: it can train the run."""
    parallel, found = run.parallel, _indexer(run.model)
    if parallel.tensor > 1 and not parallel.sequence_parallel:
        found.append(
            f"parallel.tensor is {parallel.tensor}, which a mixture of experts can only do with "
            "parallel.sequence_parallel=true."
        )
    return found


def _indexer(model: ModelConfig) -> list[str]:
    if model.family is not ModelFamily.glm_moe_dsa:
        return []
    found = [
        f"model.{name} is 0, but model.family={model.family.name} has an indexer; write a number "
        "above 0."
        for name in ("index_heads", "index_head_dim", "index_topk")
        if getattr(model, name) == 0
    ]
    if model.index_head_dim < model.qk_rope_head_dim:
        found.append(
            f"model.index_head_dim ({model.index_head_dim}) is below model.qk_rope_head_dim "
            f"({model.qk_rope_head_dim}), which an indexer's head rotates too; raise it."
        )
    if unknown := [n for n in model.index_layers if not 1 <= n <= model.num_layers]:
        found.append(
            f"model.index_layers names {unknown}, but the layers are 1 to {model.num_layers}."
        )
    return found
