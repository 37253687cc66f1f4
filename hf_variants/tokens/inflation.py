"""Tokens per character and per byte of any tokenizer, language by language.

Notable here: the shipped texts say the same in every language, so `inflation` compares equal content, which tokens per
character cannot (a Chinese character holds more than a Latin letter); a tokenizer that loses text is reported, since its
counts are too small.
"""

import json
from importlib.resources import files


def sample_texts():
    """{language: text} of the shipped parallel texts and a piece of Python; short, so figures of your own text are better."""
    return json.loads(files(__package__).joinpath("samples.json").read_text(encoding="utf-8"))["texts"]


def tokenizer_report(tokenizers, texts=None, reference="english"):
    """Rows, one per tokenizer and text.

    Args:
        tokenizers: {name: tokenizer}; anything whose call returns `input_ids`, as those of transformers do.
        texts: {language: text}; default `sample_texts()`.
        reference: text that `inflation` divides by; None or a missing one leaves it out. Only meaningful for texts that
            say the same.

    Returns:
        list of {"tokenizer", "vocabulary", "language", "characters", "bytes", "tokens", "tokens_per_character",
        "tokens_per_byte", "characters_per_token", "unknown", "lossless", "inflation"}; special tokens are not counted.

    Raises:
        ValueError: for no tokenizer, or an empty text.
    """
    texts = sample_texts() if texts is None else texts
    if not tokenizers:
        raise ValueError("tokenizers is empty; name at least one")
    for language, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"texts[{language!r}] is empty; every language needs text")
    rows = []
    for name, tokenizer in tokenizers.items():
        own = [_row(name, tokenizer, language, text) for language, text in texts.items()]
        base = next((row["tokens"] for row in own if row["language"] == reference), None)
        for row in own:
            code = row["language"] == "code"  # says something else than the reference does
            row["inflation"] = row["tokens"] / base if base and not code else None
        rows.extend(own)
    return rows


def _row(name, tokenizer, language, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    characters, size = len(text), len(text.encode("utf-8"))
    unknown = getattr(tokenizer, "unk_token_id", None)
    return {
        "tokenizer": name,
        "vocabulary": len(tokenizer),
        "language": language,
        "characters": characters,
        "bytes": size,
        "tokens": len(ids),
        "tokens_per_character": len(ids) / characters,
        "tokens_per_byte": len(ids) / size,
        "characters_per_token": characters / len(ids) if ids else None,
        "unknown": 0 if unknown is None else sum(1 for token in ids if token == unknown),
        "lossless": _same(tokenizer.decode(ids), text),
    }


def _same(decoded, text):
    """Equal but for blanks at the ends, which sentencepiece adds."""
    return decoded.strip() == text.strip()
