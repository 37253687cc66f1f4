"""Blenderbot: norms before the branches and behind each stack, none on the embeddings, learned positions from row 0."""

from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import (
    NORMS_PRE,
    STACKS,
    bart_joined,
    bart_stack,
    bart_weights,
    learned_positions,
    one_table,
    pre_norms,
    scale_embedding,
    shared_table,
)

_MORE = (learned_positions(offset=0), pre_norms(), scale_embedding("input_ids"))

FAMILY = PairFamily(
    model_type="blenderbot",
    **{stack: bart_stack(stack, *_MORE) for stack in STACKS},
    config=bart_joined(*one_table()),
    weights=[
        shared_table(),
        *bart_weights(NORMS_PRE, embedding_norm=False, final_norm=True, computed_positions=False),
    ],
)
