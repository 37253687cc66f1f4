"""Command-R: parallel blocks, LayerNorm without bias, interleaved RoPE, logits multiplied by `logit_scale`."""

from hf_variants.convert.config_map import Always, HeadDim, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, all_biases, layernorm_keys, reciprocal, rope

KEYS = [
    *layernorm_keys("layer_norm_eps"),
    Same("intermediate_size", "hidden_act"),
    Always(norm_placement="parallel", norm_bias=False, norm_weight_in_fp32=True, rope_interleaved=True),
    Refuse("logit_scale", lambda native: not native.logit_scale, "natively it fails; set it to 1.0 for none"),
    reciprocal("logits_scaling", "logit_scale"),
    HeadDim(),
    all_biases(),
    rope(),
]

FAMILY = Family(
    model_type="cohere",
    config=[
        *KEYS,
        Refuse(
            "use_qk_norm",
            lambda native: native.use_qk_norm,
            "its norms of q and k have one weight per head and channel, which no toggle means",
        ),
    ],
    weights=LLAMA_WEIGHTS,
)
