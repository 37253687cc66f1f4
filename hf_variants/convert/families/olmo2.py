"""OLMo 2: the norms stand inside the residual, and q and k are normalised over all heads at once."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

FAMILY = Family(
    model_type="olmo2",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(norm_placement="post", qk_norm="full", norm_weight_in_fp32=True),
        HeadDim(),
        all_biases(),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
