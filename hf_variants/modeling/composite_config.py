"""A config made of whole configs: what encoder-decoders, image encoders and vision-language models share.

Notable here: parts are built by class and may come as dicts; a misspelt key is an error that names the closest one; the
folder of code travels with the config, as with `VariantsConfig`.
"""

from dataclasses import fields
from typing import ClassVar, get_origin

from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .config_checks import LIBRARY_KEYS, generation_keys
from .room import copy_room
from .vocabulary import nearest

logger = logging.get_logger(__name__)


class CompositeConfig(PreTrainedConfig):
    """Base of the configs whose fields are configs themselves; subclasses declare fields, `sub_configs` and `check`."""

    # {field: class of the config that stands there}
    sub_configs: ClassVar[dict] = {}

    def refuse_unknown(self, kwargs):
        """Raise a ValueError for a key that is neither a field of this config nor one of transformers'."""
        for key in kwargs:
            if key not in (LIBRARY_KEYS | generation_keys()) and not key.startswith("_"):
                raise ValueError(
                    f"{type(self).__name__} has no key {key!r}{nearest(key, self.own_fields())}. Known keys: "
                    f"{', '.join(sorted(self.own_fields()))}"
                )

    @classmethod
    def own_fields(cls):
        """Names of the fields that this config itself declares, its parts among them."""
        return [name for name, annotation in cls.__annotations__.items() if get_origin(annotation) is not ClassVar]

    def check(self):
        """Refuse what this config cannot mean; subclasses extend it. Called when the config and when a model is made."""
        for name in self.unknown_attributes():
            if meant := nearest(name, self.own_fields()):
                raise ValueError(f"config.{name} is no key of {type(self).__name__}{meant}; remove it")
        for name in self.sub_configs:
            part = getattr(self, name)
            if hasattr(part, "check"):
                part.check()

    def unknown_attributes(self):
        """Names of public attributes that neither this config nor transformers knows, as a misspelt key leaves behind."""
        known = {field.name for field in fields(self)} | (LIBRARY_KEYS | generation_keys())
        return [name for name in vars(self) if name not in known and not name.startswith("_")]

    def validate(self):
        """Called by transformers before saving."""
        self.validate_output_attentions()
        self.check()

    def save_pretrained(self, save_directory, *args, **kwargs):
        """As transformers', with the code that `auto_map` names beside it; attributes that could not be loaded stay out."""
        unknown = {name: vars(self)[name] for name in self.unknown_attributes()}
        for name in unknown:
            logger.warning(
                f"config.{name} is no key of {type(self).__name__}{nearest(name, self.own_fields())} and is not saved"
            )
            delattr(self, name)
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            vars(self).update(unknown)
        copy_room(__file__, save_directory)

    def _upload_modified_files(self, working_dir, *args, **kwargs):
        # transformers uploads from within save_pretrained
        copy_room(__file__, working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    # transformers' own RoPE and layer checks look for keys that stand in the parts
    def convert_rope_params_to_dict(self, **kwargs):
        return kwargs

    def standardize_rope_params(self):
        return None

    def validate_rope(self, *args, **kwargs):
        return None

    def validate_layer_type(self):
        return None
