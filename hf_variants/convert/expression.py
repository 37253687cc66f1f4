"""Which native families can express a VariantsConfig, and which toggles stand in the way of the others.

Notable here: a refusal names every such toggle, also where the written native config is one that nobody can read, and then the
families that could take the model: for the whole config where there are any, else toggle by toggle.
"""

from math import inf

from hf_variants.convert.meaning import differences
from hf_variants.convert.registry import known_families

_SHOWN = 6


class Inexpressible(ValueError):
    """A family that cannot express a config; `lost` holds the toggles: {name: (value, what the family means instead)}."""

    def __init__(self, model_type, lost, reason=None):
        self.model_type, self.lost = model_type, lost
        listed = ", ".join(f"{name}={mine!r} ({model_type} means {theirs!r})" for name, (mine, theirs) in lost.items())
        reason = None if reason is None else f"this config: {reason}" if not lost else f"natively: {reason}"
        super().__init__(f"{model_type} cannot express {'; '.join(part for part in (listed, reason) if part)}")

    @property
    def count(self):
        """How many toggles stand in the way; inf where that is not known."""
        return len(self.lost) or inf


def lost_toggles(config, again):
    """{name: (value, what `again` means)} of the toggles in which two configs mean different models.

    A field that is written alike on both sides and only means something else through another one is left out.
    """
    found = differences(config, again)
    unequal = {name: pair for name, pair in found.items() if pair[0] != pair[1]}
    return unequal or found


def families_like(config):
    """The known families with as many stacks as `config`, in the order in which they are tried."""
    return [found for found in known_families() if found.two_stacks == (len(config.stacks) > 1)]


def who_could(config, lost, write):
    """Text that names the families that can express the whole config, or else each of the `lost` toggles.

    Args:
        write: `write(family, config)`, which raises `Inexpressible`.
    """
    fitting, blocked = [], {}
    for found in families_like(config):
        try:
            write(found, config)
            fitting.append(found.model_type)
        except Inexpressible as error:
            blocked[found.model_type] = error.lost
    if fitting:
        return f"families that can: {_some(fitting)}"
    parts = []
    for name in lost:
        able = [family for family, stops in blocked.items() if stops and name not in stops]
        parts.append(f"{name} by {_some(able)}" if able else f"{name} by none found")
    return f"no known family can express all of it; taken alone, {'; '.join(parts)}" if parts else "no known family can"


def _some(names):
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
