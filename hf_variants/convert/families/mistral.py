"""Mistral: Llama without biases, with one window for every layer."""

from hf_variants.convert.config_map import HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, one_window, rope

FAMILY = Family(
    model_type="mistral",
    config=[*MODERN_KEYS, Same("intermediate_size", "hidden_act"), HeadDim(declared=True), one_window(), rope()],
    weights=LLAMA_WEIGHTS,
)
