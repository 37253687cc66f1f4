"""What every config of the family shares: unknown keys are errors, presets by name, code that travels with a checkpoint.

Notable here: transformers keeps a misspelt key silently, as an attribute that does nothing.
"""

from dataclasses import fields
from typing import ClassVar, get_origin

from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .config_checks import LIBRARY_KEYS, generation_keys
from .room import copy_room
from .vocabulary import nearest

logger = logging.get_logger(__name__)

# What reads a preset's keys by its name: put here by the package that ships them, so that a copy of this folder that travelled
# with a checkpoint needs nothing from there.
PRESET_READERS = []


class FamilyConfig(PreTrainedConfig):
    """Base of the family's configs."""

    @classmethod
    def from_preset(cls, name, **overrides):
        """The config of a preset (`llama-3-8b`, `tiny/mla`, ...; `hf_variants.presets.list_presets()` names them all).

        Args:
            name: file in model_configs/, without its ending.
            overrides: single keys to replace.

        Raises:
            ValueError: for an unknown name, naming the closest; for an override that the config refuses; for a preset of
                another class of config; where the package that ships the presets is not imported.
        """
        if not PRESET_READERS:
            raise ValueError(
                f"preset {name!r} cannot be read: presets come with the package hf_variants; install and import it"
            )
        keys = PRESET_READERS[0](name)
        kind = keys.pop("model_type", "variants")
        if kind != cls.model_type:
            raise ValueError(
                f"preset {name!r} is of model_type {kind!r}, but {cls.__name__} is {cls.model_type!r}; "
                "hf_variants.presets.load_preset takes the class that it needs"
            )
        return cls(**{**keys, **overrides})

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """As transformers', but a field that is given beside the file stands in its place before anything follows from it:
        transformers sets it on the finished config, where None would stay None and a short form short. A part of a config may
        be given as a dict of the keys that change.

        Raises:
            ValueError: for fields that the config refuses together with those of the file.
        """
        fields_given = {name: kwargs.pop(name) for name in cls.own_fields() if name in kwargs}
        for name, value in fields_given.items():
            if name in cls.sub_configs and isinstance(value, dict):
                fields_given[name] = {**(config_dict.get(name) or {}), **value}
        return super().from_dict({**config_dict, **fields_given}, **kwargs)

    def check(self):
        """Refuse what this config cannot mean. Called when the config and when a model is made."""
        raise NotImplementedError

    def validate(self):
        """Called by transformers before saving; its own RoPE checks warn about rules that it does not know."""
        self.validate_output_attentions()
        self.check()

    # transformers standardises RoPE keys and warns; the family standardises its own and refuses what is wrong
    def convert_rope_params_to_dict(self, **kwargs):
        return kwargs

    def standardize_rope_params(self):
        return None

    def validate_rope(self, *args, **kwargs):
        return None

    def validate_layer_type(self):
        return None

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

    def unknown_attributes(self):
        """Names of public attributes that neither the family nor transformers knows, as a misspelt key leaves behind."""
        known = {field.name for field in fields(self)} | LIBRARY_KEYS | generation_keys()
        return [name for name in vars(self) if name not in known and not name.startswith("_")]

    def _upload_modified_files(self, working_dir, *args, **kwargs):
        # transformers uploads from within save_pretrained
        copy_room(__file__, working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    def refuse_unknown(self, kwargs, *more):
        """Raise a ValueError for a keyword that neither the family nor transformers knows, naming the closest; `more` are
        keys that are no fields.
        """
        self._refuse_unknown_dtype(kwargs)
        known = {field.name for field in fields(self)} | set(more)
        allowed = LIBRARY_KEYS | generation_keys()
        for key in kwargs:
            if key not in allowed and key not in more and not key.startswith("_"):
                raise ValueError(
                    f"{type(self).__name__} has no key {key!r}{nearest(key, known)}. Known keys: {', '.join(sorted(known))}"
                )

    def _refuse_unknown_dtype(self, kwargs):
        """Raise a ValueError for a dtype that torch does not have, of which transformers only makes an AttributeError."""
        for name, value in (("dtype", self.dtype), ("torch_dtype", kwargs.get("torch_dtype"))):
            if not isinstance(value, str):
                continue
            import torch

            if not isinstance(getattr(torch, value, None), torch.dtype):
                raise ValueError(f"{name}={value!r} is no dtype of torch; choose such as 'float32', 'bfloat16', 'float16'")

    def refuse_misspelt(self):
        """Raise a ValueError for an attribute that is close to a key; tools leave others of their own."""
        for name in self.unknown_attributes():
            if meant := nearest(name, self.own_fields()):
                raise ValueError(f"config.{name} is no key of {type(self).__name__}{meant}; remove it")

    @classmethod
    def own_fields(cls):
        """Names of the fields that the classes of this family declare."""
        declaring = [kind for kind in cls.__mro__ if issubclass(kind, FamilyConfig)]
        annotations = {
            name: kind for owner in reversed(declaring) for name, kind in vars(owner).get("__annotations__", {}).items()
        }
        return [name for name, annotation in annotations.items() if get_origin(annotation) is not ClassVar]
