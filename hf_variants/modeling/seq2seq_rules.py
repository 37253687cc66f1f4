"""The table of what an encoder-decoder config may not be, each rule with its reason; as `config_rules` has for one stack."""

from .rule import Rule

# fields of a stack that act in a head alone, and what they are where they do nothing
HEAD_FIELDS = {
    "lm_head_act": None,
    "lm_head_bias": False,
    "final_logit_softcapping": None,
    "logits_scaling": 1.0,
    "pooler": False,
    "tie_word_embeddings": False,
}


def _special_tokens(c):
    eos = c.eos_token_id if isinstance(c.eos_token_id, list) else [c.eos_token_id]
    return [token for token in (c.pad_token_id, c.bos_token_id, *eos, c.decoder_start_token_id) if token is not None]


SEQ2SEQ_RULES = [
    Rule(
        "the encoder sees both sides",
        lambda c: c.encoder.is_causal,
        "encoder.is_causal=True hides the right side of each token; an encoder needs is_causal=False",
    ),
    Rule(
        "the decoder predicts the next token",
        lambda c: not c.decoder.is_causal,
        "decoder.is_causal=False lets every token see the one it predicts; a decoder needs is_causal=True",
    ),
    Rule(
        "the decoder attends to the encoder",
        lambda c: not c.decoder.add_cross_attention,
        "decoder.add_cross_attention=False leaves the encoder without effect; a decoder needs add_cross_attention=True",
    ),
    Rule(
        "cross-attention reads what the encoder gives",
        lambda c: c.decoder.add_cross_attention and c.decoder.cross_attention_hidden_size != c.encoder.hidden_size,
        "decoder.cross_attention_hidden_size={c.decoder.cross_attention_hidden_size} differs from encoder.hidden_size="
        "{c.encoder.hidden_size}; leave it unset",
    ),
    Rule(
        "the encoder attends to nothing else",
        lambda c: c.encoder.add_cross_attention,
        "encoder.add_cross_attention=True needs states of a third stack, which there is not; set it to False",
    ),
    Rule(
        "the head stands on the decoder",
        lambda c: any(getattr(c.encoder, name) != unset for name, unset in HEAD_FIELDS.items()),
        "encoder.lm_head_act={c.encoder.lm_head_act!r}, lm_head_bias={c.encoder.lm_head_bias}, final_logit_softcapping="
        "{c.encoder.final_logit_softcapping}, logits_scaling={c.encoder.logits_scaling}, pooler={c.encoder.pooler} and "
        "tie_word_embeddings={c.encoder.tie_word_embeddings} act in a head, which an encoder here does not have; set them on "
        "the decoder, or leave them unset",
    ),
    Rule(
        "decoder inputs have a beginning",
        lambda c: c.decoder_start == "token" and c.decoder_start_token_id is None,
        "decoder_start_token_id=None: decoder inputs are the labels moved one to the right behind this token; set it (T5: the "
        "pad token 0; BART: the end of text 2), or decoder_start='last_token' (mBART)",
    ),
    Rule(
        "the last token is told from pads",
        lambda c: c.decoder_start == "last_token" and c.pad_token_id is None,
        "decoder_start='last_token' moves the last label that is no pad to the front, but pad_token_id=None; set pad_token_id",
    ),
    Rule(
        "special tokens lie in the vocabulary of the decoder",
        lambda c: not all(0 <= token < c.decoder.vocab_size for token in _special_tokens(c)),
        "pad_token_id={c.pad_token_id}, bos_token_id={c.bos_token_id}, eos_token_id={c.eos_token_id} and "
        "decoder_start_token_id={c.decoder_start_token_id} must be None or lie in [0, decoder.vocab_size="
        "{c.decoder.vocab_size})",
    ),
    Rule(
        "one table serves one vocabulary",
        lambda c: (
            c.share_embeddings
            and (c.encoder.vocab_size, c.encoder.embedding_size) != (c.decoder.vocab_size, c.decoder.embedding_size)
        ),
        "share_embeddings=True needs tables of one size, but the encoder has vocab_size={c.encoder.vocab_size} and "
        "embedding_size={c.encoder.embedding_size}, the decoder {c.decoder.vocab_size} and {c.decoder.embedding_size}",
    ),
    Rule(
        "the tied head is told by the whole",
        lambda c: c.decoder.tie_word_embeddings != c.tie_word_embeddings,
        "decoder.tie_word_embeddings={c.decoder.tie_word_embeddings} differs from tie_word_embeddings="
        "{c.tie_word_embeddings} of the whole; leave one of them unset",
    ),
]


def check_seq2seq_rules(config):
    """Raise a ValueError for the first rule of `SEQ2SEQ_RULES` that `config` breaks."""
    for rule in SEQ2SEQ_RULES:
        if rule.broken(config):
            raise ValueError(rule.text.format(c=config))
