"""mT5: T5 v1.1 with another vocabulary, whose logits are never scaled; whether the head is its own is told by the weights."""

from hf_variants.convert.config_map import Always
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import joined, t5_stack, t5_weights

FAMILY = PairFamily(
    model_type="mt5",
    encoder=t5_stack("num_layers"),
    decoder=t5_stack("num_decoder_layers"),
    config=joined(Always(share_embeddings=True)),
    weights=t5_weights(),
    head_told_by_weights=True,
)
