"""MVP: BART's layers, pretrained on tasks; the prompts that it may put before every layer's keys have no toggle."""

from hf_variants.convert.config_map import Refuse
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
_PROMPTS = Refuse(
    "use_prompt",
    lambda native: native.use_prompt,
    "it puts trained keys and values before those of every layer, which ours does not; set it to False",
)

FAMILY = PairFamily(
    model_type="mvp",
    **{stack: bart_stack(stack, *_MORE) for stack in STACKS},
    config=bart_joined(*one_table(), _PROMPTS),
    weights=[
        shared_table(),
        *bart_weights(NORMS_POST, embedding_norm=True, final_norm=False, computed_positions=False),
    ],
)
