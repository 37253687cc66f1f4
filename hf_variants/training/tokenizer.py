"""Byte-level BPE tokenizers that AutoTokenizer reads back with equal ids.

Notable here: every byte is in the alphabet, so no text is unknown (Chinese, emoji, tabs and trailing blanks survive a
round trip); the bos token is part of the tokenizer's template, so prompts begin as training documents did.
"""

from pathlib import Path

from .errors import first_line

# objectives of models that read one text and write another
ENCODER_DECODERS = ("span_corruption", "seq2seq")


def train_tokenizer(texts, spec, objective="clm", sentinels=()):
    """Train a byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909; bytes as in GPT-2) on an iterable of str.

    Args:
        texts: documents.
        spec: `TokenizerSpec` with vocab_size, min_frequency and the special tokens.
        objective: of the model. Encoders (`mlm`) have the mask token. Encoder-decoders (`span_corruption`, `seq2seq`) have no
            bos token, and every text ends with eos, as T5's do.
        sentinels: further special tokens, for span corruption.

    Returns:
        PreTrainedTokenizerFast; `len(tokenizer)` is at most spec.vocab_size (less where the text is too small).

    Raises:
        ValueError: when vocab_size cannot hold the 256 bytes and the special tokens, or special tokens coincide.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = special_tokens(spec, objective, sentinels)
    pairs = objective in ENCODER_DECODERS
    core = Tokenizer(models.BPE())
    # Digits apart keep numbers compositional (Llama); the GPT-2 pattern inside ByteLevel splits words from blanks.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=spec.min_frequency,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer=trainer)
    core.post_processor = _template(core, "$A", spec.eos_token) if pairs else _template(core, spec.bos_token, "$A")
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=None if pairs else spec.bos_token,
        eos_token=spec.eos_token,
        pad_token=spec.pad_token,
        mask_token=spec.mask_token if objective == "mlm" else None,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(path):
    """AutoTokenizer from a directory or Hub id. Raises ValueError when there is none, or when it has no eos token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = first_line(error)
        if reason.rstrip().endswith(":"):
            # what follows lists ways of transformers to build one, none of which is the matter
            reason = "it has no tokenizer.json, nor other files that one is built from"
        raise ValueError(f"tokenizer.path={str(path)!r} holds no tokenizer: {reason}") from None
    if tokenizer.eos_token_id is None:
        raise ValueError(f"tokenizer.path={str(path)!r} has no eos token; documents need one to end with")
    return tokenizer


def is_tokenizer_directory(directory):
    """Whether a directory holds a fast tokenizer written in full."""
    return all((Path(directory) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))


def special_tokens(spec, objective="clm", sentinels=()):
    """The special tokens of a tokenizer that is trained by a `TokenizerSpec`.

    Raises:
        ValueError: where they coincide, the vocabulary cannot hold them, or one is named that this objective does not use.
    """
    pairs = objective in ENCODER_DECODERS
    if pairs and spec.bos_token != type(spec)().bos_token:
        raise ValueError(
            f"tokenizer.bos_token={spec.bos_token!r} has no effect with an encoder-decoder, whose decoder begins with the "
            "model's decoder_start_token_id; leave it out"
        )
    special = [] if pairs else [spec.bos_token]
    special += [spec.eos_token, spec.pad_token] + ([spec.mask_token] if objective == "mlm" else [])
    special += sentinels
    if len(set(special)) != len(special):
        raise ValueError(f"tokenizer: its special tokens must differ; got {special}")
    least = 256 + len(special)
    if spec.vocab_size < least:
        raise ValueError(
            f"tokenizer.vocab_size={spec.vocab_size} must be at least {least} (256 bytes and {len(special)} special tokens)"
        )
    return special


def _template(core, *parts):
    """A post-processor that puts a special token before or behind every text: `parts` are it and $A, in their order."""
    from tokenizers import processors

    special = next(part for part in parts if part != "$A")
    pair = [f"{part.replace('$A', '$B')}:1" for part in parts]
    return processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=" ".join(parts),
                pair=" ".join([*parts, *pair]),
                special_tokens=[(special, core.token_to_id(special))],
            ),
        ]
    )
