"""XLM-RoBERTa-XL: RoBERTa with its norms before the branches and none after the embedding."""

from hf_variants.convert.config_map import Always
from hf_variants.convert.encoder_maps import ROBERTA_KEYS, bert_weights, pre_ln_norms, roberta_heads
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import rename

FAMILY = Family(
    model_type="xlm-roberta-xl",
    config=[*ROBERTA_KEYS, Always(norm_placement="pre")],
    weights=[
        *bert_weights("roberta.", pre_ln_norms("attention.self_attn_layer_norm", "LayerNorm")),
        rename("roberta.encoder.LayerNorm.*", "model.norm.*"),
    ],
    prefix="roberta.",
    heads=roberta_heads(),
    other_heads=("roberta.pooler.",),
)
