"""DeepSeek-V3: latent attention, dense first layers, sigmoid routing in groups with a bias that balances the load.

The next-token prediction layers of published checkpoints are not built natively either.
"""

from hf_variants.convert.expert_maps import FIRST_DENSE, deepseek_v3_experts
from hf_variants.convert.latent_maps import DEEPSEEK_V3_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS

FAMILY = Family(
    model_type="deepseek_v3",
    config=[
        *DEEPSEEK_V3_KEYS,
        *deepseek_v3_experts(FIRST_DENSE),
    ],
    weights=LLAMA_WEIGHTS,
)
