"""RoBERTa-PreLayerNorm: RoBERTa with its norms before the branches."""

from hf_variants.convert.config_map import Always
from hf_variants.convert.encoder_maps import ROBERTA_KEYS, bert_weights, pre_ln_norms, roberta_heads
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import rename

_PREFIX = "roberta_prelayernorm."

FAMILY = Family(
    model_type="roberta-prelayernorm",
    config=[*ROBERTA_KEYS, Always(norm_placement="pre", embedding_norm=True)],
    weights=[
        *bert_weights(_PREFIX, pre_ln_norms("attention.LayerNorm", "intermediate.LayerNorm")),
        rename(_PREFIX + "LayerNorm.*", "model.norm.*"),
    ],
    prefix=_PREFIX,
    heads=roberta_heads(),
    other_heads=(_PREFIX + "pooler.",),
)
