"""SmolLM3: Llama with RoPE on chosen layers and a window on chosen layers.

`use_sliding_window` only makes the default of `layer_types`; where those name a window, the masks have it.
"""

from hf_variants.convert.config_map import Both, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    LLAMA_WEIGHTS,
    MODERN_KEYS,
    NO_POSITIONS,
    all_biases,
    rope,
    window_of_layer_types,
)


def _read_rope_layers(native):
    """Layers without a position on every one of them are no RoPE at all."""
    flags = [int(bool(flag)) for flag in native.no_rope_layers]
    return {"no_rope_layers": flags} if any(flags) else dict(NO_POSITIONS)


def _write_rope_layers(config):
    turned = config.position_embedding_type == "rope"
    return {"no_rope_layers": list(config.no_rope_layers) if turned else [0] * config.num_hidden_layers}


FAMILY = Family(
    model_type="smollm3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        HeadDim(),
        all_biases(),
        window_of_layer_types("use_sliding_window"),
        rope(),
        Both(_read_rope_layers, _write_rope_layers),
    ],
    weights=LLAMA_WEIGHTS,
)
