"""Pegasus: norms before the branches and behind each stack, sinusoidal positions that are stored though not trained."""

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
    sinusoids,
    stored_sinusoids,
)

_SCOPES = {"encoder": "input_ids", "decoder": "inputs_embeds"}

FAMILY = PairFamily(
    model_type="pegasus",
    **{stack: bart_stack(stack, sinusoids(), pre_norms(), scale_embedding(_SCOPES[stack])) for stack in STACKS},
    config=bart_joined(*one_table()),
    weights=[
        shared_table(),
        *stored_sinusoids(),
        *bart_weights(NORMS_PRE, embedding_norm=False, final_norm=True, computed_positions=True),
    ],
)
