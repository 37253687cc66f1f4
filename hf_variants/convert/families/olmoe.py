"""OLMoE: Llama with experts in every layer and q and k normalised over all heads at once."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Same
from hf_variants.convert.families.flex_olmo import EXPERTS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

FAMILY = Family(
    model_type="olmoe",
    config=[
        *MODERN_KEYS,
        Same("hidden_act", "clip_qkv"),
        Both(lambda native: {"intermediate_size": native.intermediate_size}),
        Always(qk_norm="full"),
        HeadDim(),
        all_biases(),
        rope(),
        EXPERTS,
    ],
    weights=LLAMA_WEIGHTS,
)
