"""Which class reads the tokenizer of a converted folder: the one that reads it in the source.

AutoTokenizer chooses by the class that `tokenizer_config.json` names and by the model type, which conversion changes: for some
types it passes over a wrong name, for others it knows the class where none is named (BERT, with a mask token of its class).

Notable here: both folders are asked, and only where the answers differ is the class written down, in the one file that is then
no copy of the source's.
"""

import json
from pathlib import Path

_CONFIG = "tokenizer_config.json"
_FILES = (_CONFIG, "tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")


def name_tokenizer_class(source, target):
    """Have AutoTokenizer take the class for folder `target` that it takes for folder `source`.

    Both hold config and tokenizer files.

    Returns:
        The name of the class that was written into `target`'s tokenizer_config.json, or None where nothing had to be.
    """
    source, target = Path(source), Path(target)
    if not any((source / name).is_file() for name in _FILES):
        return None
    wanted = _class_of(source)
    if wanted is None or wanted == _class_of(target):
        return None
    path = target / _CONFIG
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    settings = {} if before is None else json.loads(before)
    path.write_text(json.dumps({**settings, "tokenizer_class": wanted}, indent=2, ensure_ascii=False), encoding="utf-8")
    if _class_of(target) == wanted:
        return wanted
    # a native type that chooses for itself: the file stays the author's
    if before is None:
        path.unlink()
    else:
        path.write_text(before, encoding="utf-8")
    return None


def said_of_tokenizer(named, kept):
    """What a report says of the class that was written (None: nothing): its file is none of the `kept` copies any more."""
    return {} if named is None else {"tokenizer_class": named, "kept": [name for name in kept if name != _CONFIG]}


def _class_of(folder):
    """Name of the class that reads the tokenizer of a folder; None where none does, or where it is code of its own."""
    from transformers import AutoTokenizer

    path = folder / _CONFIG
    if path.is_file() and "auto_map" in json.loads(path.read_text(encoding="utf-8")):
        return None
    try:
        return type(AutoTokenizer.from_pretrained(folder)).__name__
    except Exception:  # a tokenizer that does not load fails in as many ways as there are classes
        return None
