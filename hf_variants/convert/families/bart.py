"""BART: post-LN in both stacks, a norm on the embeddings, learned positions two rows further on."""

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

_STACKS = {
    stack: bart_stack(stack, learned_positions(), post_norms(embedding_norm=True), scale_embedding("input_ids"))
    for stack in STACKS
}

FAMILY = PairFamily(
    model_type="bart",
    **_STACKS,
    config=bart_joined(*one_table()),
    weights=[
        shared_table(),
        *bart_weights(NORMS_POST, embedding_norm=True, final_norm=False, computed_positions=False),
    ],
)
