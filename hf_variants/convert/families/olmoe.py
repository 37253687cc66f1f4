"""OLMoE: Llama with experts in every layer and q and k normalised over all heads at once."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Refuse, Same
from hf_variants.convert.families.flex_olmo import EXPERTS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

FAMILY = Family(
    model_type="olmoe",
    config=[
        *MODERN_KEYS,
        Same("hidden_act"),
        Both(lambda native: {"intermediate_size": native.intermediate_size}),
        Always(qk_norm="full"),
        HeadDim(),
        all_biases(),
        rope(),
        EXPERTS,
        Refuse("clip_qkv", lambda native: native.clip_qkv is not None, "no toggle clips queries, keys and values"),
    ],
    weights=LLAMA_WEIGHTS,
)
