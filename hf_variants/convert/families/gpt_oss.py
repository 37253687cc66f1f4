"""gpt-oss: attention sinks, alternating windows, biased experts with a clamped gate.

The router takes the top k of the logits and their softmax, which equals the softmax over all experts with the chosen
weights normalised. `hidden_act` is never read natively, so it stays native. Expert weights are stored transposed, gate
and up alternating.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    EMBEDDINGS,
    MODERN_KEYS,
    all_biases,
    aux_loss,
    every_layer_sparse,
    rope,
    window_of_layer_types,
)
from hf_variants.convert.tensor_ops import Deinterleave, Transpose
from hf_variants.convert.weight_rules import keep, rearrange, rename

_EXPERTS = "model.layers.*.mlp.experts."


def _write_clamp(config):
    clamp = {"swiglu_limit": config.swiglu_limit, "swiglu_alpha": config.swiglu_alpha}
    return {key: value for key, value in clamp.items() if value is not None}


FAMILY = Family(
    model_type="gpt_oss",
    config=[
        *MODERN_KEYS,
        Always(attention_sinks=True, router_bias=True, expert_bias=True, norm_topk_prob=True, norm_weight_in_fp32=True),
        HeadDim(declared=True),
        all_biases(),
        Both(lambda native: {"swiglu_limit": native.swiglu_limit, "swiglu_alpha": native.swiglu_alpha}, _write_clamp),
        window_of_layer_types(),
        rope(),
        every_layer_sparse(),
        aux_loss(),
    ],
    weights=[
        *EMBEDDINGS,
        *keep("model.layers.*.self_attn.**", "model.layers.*.*_layernorm.weight", _EXPERTS + "down_proj_bias"),
        rename("model.layers.*.mlp.router.**", "model.layers.*.mlp.gate.**"),
        rearrange(_EXPERTS + "gate_up_proj", _EXPERTS + "gate_up_proj", Transpose(1, 2), Deinterleave(1)),
        rearrange(_EXPERTS + "gate_up_proj_bias", _EXPERTS + "gate_up_proj_bias", Deinterleave(1)),
        rearrange(_EXPERTS + "down_proj", _EXPERTS + "down_proj", Transpose(1, 2)),
    ],
)
