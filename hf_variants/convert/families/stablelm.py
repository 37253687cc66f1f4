"""StableLM 2: LayerNorm, partial rotation, sequential or parallel blocks, biases on q, k, v behind a switch.

The norms of q and k, where there are any, have a weight per head, stored one by one.
"""

from hf_variants.convert.config_map import Both, HeadDim, Same, TrainingOnly
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LAYERNORM_WEIGHTS, layernorm_keys, qkv_biases, rope
from hf_variants.convert.weight_rules import stacked

_ATTENTION = "model.layers.*.self_attn."

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
        Both(
            lambda native: {"qk_norm": "per_head" if native.qk_layernorm else "none"},
            lambda config: {"qk_layernorm": config.qk_norm == "per_head"},
        ),
        TrainingOnly("hidden_dropout", "drops the output of the feed-forward"),
    ],
    weights=[
        stacked(_ATTENTION + "q_layernorm.norms.{}.weight", _ATTENTION + "q_norm.weight", lambda c: c.num_attention_heads),
        stacked(_ATTENTION + "k_layernorm.norms.{}.weight", _ATTENTION + "k_norm.weight", lambda c: c.num_key_value_heads),
        *LAYERNORM_WEIGHTS,
    ],
)
