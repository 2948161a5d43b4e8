"""SGLang's own GLM-4.7-Flash; to find it otherwise, SGLang would import its 200 model modules."""

from sglang.srt.models.glm4_moe_lite import Glm4MoeLiteForCausalLM

EntryClass = Glm4MoeLiteForCausalLM
