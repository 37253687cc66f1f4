"""Mistral 4: the latent attention and experts of DeepSeek-V3, a softmax router, and Ministral 3's queries.

Notable here: transformers lists its language model among those that read images. Its RoPE turns the share of each head that
`partial_rotary_factor` names, which has to be the rotary part, and which the type "default" does not read.
"""

from hf_variants.convert.config_map import Both, Key, Refuse, Same
from hf_variants.convert.expert_maps import DEEPSEEK_KEYS, FIRST_DENSE, Experts, needs_groups, needs_shared_experts
from hf_variants.convert.families.ministral3 import NEEDS_TEMPERATURE, read_temperature, write_tempered_rope
from hf_variants.convert.latent_maps import LATENT_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, live_rope


def _read_rope(native):
    return {"rope_parameters": live_rope(native.rope_parameters), **read_temperature(native)}


def _write_rope(config):
    width = (config.qk_nope_head_dim or 0) + (config.qk_rope_head_dim or 1)
    share = (config.qk_rope_head_dim or 1) / width
    return {"rope_parameters": {**write_tempered_rope(config)["rope_parameters"], "partial_rotary_factor": share}}


def _turns_another_share(native):
    width = int(native.head_dim * native.rope_parameters["partial_rotary_factor"])
    return native.rope_parameters["rope_type"] == "default" or width != native.qk_rope_head_dim


FAMILY = Family(
    model_type="mistral4",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Key("rope_interleaved", "rope_interleave"),
        *LATENT_KEYS,
        all_biases(),
        NEEDS_TEMPERATURE,
        Refuse(
            "rope_parameters",
            _turns_another_share,
            "natively it fails: it does not turn the qk_rope_head_dim numbers of a head; use a scaled rope_type, and the "
            "partial_rotary_factor qk_rope_head_dim / head_dim",
        ),
        Both(_read_rope, _write_rope),
        needs_groups(),
        Refuse(
            "n_group",
            lambda native: native.n_group > 1,
            "natively a group of experts counts by its two best, here under a softmax by its best; set it to 1",
        ),
        needs_shared_experts(),
        Experts({**DEEPSEEK_KEYS, "norm_topk_prob": "norm_topk_prob"}, FIRST_DENSE, {"router_scoring": "softmax"}),
    ],
    weights=LLAMA_WEIGHTS,
)
