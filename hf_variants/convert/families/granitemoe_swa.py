"""Granite MoE with windows: the attention of Granite with windows, the experts of Granite MoE with a shared one."""

from hf_variants.convert.families.granite_swa import KEYS
from hf_variants.convert.families.granitemoeshared import FAMILY as SHARED
from hf_variants.convert.families.granitemoeshared import SHARED_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import aux_loss, every_layer_sparse

FAMILY = Family(
    model_type="granitemoe_swa",
    config=[*KEYS, every_layer_sparse(), aux_loss(), SHARED_KEYS],
    weights=SHARED.weights,
)
