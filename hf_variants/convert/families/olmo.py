"""OLMo: Llama with LayerNorms that have neither weight nor bias."""

from hf_variants.convert.config_map import Always, HeadDim, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import GROUPED_KEYS, LLAMA_WEIGHTS, all_biases, rope

FAMILY = Family(
    model_type="olmo",
    config=[
        *GROUPED_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(norm_type="layernorm", norm_eps=1e-5, norm_affine=False),
        HeadDim(),
        all_biases(),
        rope(),
        Refuse("clip_qkv", lambda native: native.clip_qkv is not None, "no toggle clips queries, keys and values"),
    ],
    weights=LLAMA_WEIGHTS,
)
