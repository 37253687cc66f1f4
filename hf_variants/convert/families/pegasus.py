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
    sinusoids,
    stored_sinusoids,
)
from hf_variants.convert.weight_rules import rename

_SCOPES = {"encoder": "input_ids", "decoder": "inputs_embeds"}

FAMILY = PairFamily(
    model_type="pegasus",
    **{stack: bart_stack(stack, sinusoids(), pre_norms(), scale_embedding(_SCOPES[stack])) for stack in STACKS},
    config=bart_joined(*one_table()),
    weights=[
        rename("model.shared.weight", "model.decoder.embed_tokens.weight"),
        *stored_sinusoids(),
        *bart_weights(NORMS_PRE, embedding_norm=False, final_norm=True, computed_positions=True),
    ],
)
