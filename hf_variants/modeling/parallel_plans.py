"""Which weights tensor parallelism splits over ranks, from the toggles of a config.

Notable here: what holds numbers of all heads or channels at once (a latent, a norm over all heads, sinks, slopes, biases of
experts) is kept whole on every rank, so a plan never changes a result; what stays whole saves no memory there.
"""

from .vocabulary import BIASED

_ATTENTION = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.gate_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    # one gain for all heads: each rank sees the gradient of its own heads alone
    "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
    "layers.*.self_attn.k_norm": "replicated_with_grad_allreduce",
}
# attention to another stack is split like that of the stack itself
_CROSS_ATTENTION = {key.replace("self_attn", "cross_attn"): rule for key, rule in _ATTENTION.items()}
_FEED_FORWARD = {
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
    "layers.*.mlp.shared_experts.gate_proj": "colwise",
    "layers.*.mlp.shared_experts.up_proj": "colwise",
    "layers.*.mlp.shared_experts.down_proj": "rowwise",
}
_EXPERTS = {
    "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
    "layers.*.mlp.experts.down_proj": "rowwise",
    "layers.*.mlp.experts": "moe_tp_experts",
}
EXPERT_PARALLEL = {
    "layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
    "layers.*.mlp.experts.gate_up_proj_bias": "grouped_gemm",
    "layers.*.mlp.experts.up_proj": "grouped_gemm",
    "layers.*.mlp.experts.up_proj_bias": "grouped_gemm",
    "layers.*.mlp.experts.down_proj": "grouped_gemm",
    "layers.*.mlp.experts.down_proj_bias": "grouped_gemm",
    "layers.*.mlp.experts": "ep_dispatch_experts",
}
PIPELINE_PARALLEL = {
    "embed_tokens": (["input_ids"], ["inputs_embeds"]),
    "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
    "norm": (["hidden_states"], ["hidden_states"]),
}


def splits_attention(config):
    """Whether the heads of a config can stand on different ranks."""
    biased = config.position_embedding_type in BIASED
    across = config.qk_norm in ("full", "per_head") or config.attention_sinks or biased
    return config.attention_type != "mla" and not across


def splits_experts(config):
    """Whether the channels of each expert can stand on different ranks."""
    return config.has_experts and config.mlp_type == "gated" and not config.expert_bias


def tensor_parallel_plan(config):
    """{module pattern: rule} in the terms of transformers' tensor parallelism."""
    cross = _CROSS_ATTENTION if config.add_cross_attention else {}
    attention = {**_ATTENTION, **cross} if splits_attention(config) else {}
    experts = _EXPERTS if splits_experts(config) else {}
    return {**attention, **_FEED_FORWARD, **experts}
