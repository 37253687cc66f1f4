"""M2M-100 and NLLB: norms before the branches and behind each stack, sinusoids in halves that begin behind the pad's row."""

from hf_variants.convert.config_map import Always, Both, Refuse
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import (
    NORMS_PRE,
    STACKS,
    bart_joined,
    bart_stack,
    bart_weights,
    one_table,
    pre_norms,
    scale_embedding,
    shared_table,
)

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

FAMILY = PairFamily(
    model_type="m2m_100",
    **{stack: bart_stack(stack, *_POSITIONS, pre_norms(), scale_embedding("input_ids")) for stack in STACKS},
    config=bart_joined(*one_table(), _START, logits_bias=False),
    weights=[
        shared_table(),
        *bart_weights(NORMS_PRE, embedding_norm=False, final_norm=True, computed_positions=True),
    ],
)
