"""The configs that a command puts side by side: sources, `KEY=VALUE` words that change all of them, and `--vary` options.

Notable here: each has a name of its own, by which it stands in tables and figures; one that is given twice is refused.
"""

import re

from ..training.spec_parsing import parse_words


def sources_and_words(arguments):
    """Arguments apart into sources and {key: value} of the `KEY=VALUE` words. Raises ValueError where no source is left."""
    words = [text for text in arguments if re.match(r"[A-Za-z_][\w.]*=", text)]
    sources = [text for text in arguments if text not in words]
    if not sources:
        raise ValueError(
            f"{' '.join(words)} changes a config, and none is named; give a preset, a .json, a folder or a Hub id"
        )
    return sources, dict(parse_words(words))


def compared_configs(sources, changed, vary=None):
    """{name: config} of sources, each with the keys of `changed`, and of the first once more for each `--vary` option.

    Raises:
        ValueError: a name or a key that is given twice, or as `read_config`.
    """
    from ..convert.config_source import read_config

    named = [(source, source, {}) for source in sources]
    for words in vary or ():
        name, keys = _labelled(words)
        named.append((name, sources[0], _once(_apart(keys), f"--vary {words}")))
    names = [name for name, _, _ in named]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} names two configs; give each --vary a name of its own, as in NAME:KEY=VALUE")
    return {name: read_config(source, **{**changed, **keys}) for name, source, keys in named}


def _labelled(words):
    """(name, `KEY=VALUE,...`) of a `--vary` option, whose name stands before a colon or is the words themselves."""
    name, colon, keys = words.partition(":")
    return (name, keys) if colon and "=" not in name else (words, words)


def _apart(words):
    """`a=1,b=2` apart at the commas that a key follows, so that lists keep theirs."""
    return re.split(r",(?=[\w.]+=)", words)


def _once(words, where):
    pairs = parse_words(words)
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"{where} gives {key} twice; leave one of them out")
    return dict(pairs)
