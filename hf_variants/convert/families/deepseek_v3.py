"""DeepSeek-V3: latent attention, dense first layers, sigmoid routing in groups with a bias that balances the load.

The next-token prediction layers of published checkpoints are not built natively either.
"""

from hf_variants.convert.config_map import Key, Same
from hf_variants.convert.expert_maps import (
    DEEPSEEK_KEYS,
    FIRST_DENSE,
    GROUP_KEYS,
    SIGMOID_ROUTER,
    Experts,
    needs_groups,
    needs_shared_experts,
)
from hf_variants.convert.latent_maps import LATENT_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

FAMILY = Family(
    model_type="deepseek_v3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Key("rope_interleaved", "rope_interleave"),
        *LATENT_KEYS,
        all_biases(),
        rope(),
        needs_groups(),
        needs_shared_experts(),
        Experts({**DEEPSEEK_KEYS, **GROUP_KEYS}, FIRST_DENSE, SIGMOID_ROUTER),
    ],
    weights=LLAMA_WEIGHTS,
)
