"""Youtu-LLM: the latent attention of DeepSeek-V3 with a dense feed-forward.

Natively the embedding row of the pad is zeroed on every load, whatever the checkpoint holds.
"""

from hf_variants.convert.latent_maps import DEEPSEEK_V3_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS

FAMILY = Family(
    model_type="youtu",
    config=DEEPSEEK_V3_KEYS,
    weights=LLAMA_WEIGHTS,
)
