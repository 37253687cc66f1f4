"""`hf-variants scaling study`: see `hf_variants.studies`."""

from ..studies.scaling_run import scaling_study

__all__ = ["scaling_study"]
