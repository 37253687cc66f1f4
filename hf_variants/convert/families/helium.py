"""Helium: Llama with interleaved RoPE, norms that multiply in fp32, and an output projection without bias."""

from hf_variants.convert.config_map import Always, HeadDim, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, qkv_biases, rope

FAMILY = Family(
    model_type="helium",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        Always(rope_interleaved=True, norm_weight_in_fp32=True),
        HeadDim(declared=True),
        qkv_biases(),
        rope(),
        Refuse(
            "head_dim",
            lambda native: native.head_dim * native.num_attention_heads != native.hidden_size,
            "natively the output projection is hidden_size wide on both sides; set head_dim to hidden_size / "
            "num_attention_heads",
        ),
    ],
    weights=LLAMA_WEIGHTS,
)
