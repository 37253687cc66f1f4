"""FlauBERT: XLM for French. Its norms before the branches (`pre_norm`) fail natively: the cache is taken for a list there."""

from hf_variants.convert.classic_maps import layerdrop
from hf_variants.convert.config_map import Refuse
from hf_variants.convert.xlm_kin import xlm_family

FAMILY = xlm_family(
    "flaubert",
    Refuse("pre_norm", lambda native: native.pre_norm, "natively every forward pass fails; set it to False"),
    layerdrop(),
)
