"""Command-R7B: Command-R with a window, and RoPE, on chosen layers; the others have no positions."""

from hf_variants.convert.families.cohere import KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, rope_on_sliding_layers, window_of_layer_types

FAMILY = Family(
    model_type="cohere2",
    config=[*KEYS, window_of_layer_types(), rope_on_sliding_layers()],
    weights=LLAMA_WEIGHTS,
)
