"""Megatron-BERT: BERT with its norms before the branches and none after the embedding."""

from hf_variants.convert.config_map import Always
from hf_variants.convert.encoder_maps import BERT_HEAD_KEYS, bert_heads, bert_weights, pre_ln_norms
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import rename

FAMILY = Family(
    model_type="megatron-bert",
    config=[*BERT_HEAD_KEYS, Always(norm_placement="pre")],
    weights=[*bert_weights("bert.", pre_ln_norms("attention.ln", "ln")), rename("bert.encoder.ln.*", "model.norm.*")],
    prefix="bert.",
    heads=bert_heads(),
    other_heads=("bert.pooler.", "cls.seq_relationship."),
)
