"""mBART: BART with norms before the branches and behind each stack; decoder inputs begin with the last label."""

from hf_variants.convert.bart_kin import bart_family
from hf_variants.convert.config_map import Always

FAMILY = bart_family("mbart", Always(decoder_start="last_token"), norms_first=True)
