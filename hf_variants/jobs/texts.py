"""Texts that an option of a command names: whole files, and documents.

Notable here: errors name the option as it was typed, not the key of a recipe that reads the same.
"""

import re
from pathlib import Path


def utf8(path, option):
    """The text of a file. Raises ValueError where there is none, or other bytes than text."""
    if not Path(path).is_file():
        raise ValueError(f"{option} {str(path)!r} is not a file")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{option} {str(path)!r} is not UTF-8 text: {error}") from None
    if "\0" in text:
        raise ValueError(f"{option} {str(path)!r} is binary, not text: it holds zero bytes")
    return text


def documents(path, option):
    """The documents (list of str, none blank) of what `training.documents` reads, or of a text file of any other ending.

    Raises:
        ValueError: for what cannot be read or holds no text.
    """
    from ..training.documents import read_documents
    from ..training.sources import files_of
    from ..training.specs import DataSpec

    try:
        if Path(path).is_file() and files_of(path) is None:
            found = [part for part in re.split(r"\n\s*\n", utf8(path, option)) if part.strip()]
            if not found:
                raise ValueError(f"{option} {path!r} holds no document with text")
            return found
        return list(read_documents(DataSpec(source=path)))
    except ValueError as error:
        # the keys of a recipe, and nothing of a path that looks like one
        text = re.sub(r"\bdata\.source(?:=|(?= ))", lambda key: f"{option}{' ' * key[0].endswith('=')}", str(error))
        raise ValueError(re.sub(r"\bdata\.(?=\w+=)", "", text)) from None
