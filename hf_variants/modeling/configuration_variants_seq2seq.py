"""The config of an encoder-decoder: two full `VariantsConfig`s and what joins them.

Notable here: each stack has every toggle of the family; what the other half fixes (direction, cross-attention and its width,
the tied head) is filled in where it is left out and refused where it contradicts.
"""

import copy
from typing import ClassVar

from .composite_config import CompositeConfig
from .config_checks import check_choice, check_types
from .configuration_variants import VariantsConfig
from .seq2seq_rules import check_seq2seq_rules

_AUTO_MAP = {
    "AutoConfig": "configuration_variants_seq2seq.VariantsSeq2SeqConfig",
    "AutoModel": "modeling_variants_seq2seq.VariantsSeq2SeqModel",
    "AutoModelForSeq2SeqLM": "modeling_variants_seq2seq.VariantsForSeq2SeqLM",
}


class VariantsSeq2SeqConfig(CompositeConfig):
    r"""Config of an encoder-decoder (Vaswani et al. 2017, arXiv:1706.03762 §3).

    Args:
        encoder, decoder: `VariantsConfig`s, or dicts of their keys. The encoder has `is_causal=False`; the decoder is causal
            and has `add_cross_attention=True`, with the encoder's `hidden_size` as `cross_attention_hidden_size`: these are
            filled in.
        tie_word_embeddings: whether the head is the decoder's token table; None takes what the decoder says.
        share_embeddings: whether both stacks have one token table.
        decoder_start: how decoder inputs begin when they are made of labels: `token` or `last_token`.
        decoder_start_token_id: the token that decoder inputs begin with; `decoder_start="token"` and generation need it.
        final_logits_bias: whether a constant per token, which no gradient changes, is added in the head (BART).
        pad_token_id, bos_token_id, eos_token_id: of what is generated; None takes the decoder's.

    Raises:
        ValueError: as `VariantsConfig`, for either stack; and for what `seq2seq_rules.SEQ2SEQ_RULES` refuses of both together.
    """

    model_type = "variants_seq2seq"
    sub_configs: ClassVar[dict] = {"encoder": VariantsConfig, "decoder": VariantsConfig}
    keys_to_ignore_at_inference: ClassVar[list] = [
        *("past_key_values", "encoder_last_hidden_state", "encoder_router_logits", "decoder_router_logits"),
        *("encoder_aux_loss", "decoder_aux_loss", "encoder_z_loss", "decoder_z_loss"),
    ]

    encoder: dict | VariantsConfig | None = None
    decoder: dict | VariantsConfig | None = None
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool | None = None
    share_embeddings: bool = False
    decoder_start: str = "token"
    decoder_start_token_id: int | None = None
    final_logits_bias: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list | None = None
    use_cache: bool = True
    # what a native family stores that no toggle of this family means; written back by `convert.to_native`
    native: dict | None = None

    def __post_init__(self, **kwargs):
        self.refuse_unknown(kwargs)
        told = isinstance(self.decoder, dict) and "tie_word_embeddings" in self.decoder
        self.encoder = _stack("encoder", self.encoder, is_causal=False)
        width = self.encoder.hidden_size
        self.decoder = _stack("decoder", self.decoder, add_cross_attention=True, cross_attention_hidden_size=width)
        if self.tie_word_embeddings is None:
            self.tie_word_embeddings = self.decoder.tie_word_embeddings
        elif self.tie_word_embeddings and not told:
            self.decoder.tie_word_embeddings = True
            self.decoder.check()
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(self.decoder, name))
        super().__post_init__(**kwargs)
        self.auto_map = {**_AUTO_MAP, **(getattr(self, "auto_map", None) or {})}
        self.check()

    def check(self):
        """Refuse what the family cannot mean. Raises ValueError; called when the config and when a model is made."""
        own = {
            name: kind for name, kind in VariantsSeq2SeqConfig.__annotations__.items() if name not in ("encoder", "decoder")
        }
        check_types(self, own)
        check_choice("decoder_start", self.decoder_start)
        super().check()
        check_seq2seq_rules(self)

    @property
    def vocab_size(self):
        """Of what is generated: the decoder's."""
        return self.decoder.vocab_size

    @property
    def hidden_size(self):
        """Of what the head reads: the decoder's."""
        return self.decoder.hidden_size

    @property
    def max_position_embeddings(self):
        """Of what is generated: the decoder's."""
        return self.decoder.max_position_embeddings

    @property
    def initializer_range(self):
        """For what stands outside the stacks: the decoder's."""
        return self.decoder.initializer_range


def _stack(name, given, **fixed):
    """The config of one stack from a dict, a config (copied) or None, with `fixed` where it does not say them."""
    if given is None:
        return VariantsConfig(**fixed)
    if isinstance(given, dict):
        kind = given.get("model_type", VariantsConfig.model_type)
        if kind != VariantsConfig.model_type:
            raise ValueError(
                f"{name}.model_type={kind!r} is no stack of this family; it must be {VariantsConfig.model_type!r}"
            )
        if given.get("add_cross_attention") is False:
            fixed.pop("cross_attention_hidden_size", None)
        try:
            return VariantsConfig(**{**fixed, **{key: value for key, value in given.items() if key != "model_type"}})
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if getattr(given, "model_type", None) != VariantsConfig.model_type:
        raise ValueError(f"{name}={given!r} must be a VariantsConfig or a dict of its keys")
    stack = copy.deepcopy(given)
    # a config of its own says nothing of the other stack
    for key in ("add_cross_attention", "cross_attention_hidden_size"):
        if key in fixed and not given.add_cross_attention:
            setattr(stack, key, fixed[key])
    return stack


__all__ = ["VariantsSeq2SeqConfig"]
