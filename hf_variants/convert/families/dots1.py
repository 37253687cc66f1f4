"""dots.llm1: Qwen3 attention with the experts of DeepSeek-V3."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.expert_maps import FIRST_DENSE, deepseek_v3_experts
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope, window_of_layer_types

FAMILY = Family(
    model_type="dots1",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(qk_norm="head"),
        HeadDim(),
        all_biases(),
        window_of_layer_types(),
        rope(),
        *deepseek_v3_experts(FIRST_DENSE),
    ],
    weights=LLAMA_WEIGHTS,
    needs={"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
)
