"""MVP: BART's layers, pretrained on tasks; the prompts that it may put before every layer's keys have no toggle."""

from hf_variants.convert.bart_kin import bart_family
from hf_variants.convert.config_map import Refuse

_PROMPTS = Refuse(
    "use_prompt",
    lambda native: native.use_prompt,
    "it puts trained keys and values before those of every layer, which ours does not; set it to False",
)

FAMILY = bart_family("mvp", _PROMPTS)
