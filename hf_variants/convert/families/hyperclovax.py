"""HyperCLOVA X: Granite whose logits are multiplied instead of divided, with optional norms after the branches."""

from hf_variants.convert.config_map import Both, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    EMBEDDINGS,
    LLAMA_WEIGHTS,
    MODERN_KEYS,
    all_biases,
    granite_multipliers,
    reciprocal,
    rope,
)
from hf_variants.convert.weight_rules import keep, only_if, rename

_LAYER = "model.layers.*."


def _is_sandwich(config):
    return config.norm_placement == "sandwich"


FAMILY = Family(
    model_type="hyperclovax",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        granite_multipliers(),
        reciprocal("logits_scaling", "logits_scaling"),
        HeadDim(declared=True),
        all_biases(),
        rope(),
        Both(
            lambda native: {"norm_placement": "sandwich" if native.use_post_norm else "pre"},
            lambda config: {"use_post_norm": _is_sandwich(config)},
        ),
    ],
    weights=[
        *only_if(
            _is_sandwich,
            *EMBEDDINGS,
            *keep(_LAYER + "self_attn.**", _LAYER + "mlp.**", _LAYER + "input_layernorm.weight"),
            rename(_LAYER + "post_norm1.weight", _LAYER + "post_attention_layernorm.weight"),
            rename(_LAYER + "post_attention_layernorm.weight", _LAYER + "pre_feedforward_layernorm.weight"),
            rename(_LAYER + "post_norm2.weight", _LAYER + "post_feedforward_layernorm.weight"),
        ),
        *only_if(lambda config: not _is_sandwich(config), *LLAMA_WEIGHTS),
    ],
)
