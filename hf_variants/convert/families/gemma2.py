"""Gemma 2: sandwich norms with weights stored minus one, scaled embeddings, soft-caps, alternating windows."""

from hf_variants.convert.config_map import Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, gemma_keys, rope

FAMILY = Family(
    model_type="gemma2",
    config=[*gemma_keys(), Same("attn_logit_softcapping"), rope()],
    weights=LLAMA_WEIGHTS,
)
