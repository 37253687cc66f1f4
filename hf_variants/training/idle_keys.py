"""Keys of a recipe that nothing would read, because of what another key chooses: they are refused, not ignored.

Notable here: a key is idle only where it differs from its default, so that a recipe may spell defaults out.
"""

from .spec_parsing import describe_keys


def changed_keys(spec):
    """{dotted key: value} of what differs from the defaults of a spec."""
    changed = {}
    for name, _, default, _ in describe_keys(type(spec)):
        value = spec
        for part in name.split("."):
            value = getattr(value, part)
        if ("null" if value is None else str(value)) != default:
            changed[name] = value
    return changed


def idle_tokenizer_keys(spec):
    """{dotted key: value} of what says how to train a tokenizer, of a spec whose tokenizer is loaded."""
    if spec.tokenizer.path is None and getattr(spec, "model_path", None) is None:
        return {}
    changed = changed_keys(spec).items()
    return {key: value for key, value in changed if key.startswith("tokenizer.") and key != "tokenizer.path"}


def refuse_idle_tokenizer_keys(spec):
    """Raise a ValueError for a changed key that says how to train a tokenizer, where one is loaded."""
    for key, value in idle_tokenizer_keys(spec).items():
        raise ValueError(f"{key}={value!r} has no effect: {bringer(spec)} brings the tokenizer; leave one of them out")


def bringer(spec):
    """The key, with its value, that brings the tokenizer of a spec."""
    path = spec.tokenizer.path
    return f"model_path={spec.model_path!r}" if path is None else f"tokenizer.path={path!r}"


def refuse_idle_keys(spec, owner, readers):
    """Raise a ValueError for a changed key that the choice of another key leaves without effect.

    Args:
        owner: name of the key that chooses.
        readers: {dotted key, or the section it stands in: the choices that read it}.
    """
    chosen = getattr(spec, owner)
    for name, value in changed_keys(spec).items():
        choices = readers.get(name) or readers.get(name.rpartition(".")[0])
        if choices and chosen not in choices:
            raise ValueError(f"{name}={value!r} has no effect with {owner}={chosen!r}; it is for {' and '.join(choices)}")


# what a source of documents of its own says in data.sources
_OF_ONE_SOURCE = ("subset", "split", "text_key", "max_documents")
_OF_A_SPLIT = ("eval_fraction", "split_seed")


def refuse_idle_data_keys(data, files_of):
    """Raise a ValueError for a changed key of a data section that the other keys of it leave without effect.

    Args:
        data: a section with `source` and `eval_source`, and perhaps `sources`.
        files_of: function of a source that gives its files, or None where it is a data set with subsets and splits.
    """
    sources = getattr(data, "sources", [])
    read = [source for source in (data.source, data.eval_source) if source]
    for name, value in changed_keys(data).items():
        if name in _OF_A_SPLIT and data.eval_source:
            reason = f"data.eval_source={data.eval_source!r} is what is held out"
        elif name in _OF_ONE_SOURCE and sources and not data.eval_source:
            reason = f"each of data.sources has a {name} of its own"
        elif name in ("subset", "split") and read and not any(files_of(source) is None for source in read):
            reason = f"data.source={read[0]!r} is no data set of `datasets`, which has some"
        elif name == "stopping_strategy" and all(source.weight is None for source in sources):
            reason = "no source has a weight"
        else:
            continue
        raise ValueError(f"data.{name}={value!r} has no effect: {reason}; leave one of them out")
