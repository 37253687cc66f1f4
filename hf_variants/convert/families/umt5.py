"""UMT5: mT5 with a relative bias in every layer and logits that are always scaled; the weights tell of a head of its own.

The flag of tying, by which natively logits are scaled, is always true there, whatever the weights are.
"""

from hf_variants.convert.config_map import Always, Both
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import joined, t5_stack, t5_weights

_PER_LAYER = Always(relative_attention_per_layer=True)

FAMILY = PairFamily(
    model_type="umt5",
    encoder=[*t5_stack("num_layers"), _PER_LAYER],
    decoder=[*t5_stack("num_decoder_layers"), _PER_LAYER, Both(lambda native: {"logits_scaling": native.d_model**0.5})],
    config=joined(Always(share_embeddings=True), Both(lambda native: {"tie_word_embeddings": True})),
    weights=t5_weights(bias_of_layers=True),
    head_told_by_weights=True,
)
