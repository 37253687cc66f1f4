"""IQuest-Coder: Llama under another name."""

from dataclasses import replace

from hf_variants.convert.families.llama import FAMILY as LLAMA

FAMILY = replace(LLAMA, model_type="iquestcoder")
