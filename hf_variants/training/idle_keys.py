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
