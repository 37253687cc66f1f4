"""Native checkpoints <-> variants: `from_native` and `to_native` for models, `convert_checkpoint` for folders of any size.

Notable here: a family is one short file of reversible rules (`families/`); `known_families()` lists them. Names are
resolved on first use: what reads configs alone imports no torch.
"""

from ..lazy_names import lazy_names

_WHERE = {
    "config_from_native": "config_conversion",
    "config_to_native": "config_conversion",
    "convert_checkpoint": "checkpoint_conversion",
    "expressible_families": "config_source",
    "family_names": "registry",
    "find_family": "registry",
    "from_native": "model_conversion",
    "known_families": "registry",
    "read_config": "config_source",
    "to_native": "model_conversion",
    "verify_checkpoint": "checkpoint_conversion",
}

__all__, __getattr__ = lazy_names(__name__, _WHERE)
