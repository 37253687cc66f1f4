"""T5: relative bias, scores without a scale, RMSNorm; v1.0 has a tied and scaled head, v1.1 gates and a head of its own."""

from hf_variants.convert.config_map import Always
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import joined, scaled_where_tied, t5_stack, t5_weights

_SCALE, _TIED = scaled_where_tied()

FAMILY = PairFamily(
    model_type="t5",
    encoder=t5_stack("num_layers"),
    decoder=[*t5_stack("num_decoder_layers"), _SCALE],
    config=joined(Always(share_embeddings=True), _TIED),
    weights=t5_weights(),
    needs={"decoder_start_token_id": 0},
    head_told_by_weights=True,
)
