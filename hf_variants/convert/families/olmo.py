"""OLMo: Llama with LayerNorms that have neither weight nor bias, and queries, keys and values that may be clipped."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import GROUPED_KEYS, LLAMA_WEIGHTS, all_biases, rope

FAMILY = Family(
    model_type="olmo",
    config=[
        *GROUPED_KEYS,
        Same("intermediate_size", "hidden_act", "clip_qkv"),
        Always(norm_type="layernorm", norm_eps=1e-5, norm_affine=False),
        HeadDim(),
        all_biases(),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
