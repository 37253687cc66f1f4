"""Small tokenizers whose rules a wrong tokenizer class would replace, and texts on which that shows."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HARD_TEXTS = [
    "In the beginning God created the heaven and the earth.",
    "起初　神創造天地。地是空虛混沌，",
    "🙂👩‍👩‍👧‍👦🇨🇭 naïve Ångström",
    "  two  spaces\tand\n\n  lines\r\n end ",
    "def f(x):\n    return x**2  # 12345",
]
SPECIAL = ["<pad>", "<s>", "</s>"]


def _finished(tokenizer, **names):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", **names)


def byte_level_bpe(size=330):
    """Byte-level BPE with digits cut one by one; every text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(HARD_TEXTS, trainer)
    return _finished(tokenizer)


def metaspace_bpe(size=200):
    """BPE on words that begin with a metaspace, with an unknown token, as SentencePiece models have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[*SPECIAL, "<unk>"], show_progress=False)
    tokenizer.train_from_iterator(HARD_TEXTS, trainer)
    return _finished(tokenizer, unk_token="<unk>")
