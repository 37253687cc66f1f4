"""GLM-4.7-Flash: DeepSeek-V3 whose sparse layers are listed."""

from hf_variants.convert.expert_maps import LAYER_LIST, deepseek_v3_experts
from hf_variants.convert.latent_maps import DEEPSEEK_V3_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS

FAMILY = Family(
    model_type="glm4_moe_lite",
    config=[
        *DEEPSEEK_V3_KEYS,
        *deepseek_v3_experts(LAYER_LIST),
    ],
    weights=LLAMA_WEIGHTS,
)
