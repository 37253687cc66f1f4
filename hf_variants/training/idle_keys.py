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
