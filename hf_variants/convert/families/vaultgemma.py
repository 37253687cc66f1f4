"""VaultGemma: Gemma 2 without the two norms after the branches."""

from hf_variants.convert.config_map import Always, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, gemma_keys, rope
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."

FAMILY = Family(
    model_type="vaultgemma",
    config=[*gemma_keys(), Same("attn_logit_softcapping"), Always(norm_placement="pre"), rope()],
    weights=[
        *EMBEDDINGS,
        *keep(_LAYER + "self_attn.**", _LAYER + "mlp.**", _LAYER + "input_layernorm.weight"),
        rename(_LAYER + "pre_feedforward_layernorm.weight", _LAYER + "post_attention_layernorm.weight"),
    ],
)
