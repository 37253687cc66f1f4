"""Qwen3-MoE: Qwen3 attention with experts in chosen layers and one window for all layers or none."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, aux_loss, one_window, rope

_EXPERT_KEYS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")


def _read_experts(native):
    def is_sparse(index):
        return index not in native.mlp_only_layers and native.num_experts > 0 and (index + 1) % native.decoder_sparse_step == 0

    kinds = ["sparse" if is_sparse(index) else "dense" for index in range(native.num_hidden_layers)]
    if "sparse" not in kinds:
        return {}
    return {"mlp_layer_types": kinds, **{key: getattr(native, key) for key in _EXPERT_KEYS}, **aux_loss().read(native)}


def _write_experts(config):
    dense = [index for index, kind in enumerate(config.mlp_layer_types) if kind == "dense"]
    written = {"decoder_sparse_step": 1, "mlp_only_layers": dense, **aux_loss().write(config)}
    return {**written, **{key: getattr(config, key) for key in _EXPERT_KEYS}} if config.has_experts else written


FAMILY = Family(
    model_type="qwen3_moe",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(qk_norm="head"),
        HeadDim(),
        all_biases(),
        one_window(),
        Both(writer=lambda config: {"use_sliding_window": config.sliding_window is not None}),
        rope(),
        Both(_read_experts, _write_experts),
    ],
    weights=LLAMA_WEIGHTS,
)
