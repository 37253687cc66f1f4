"""Native checkpoints <-> variants: `from_native` and `to_native` for models, `convert_checkpoint` for folders of any size.

Notable here: a family is one short file of reversible rules (`families/`); `known_families()` lists them.
"""

from hf_variants.convert.checkpoint_conversion import convert_checkpoint, verify_checkpoint
from hf_variants.convert.config_conversion import config_from_native, config_to_native
from hf_variants.convert.model_conversion import from_native, to_native
from hf_variants.convert.registry import family_names, find_family, known_families

__all__ = [
    "config_from_native",
    "config_to_native",
    "convert_checkpoint",
    "family_names",
    "find_family",
    "from_native",
    "known_families",
    "to_native",
    "verify_checkpoint",
]
