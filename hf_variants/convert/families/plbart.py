"""PLBART: BART whose decoder inputs begin with the last label, the language's token."""

from hf_variants.convert.bart_kin import bart_family
from hf_variants.convert.config_map import Always

FAMILY = bart_family("plbart", Always(decoder_start="last_token"))
