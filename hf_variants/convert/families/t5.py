"""T5: relative bias, scores without a scale, RMSNorm; v1.0 has a tied and scaled head, v1.1 gates and a head of its own.

The flag of tying is always true natively; whether the head is its own is told by the weights. Of a config alone, that of v1.0
is taken for tied and that of v1.1 for a table of its own, as they were published.
"""

from hf_variants.convert.config_map import Always, Both
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import joined, t5_stack, t5_weights


def _read_scale(native):
    return {"logits_scaling": native.d_model**0.5 if native.scale_decoder_outputs else 1.0}


def _write_scale(config):
    return {"tie_word_embeddings": config.logits_scaling != 1}


FAMILY = PairFamily(
    model_type="t5",
    encoder=t5_stack("num_layers"),
    decoder=[*t5_stack("num_decoder_layers"), Both(_read_scale, _write_scale)],
    config=joined(Always(share_embeddings=True), Both(lambda native: {"tie_word_embeddings": native.scale_decoder_outputs})),
    weights=t5_weights(),
    needs={"decoder_start_token_id": 0},
    head_told_by_weights=True,
)
