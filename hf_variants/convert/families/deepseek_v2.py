"""DeepSeek-V2: latent attention with interleaved RoPE, softmax routing whose weights are not normalised.

`norm_topk_prob` and `moe_layer_freq` are never read natively, so they stay native.
"""

from hf_variants.convert.config_map import Always, Both, Refuse, Same
from hf_variants.convert.expert_maps import DEEPSEEK_KEYS, FIRST_DENSE, Experts, needs_shared_experts
from hf_variants.convert.latent_maps import LATENT_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

_METHODS = ("greedy", "group_limited_greedy")
_SPARSE = Experts(DEEPSEEK_KEYS, FIRST_DENSE, {"norm_topk_prob": False})


def _read_groups(native):
    if native.topk_method == "greedy" or not _SPARSE.read(native):
        return {}
    return {"n_group": native.n_group, "topk_group": native.topk_group}


def _write_groups(config):
    if config.n_group == 1:
        return {"topk_method": "greedy"}
    return {"topk_method": "group_limited_greedy", "n_group": config.n_group, "topk_group": config.topk_group}


FAMILY = Family(
    model_type="deepseek_v2",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        Always(rope_interleaved=True),
        *LATENT_KEYS,
        all_biases(),
        rope(),
        needs_shared_experts(),
        Refuse(
            "topk_method",
            lambda native: native.topk_method not in _METHODS,
            f"natively it fails when tokens are routed; choose from {list(_METHODS)}",
        ),
        _SPARSE,
        Both(_read_groups, _write_groups),
    ],
    weights=LLAMA_WEIGHTS,
    needs={"num_experts_per_tok": 2},
)
