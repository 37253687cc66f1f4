"""StableLM 2: LayerNorm, partial rotation, sequential or parallel blocks, biases on q, k, v behind a switch."""

from hf_variants.convert.config_map import Both, HeadDim, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LAYERNORM_WEIGHTS, layernorm_keys, qkv_biases, rope

FAMILY = Family(
    model_type="stablelm",
    config=[
        *layernorm_keys("layer_norm_eps"),
        Same("intermediate_size", "hidden_act"),
        HeadDim(),
        qkv_biases("use_qkv_bias"),
        rope(partial=True),
        Both(
            lambda native: {"norm_placement": "parallel" if native.use_parallel_residual else "pre"},
            lambda config: {"use_parallel_residual": config.norm_placement == "parallel"},
        ),
        Refuse(
            "qk_layernorm",
            lambda native: native.qk_layernorm,
            "its norms of q and k have one weight per head and channel, which no toggle means",
        ),
        Refuse(
            "hidden_dropout",
            lambda native: native.hidden_dropout != 0,
            "natively it acts on the feed-forward alone, here on both branches; set it to 0",
        ),
    ],
    weights=LAYERNORM_WEIGHTS,
)
