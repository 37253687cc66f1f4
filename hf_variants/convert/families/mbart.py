"""mBART: BART with norms before the branches and behind each stack; decoder inputs begin with the last label."""

from hf_variants.convert.config_map import Always
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

_MORE = (learned_positions(), pre_norms(), Always(embedding_norm=True), scale_embedding("input_ids"))

FAMILY = PairFamily(
    model_type="mbart",
    **{stack: bart_stack(stack, *_MORE) for stack in STACKS},
    config=bart_joined(*one_table(), Always(decoder_start="last_token")),
    weights=[
        shared_table(),
        *bart_weights(NORMS_PRE, embedding_norm=True, final_norm=True, computed_positions=False),
    ],
)
