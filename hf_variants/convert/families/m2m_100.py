"""M2M-100 and NLLB: norms before the branches and behind each stack, sinusoids in halves that begin behind the pad's row."""

from hf_variants.convert.bart_kin import bart_family
from hf_variants.convert.config_map import Always, Both, Refuse

_POSITIONS = (
    Refuse("pad_token_id", lambda native: native.pad_token_id is None, "natively positions begin behind it; set it"),
    Always(position_embedding_type="sinusoidal_halves"),
    Both(lambda native: {"position_embedding_offset": native.pad_token_id + 1}),
)
_START = Refuse(
    "decoder_start_token_id",
    lambda native: native.decoder_start_token_id is not None and native.decoder_start_token_id == native.pad_token_id,
    "natively the pad has no position, so that the first token would have none and the others follow from whether a cache is "
    "used; let the decoder begin with another token",
)

FAMILY = bart_family(
    "m2m_100", _START, offset=None, positions=_POSITIONS, norms_first=True, embedding_norm=False, logits_bias=False
)
