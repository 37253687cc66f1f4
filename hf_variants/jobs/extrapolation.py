"""`hf-variants extrapolate`: see `hf_variants.studies`."""

from ..studies.extrapolation import extrapolate

__all__ = ["extrapolate"]
