"""MiniCPM3: latent attention with half-split RoPE and scaled embeddings, branches and logits."""

from math import sqrt

from hf_variants.convert.config_map import Both, Same
from hf_variants.convert.latent_maps import LATENT_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope


def _read_scales(native):
    return {
        "residual_multiplier": native.scale_depth / sqrt(native.num_hidden_layers),
        "logits_scaling": native.hidden_size / native.dim_model_base,
    }


def _read_embedding_scale(native):
    if native.scale_emb == 1:
        return {}
    return {"embedding_multiplier": native.scale_emb, "embedding_multiplier_scope": "input_ids"}


def _write_scales(config):
    depth = config.residual_multiplier * sqrt(config.num_hidden_layers)
    return {"scale_depth": depth, "dim_model_base": round(config.hidden_size / config.logits_scaling)}


FAMILY = Family(
    model_type="minicpm3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        *LATENT_KEYS,
        all_biases(),
        rope(),
        Both(_read_embedding_scale, lambda config: {"scale_emb": config.embedding_multiplier}),
        Both(_read_scales, _write_scales),
    ],
    weights=LLAMA_WEIGHTS,
)
