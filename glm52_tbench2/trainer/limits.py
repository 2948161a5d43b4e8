"""What the trainer cannot do with a config. Imports neither torch nor Megatron."""

from glm52_tbench2.config.schema import ModelFamily, RunConfig


def problems(run: RunConfig) -> list[str]:
    """Each as one sentence that says what to write instead; empty: it can train the run."""
    found = []
    if run.model.family is not ModelFamily.glm4_moe_lite:
        found.append(
            f"model.family is {run.model.family.name}, which the trainer cannot build yet; "
            f"choose a model of family {ModelFamily.glm4_moe_lite.name}, as model=tiny."
        )
    parallel = run.parallel
    if parallel.tensor > 1 and not parallel.sequence_parallel:
        found.append(
            f"parallel.tensor is {parallel.tensor}, which a mixture of experts can only do with "
            "parallel.sequence_parallel=true."
        )
    if parallel.expert == 1 and parallel.expert_tensor != parallel.tensor:
        found.append(
            f"parallel.expert_tensor is {parallel.expert_tensor} beside parallel.tensor "
            f"{parallel.tensor}: without expert parallelism Megatron does not add up the experts' "
            f"gradients then; write parallel.expert_tensor={parallel.tensor} or raise "
            "parallel.expert."
        )
    if run.optim.state_on_disk:
        found.append("optim.state_on_disk is true, which the trainer cannot do yet; write false.")
    return found
