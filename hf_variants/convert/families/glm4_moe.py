"""GLM-4.5: half-split RoPE on half of each head, optional QK-norm, the experts of DeepSeek-V3.

The next-token prediction layers of published checkpoints are not built natively either.
"""

from hf_variants.convert.config_map import Both, HeadDim, Same
from hf_variants.convert.expert_maps import FIRST_DENSE, deepseek_v3_experts
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, qkv_biases, rope

FAMILY = Family(
    model_type="glm4_moe",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        HeadDim(),
        qkv_biases(),
        rope(partial=True),
        Both(
            lambda native: {"qk_norm": "head" if native.use_qk_norm else "none"},
            lambda config: {"use_qk_norm": config.qk_norm == "head"},
        ),
        *deepseek_v3_experts(FIRST_DENSE),
    ],
    weights=LLAMA_WEIGHTS,
    needs={"head_dim": 128},
)
