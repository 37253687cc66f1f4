"""Families that are BART with one thing or another changed: where norms stand, what a position is, how the decoder begins.

Notable here: both stacks have the same rules; families whose stacks or tables differ (Marian, Pegasus) are made by hand.
"""

from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import (
    NORMS_POST,
    NORMS_PRE,
    STACKS,
    bart_joined,
    bart_stack,
    bart_weights,
    learned_positions,
    one_table,
    post_norms,
    pre_norms,
    scale_embedding,
    shared_table,
)


def bart_family(model_type, *whole, offset=2, positions=(), norms_first=False, embedding_norm=True, logits_bias=True):
    """The `PairFamily` of one of BART's kin.

    Args:
        model_type: transformers' name of it.
        whole: config rules of what joins the stacks, beside those of all.
        offset: of learned positions, in rows; None where positions are computed, as `positions` says.
        positions: config rules of them.
        norms_first: whether norms stand before the branches and behind each stack, and not behind each sum.
        embedding_norm: whether embeddings are normed.
        logits_bias: whether constants are added to the logits.
    """
    norms = pre_norms(embedding_norm) if norms_first else post_norms(embedding_norm)
    places = positions if offset is None else [learned_positions(offset)]
    more = (*places, norms, scale_embedding("input_ids"))
    return PairFamily(
        model_type=model_type,
        **{stack: bart_stack(stack, *more) for stack in STACKS},
        config=bart_joined(*one_table(), *whole, logits_bias=logits_bias),
        weights=[
            shared_table(),
            *bart_weights(
                NORMS_PRE if norms_first else NORMS_POST,
                embedding_norm=embedding_norm,
                final_norm=norms_first,
                computed_positions=offset is None,
            ),
        ],
    )
