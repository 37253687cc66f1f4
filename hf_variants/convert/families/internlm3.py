"""InternLM3: Llama under another name, whose feed-forward is biased exactly when its attention is."""

from dataclasses import replace

from hf_variants.convert.families.llama import FAMILY as LLAMA

FAMILY = replace(LLAMA, model_type="internlm3")
