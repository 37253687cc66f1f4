"""Ernie 4.5: Llama with interleaved RoPE and one switch for all biases. Attention dropout is fixed at zero natively."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Key, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT, FROZEN_PAD, LLAMA_WEIGHTS, rope

_BIASES = ("attention_bias", "attention_out_bias", "mlp_bias")

FAMILY = Family(
    model_type="ernie4_5",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        FROZEN_PAD,
        Same("num_key_value_heads", "max_position_embeddings", "intermediate_size", "hidden_act"),
        Key("norm_eps", "rms_norm_eps"),
        Always(rope_interleaved=True),
        HeadDim(declared=True),
        Both(lambda native: dict.fromkeys(_BIASES, native.use_bias), lambda config: {"use_bias": config.attention_bias}),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
