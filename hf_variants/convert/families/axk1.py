"""A.X-K1: DeepSeek-V3 with compressed queries and one more norm, on the output of its sparse layers."""

from hf_variants.convert.expert_maps import LAYER_LIST, deepseek_v3_experts
from hf_variants.convert.latent_maps import DEEPSEEK_V3_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS
from hf_variants.convert.weight_rules import rename

FAMILY = Family(
    model_type="axk1",
    config=[
        *DEEPSEEK_V3_KEYS,
        *deepseek_v3_experts(LAYER_LIST, expert_output_norm=True),
    ],
    weights=[
        rename("model.layers.*.mlp.post_mlp_layernorm.weight", "model.layers.*.mlp.output_norm.weight"),
        *LLAMA_WEIGHTS,
    ],
)
