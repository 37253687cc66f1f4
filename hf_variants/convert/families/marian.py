"""Marian: post-LN without norms on the embeddings, sinusoidal positions, one vocabulary for both stacks or one for each."""

from hf_variants.convert.config_map import Both
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import (
    NORMS_POST,
    bart_joined,
    bart_stack,
    bart_weights,
    post_norms,
    scale_embedding,
    shared_table,
    sinusoids,
    stored_sinusoids,
)
from hf_variants.convert.weight_rules import keep, only_if

_SCOPES = {"encoder": "input_ids", "decoder": "inputs_embeds"}


def _read_tables(native):
    if native.share_encoder_decoder_embeddings and not native.tie_word_embeddings:
        raise ValueError(
            "marian with tie_word_embeddings=False and share_encoder_decoder_embeddings=True cannot be converted: its table "
            "`shared` feeds nothing then and has no place here; set the first to True"
        )
    return {"tie_word_embeddings": native.tie_word_embeddings, "share_embeddings": native.share_encoder_decoder_embeddings}


def _write_tables(config):
    return {
        "tie_word_embeddings": config.tie_word_embeddings,
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "vocab_size": config.encoder.vocab_size,
        "decoder_vocab_size": config.decoder.vocab_size,
    }


def _stack(stack, *more):
    return bart_stack(stack, sinusoids(), post_norms(embedding_norm=False), scale_embedding(_SCOPES[stack]), *more)


FAMILY = PairFamily(
    model_type="marian",
    encoder=_stack("encoder"),
    decoder=_stack("decoder", Both(lambda native: {"vocab_size": native.decoder_vocab_size})),
    config=bart_joined(Both(_read_tables, _write_tables)),
    weights=[
        *only_if(lambda config: config.share_embeddings, shared_table()),
        *only_if(
            lambda config: not config.share_embeddings,
            *keep("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        ),
        *keep("lm_head.weight"),
        *stored_sinusoids(),
        *bart_weights(NORMS_POST, embedding_norm=False, final_norm=False, computed_positions=True),
    ],
)
