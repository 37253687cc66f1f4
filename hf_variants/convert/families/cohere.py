"""Command-R: parallel blocks, LayerNorm without bias, interleaved RoPE, logits multiplied by `logit_scale`.

Command-R+ normalises q and k with a weight per head.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim, Refuse, Same
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
        Both(
            lambda native: {"qk_norm": "per_head" if native.use_qk_norm else "none"},
            lambda config: {"use_qk_norm": config.qk_norm == "per_head"},
        ),
    ],
    weights=LLAMA_WEIGHTS,
)
