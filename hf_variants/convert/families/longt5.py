"""LongT5 with local attention: T5 whose encoder sees `local_radius` tokens on either side."""

from hf_variants.convert.config_map import Always, Both, Refuse
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import joined, scaled_where_tied, t5_stack, t5_weights

_SCALE, _TIED = scaled_where_tied()
_WINDOW = Both(
    lambda native: {"sliding_window": 2 * native.local_radius},
    lambda config: {} if config.sliding_window is None else {"local_radius": config.sliding_window // 2},
)
_GLOBAL = Refuse(
    "encoder_attention_type",
    lambda native: native.encoder_attention_type != "local",
    "it attends to means of blocks as well, which no toggle means; 'local' converts",
)

FAMILY = PairFamily(
    model_type="longt5",
    encoder=[*t5_stack("num_layers"), _WINDOW],
    decoder=[*t5_stack("num_decoder_layers"), _SCALE],
    config=joined(Always(share_embeddings=True), _TIED, _GLOBAL),
    weights=t5_weights(encoder_attention="LocalSelfAttention"),
    needs={"decoder_start_token_id": 0},
    head_told_by_weights=True,
)
