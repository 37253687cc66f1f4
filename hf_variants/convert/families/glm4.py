"""GLM-4-0414: GLM with sandwich norms, of which natively "post attention" names the one before the feed-forward."""

from hf_variants.convert.config_map import Always
from hf_variants.convert.families.glm import BRANCHES, KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."

SANDWICH_NORMS = [
    *keep(_LAYER + "input_layernorm.weight"),
    rename(_LAYER + "post_self_attn_layernorm.weight", _LAYER + "post_attention_layernorm.weight"),
    rename(_LAYER + "post_attention_layernorm.weight", _LAYER + "pre_feedforward_layernorm.weight"),
    rename(_LAYER + "post_mlp_layernorm.weight", _LAYER + "post_feedforward_layernorm.weight"),
]

FAMILY = Family(
    model_type="glm4",
    config=[*KEYS, Always(norm_placement="sandwich")],
    weights=[
        *EMBEDDINGS,
        *BRANCHES,
        *SANDWICH_NORMS,
    ],
)
