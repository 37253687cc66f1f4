"""PLBART: BART whose decoder inputs begin with the last label, the language's token."""

from hf_variants.convert.config_map import Always
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import (
    NORMS_POST,
    STACKS,
    bart_joined,
    bart_stack,
    bart_weights,
    learned_positions,
    one_table,
    post_norms,
    scale_embedding,
    shared_table,
)

_MORE = (learned_positions(), post_norms(embedding_norm=True), scale_embedding("input_ids"))

FAMILY = PairFamily(
    model_type="plbart",
    **{stack: bart_stack(stack, *_MORE) for stack in STACKS},
    config=bart_joined(*one_table(), Always(decoder_start="last_token")),
    weights=[
        shared_table(),
        *bart_weights(NORMS_POST, embedding_norm=True, final_norm=False, computed_positions=False),
    ],
)
