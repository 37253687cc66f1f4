"""A config made of whole configs: what encoder-decoders, image encoders and vision-language models share.

Notable here: parts are built by class and may come as dicts, and each is checked with the whole.
"""

from typing import ClassVar

from .family_config import FamilyConfig


class CompositeConfig(FamilyConfig):
    """Base of the configs whose fields are configs themselves; subclasses declare fields, `sub_configs` and `check`."""

    # {field: class of the config that stands there}
    sub_configs: ClassVar[dict] = {}

    @property
    def stacks(self):
        """The configs of the family's stacks among the parts, in their order."""
        parts = (getattr(self, name) for name in self.sub_configs)
        return tuple(stack for part in parts for stack in getattr(part, "stacks", ()))

    def check(self):
        """Refuse what this config cannot mean; subclasses extend it. Called when the config and when a model is made."""
        self.refuse_misspelt()
        for name in self.sub_configs:
            part = getattr(self, name)
            if hasattr(part, "check"):
                part.check()
