"""Command-A with experts: Command-R7B whose layers may hold experts, a dense prefix that may be rotated throughout.

The router takes the top k of the logits and their softmax (equal to the softmax over all experts with the chosen weights
normalised), or their sigmoids. Norms are RMSNorms where `rms_norm_eps` is set.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim, Refuse, Same
from hf_variants.convert.expert_maps import LAYER_LIST, Experts, same_names
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import GROUPED_KEYS, LLAMA_WEIGHTS, NO_POSITIONS, all_biases, reciprocal, rope
from hf_variants.convert.shared_maps import window_of_layer_types as window


def _read_norms(native):
    if native.rms_norm_eps is not None:
        return {"norm_type": "rmsnorm", "norm_eps": native.rms_norm_eps, "norm_weight_in_fp32": False}
    return {"norm_type": "layernorm", "norm_bias": False, "norm_eps": native.layer_norm_eps, "norm_weight_in_fp32": True}


def _write_norms(config):
    rms = config.norm_type == "rmsnorm"
    return {"rms_norm_eps": config.norm_eps} if rms else {"rms_norm_eps": None, "layer_norm_eps": config.norm_eps}


def _read_rope_layers(native):
    """Sliding layers are rotated, and dense ones where their own window pattern is 1."""
    forced = native.prefix_dense_sliding_window_pattern == 1
    kinds = zip(native.layer_types, native.mlp_layer_types, strict=True)
    flags = [int(kind == "sliding_attention" or (mlp == "dense" and forced)) for kind, mlp in kinds]
    return {"no_rope_layers": flags} if any(flags) else dict(NO_POSITIONS)


def _write_rope_layers(config):
    kinds = zip(config.layer_types, config.mlp_layer_types, strict=True)
    full_and_dense = [index for index, pair in enumerate(kinds) if pair == ("full_attention", "dense")]
    forced = config.position_embedding_type == "rope" and any(config.no_rope_layers[index] for index in full_and_dense)
    return {"prefix_dense_sliding_window_pattern": 1 if forced or not full_and_dense else 2}


def _read_widths(native):
    """`intermediate_size` is the width of an expert, and of a dense layer without a width of its own."""
    return {"intermediate_size": native.prefix_dense_intermediate_size or native.intermediate_size}


def _write_widths(config):
    return {
        "prefix_dense_intermediate_size": config.intermediate_size,
        "intermediate_size": config.moe_intermediate_size if config.has_experts else config.intermediate_size,
    }


def _read_scores(native):
    if "sparse" not in native.mlp_layer_types:
        return {}
    softmax = native.expert_selection_fn == "softmax"
    return {"router_scoring": native.expert_selection_fn, "norm_topk_prob": softmax or native.norm_topk_prob}


def _write_scores(config):
    if not config.has_experts:
        return {}
    shared = {"shared_expert_combination_strategy": "sum"} if config.num_shared_experts else {}
    return {"expert_selection_fn": config.router_scoring, "norm_topk_prob": config.norm_topk_prob, **shared}


FAMILY = Family(
    model_type="cohere2_moe",
    config=[
        *GROUPED_KEYS,
        Same("hidden_act"),
        Always(norm_placement="parallel", rope_interleaved=True),
        Both(_read_norms, _write_norms),
        reciprocal("logits_scaling", "logit_scale"),
        HeadDim(declared=True),
        all_biases(),
        window(),
        rope(),
        Both(_read_rope_layers, _write_rope_layers),
        Both(_read_widths, _write_widths),
        Experts(
            {
                **same_names("num_experts", "num_experts_per_tok", "num_shared_experts"),
                "moe_intermediate_size": "intermediate_size",
            },
            LAYER_LIST,
        ),
        Both(_read_scores, _write_scores),
        Refuse(
            "shared_expert_combination_strategy",
            lambda native: native.num_shared_experts > 0 and native.shared_expert_combination_strategy != "sum",
            "ours adds routed and shared experts; no toggle means their average",
        ),
    ],
    weights=LLAMA_WEIGHTS,
)
