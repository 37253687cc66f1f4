"""The one table of what a config may not be, each rule with its reason.

Notable here: a rule (`rule.py`) is a name, a predicate that is true when the config breaks it, and a text that names field,
value, reason and choices. The rules run when the config is made and again when a model is built from it; the page of rules in
the documentation is generated from this table.
"""

from .encoder_rules import ENCODER_RULES
from .rule import DERIVED, OFF, Rule, only_with, only_with_any, only_with_experts, positive
from .vocabulary import LEARNED, RELATIVE


def _has(layer_type):
    return lambda c: layer_type in c.layer_types


def _rope_dims(c):
    return [c.rotary_dim_of(key) for key in c.rope_keys]


SINUSOIDAL = ("sinusoidal", "sinusoidal_halves", "sinusoidal_concat")
DROPOUTS = (
    *("attention_dropout", "hidden_dropout", "attention_output_dropout", "embedding_dropout"),
    *("activation_dropout", "final_dropout"),
    *("classifier_dropout", "token_classifier_dropout", "qa_dropout"),
)

SHAPE_RULES = [
    *(positive(name) for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")),
    *(positive(name) for name in ("max_position_embeddings", "norm_eps", "latent_norm_eps", "logits_scaling", "floor_scale")),
    *(positive(name, DERIVED) for name in ("intermediate_size", "num_key_value_heads", "head_dim", "moe_intermediate_size")),
    *(positive(name, DERIVED) for name in ("query_pre_attn_scalar", "attention_multiplier")),
    *(positive(name, DERIVED) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")),
    *(positive(name, DERIVED) for name in ("embedding_size", "cross_attention_hidden_size")),
    *(positive(name, OFF) for name in ("q_lora_rank", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv")),
    *(positive(name, OFF) for name in ("sliding_window", "attention_chunk_size", "swiglu_limit")),
    Rule(
        "heads are whole groups",
        lambda c: c.num_attention_heads % c.num_key_value_heads != 0,
        "num_attention_heads={c.num_attention_heads} is not a multiple of num_key_value_heads={c.num_key_value_heads}: "
        "every key-value head serves the same number of query heads; choose a divisor of num_attention_heads",
    ),
    Rule(
        "weights start around zero",
        lambda c: c.initializer_range < 0,
        "initializer_range={c.initializer_range} is a standard deviation and must not be negative",
    ),
    Rule(
        "dropouts are probabilities",
        lambda c: not all(0 <= (getattr(c, name) or 0) < 1 for name in DROPOUTS),
        "attention_dropout={c.attention_dropout}, hidden_dropout={c.hidden_dropout}, "
        "attention_output_dropout={c.attention_output_dropout}, embedding_dropout={c.embedding_dropout}, "
        "activation_dropout={c.activation_dropout}, final_dropout={c.final_dropout}, "
        "classifier_dropout={c.classifier_dropout}, token_classifier_dropout={c.token_classifier_dropout} and "
        "qa_dropout={c.qa_dropout} must each lie in [0, 1)",
    ),
    Rule(
        "special tokens lie in the vocabulary",
        lambda c: any(
            token is not None and not 0 <= token < c.vocab_size
            for token in (
                c.pad_token_id,
                c.bos_token_id,
                *([c.eos_token_id] if not isinstance(c.eos_token_id, list) else c.eos_token_id),
            )
        ),
        "pad_token_id={c.pad_token_id}, bos_token_id={c.bos_token_id} and eos_token_id={c.eos_token_id} must be None or lie "
        "in [0, vocab_size={c.vocab_size})",
    ),
]

LAYER_RULES = [
    Rule(
        "sliding layers need a window",
        lambda c: _has("sliding_attention")(c) and c.sliding_window is None,
        "layer_types holds 'sliding_attention' but sliding_window is None; set sliding_window to the number of visible tokens",
    ),
    Rule(
        "a window needs sliding layers",
        lambda c: c.sliding_window is not None and not _has("sliding_attention")(c),
        "sliding_window={c.sliding_window} has no effect: no entry of layer_types is 'sliding_attention'; set "
        "sliding_window=None or name the sliding layers",
    ),
    Rule(
        "chunked layers need a chunk",
        lambda c: _has("chunked_attention")(c) and c.attention_chunk_size is None,
        "layer_types holds 'chunked_attention' but attention_chunk_size is None; set attention_chunk_size",
    ),
    Rule(
        "a chunk needs chunked layers",
        lambda c: c.attention_chunk_size is not None and not _has("chunked_attention")(c),
        "attention_chunk_size={c.attention_chunk_size} has no effect: no entry of layer_types is 'chunked_attention'",
    ),
    Rule(
        "no_rope_layers is a switch per layer",
        lambda c: any(flag not in (0, 1) for flag in c.no_rope_layers) or len(c.no_rope_layers) != c.num_hidden_layers,
        "no_rope_layers={c.no_rope_layers} must hold num_hidden_layers={c.num_hidden_layers} entries: 1 where the layer uses "
        "RoPE, 0 where it does not (transformers' convention, despite the name); or null (None), where all do",
    ),
    Rule(
        "no_rope_layers needs rope",
        lambda c: 0 in c.no_rope_layers and c.position_embedding_type != "rope",
        "no_rope_layers={c.no_rope_layers} has no effect with position_embedding_type={c.position_embedding_type!r}; "
        "it needs position_embedding_type='rope'",
    ),
    Rule(
        "rope turns at least one layer",
        lambda c: c.position_embedding_type == "rope" and not c.rope_keys,
        "position_embedding_type='rope' but no layer uses it (no_rope_layers={c.no_rope_layers}, "
        "rope_parameters={c.rope_parameters}); use position_embedding_type='none'",
    ),
]

ATTENTION_RULES = [
    only_with("sinks_in_fp32", "attention_sinks", True, False),
    *(only_with(name, "attention_type", "mla") for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim")),
    *(only_with(name, "attention_type", "mla") for name in ("qk_rope_head_dim", "v_head_dim")),
    only_with("latent_norm_eps", "attention_type", "mla", 1e-6),
    Rule(
        "mla shares its latent among all heads",
        lambda c: c.attention_type == "mla" and c.num_key_value_heads != c.num_attention_heads,
        "num_key_value_heads={c.num_key_value_heads} differs from num_attention_heads={c.num_attention_heads}: under "
        "attention_type='mla' every head has its own keys, expanded from one shared latent; leave num_key_value_heads unset",
    ),
    Rule(
        "clipping needs projected keys",
        lambda c: c.clip_qkv is not None and c.attention_type == "mla",
        "clip_qkv={c.clip_qkv} is not defined for attention_type='mla', whose keys are never projected whole; leave it None",
    ),
    Rule(
        "norms per head need weights",
        lambda c: c.qk_norm == "per_head" and not c.norm_affine,
        "qk_norm='per_head' differs from 'head' by its weights, which norm_affine=False removes; use qk_norm='head'",
    ),
    Rule(
        "full qk-norm needs keys per channel",
        lambda c: c.attention_type == "mla" and c.qk_norm in ("full", "per_head"),
        "qk_norm={c.qk_norm!r} has one weight per head and channel, but under attention_type='mla' the rotary key is shared "
        "by all heads; choose qk_norm from ['none', 'head', 'l2']",
    ),
    Rule(
        "norm after rope needs both",
        lambda c: c.qk_norm_after_rope and (c.qk_norm == "none" or c.position_embedding_type != "rope"),
        "qk_norm_after_rope=True has no effect with qk_norm={c.qk_norm!r} and "
        "position_embedding_type={c.position_embedding_type!r}; it needs a qk_norm and position_embedding_type='rope'",
    ),
    Rule(
        "mla normalises before rope",
        lambda c: c.attention_type == "mla" and c.qk_norm_after_rope,
        "qk_norm_after_rope=True is not defined for attention_type='mla', which caches its rotary key once for all heads; "
        "use qk_norm_after_rope=False",
    ),
    only_with("alibi_scaled_bf16", "position_embedding_type", "alibi", False),
    *(
        only_with(name, "attn_temperature_tuning", True, unset)
        for name, unset in (("attn_temperature_layers", "all"), ("attn_temperature_offset", 0))
    ),
    *(only_with(name, "attn_temperature_tuning", True, unset) for name, unset in (("attn_scale", 0.1), ("floor_scale", 8192))),
    Rule(
        "positions of the temperature are counted from zero",
        lambda c: c.attn_temperature_offset < 0,
        "attn_temperature_offset={c.attn_temperature_offset} must not be negative",
    ),
    Rule(
        "a temperature acts",
        lambda c: c.attn_temperature_tuning and (c.attn_scale <= 0 or not any(plan.tempered for plan in c.layer_plan())),
        "attn_temperature_tuning=True needs attn_scale > 0 and a layer to act on, but attn_scale={c.attn_scale} and "
        "attn_temperature_layers={c.attn_temperature_layers!r} with no_rope_layers={c.no_rope_layers}",
    ),
    Rule(
        "a norm of some layers needs both",
        lambda c: c.qk_norm_layers != "all" and (c.qk_norm == "none" or not c.rope_keys),
        "qk_norm_layers={c.qk_norm_layers!r} has no effect with qk_norm={c.qk_norm!r} and "
        "position_embedding_type={c.position_embedding_type!r}; it needs a qk_norm and position_embedding_type='rope'",
    ),
    Rule(
        "one attention scale",
        lambda c: c.attention_multiplier is not None and c.query_pre_attn_scalar is not None,
        "attention_multiplier={c.attention_multiplier} and query_pre_attn_scalar={c.query_pre_attn_scalar} both set the "
        "attention scale; give one of them",
    ),
]

POSITION_RULES = [
    *(
        only_with_any(name, "position_embedding_type", RELATIVE, unset)
        for name, unset in (
            ("relative_attention_num_buckets", None),
            ("relative_attention_max_distance", None),
            ("relative_attention_per_layer", False),
        )
    ),
    Rule(
        "buckets of distances are enough",
        lambda c: (
            c.position_embedding_type in RELATIVE
            and (
                c.relative_attention_num_buckets < 4
                or c.relative_attention_num_buckets % 2
                or c.relative_attention_max_distance <= c.relative_attention_num_buckets // (2 if c.is_causal else 4)
            )
        ),
        "relative_attention_num_buckets={c.relative_attention_num_buckets} must be even and at least 4, and "
        "relative_attention_max_distance={c.relative_attention_max_distance} beyond the distances that have a bucket of their "
        "own, the first half of the buckets (of each direction, where is_causal=False)",
    ),
    only_with("partial_rotary_factor", "position_embedding_type", "rope", 1.0),
    Rule(
        "rows of a table are counted from zero",
        lambda c: c.position_embedding_offset < 0,
        "position_embedding_offset={c.position_embedding_offset} must not be negative",
    ),
    Rule(
        "rope parameters need rope",
        lambda c: c.rope_parameters is not None and c.position_embedding_type != "rope",
        "rope_parameters={c.rope_parameters} has no effect with position_embedding_type={c.position_embedding_type!r}; "
        "use position_embedding_type='rope'",
    ),
    Rule(
        "interleaving needs rope",
        lambda c: c.rope_interleaved and c.position_embedding_type != "rope",
        "rope_interleaved=True has no effect with position_embedding_type={c.position_embedding_type!r}; "
        "use position_embedding_type='rope'",
    ),
    Rule(
        "rotary dimensions are pairs",
        lambda c: c.position_embedding_type == "rope" and any(dim <= 0 or dim % 2 for dim in _rope_dims(c)),
        "the rotated part of a head must be an even number of dimensions greater than zero, but rotary_head_dim="
        "{c.rotary_head_dim} times partial_rotary_factor={c.partial_rotary_factor} gives {dims}; change head_dim "
        "(qk_rope_head_dim under MLA) or partial_rotary_factor",
    ),
    Rule(
        "the offset belongs to tables",
        lambda c: c.position_embedding_offset != 0 and c.position_embedding_type not in (*LEARNED, *SINUSOIDAL),
        "position_embedding_offset={c.position_embedding_offset} has no effect with "
        "position_embedding_type={c.position_embedding_type!r}; it needs one of 'learned', 'learned_relative', "
        "'sinusoidal', 'sinusoidal_halves' and 'sinusoidal_concat'",
    ),
    Rule(
        "the dtype of sinusoids belongs to them",
        lambda c: c.sinusoid_dtype != "float32" and c.position_embedding_type not in SINUSOIDAL,
        "sinusoid_dtype={c.sinusoid_dtype!r} has no effect with position_embedding_type={c.position_embedding_type!r}; it "
        "needs one of 'sinusoidal', 'sinusoidal_halves' and 'sinusoidal_concat'",
    ),
    Rule(
        "sinusoids are pairs",
        lambda c: c.position_embedding_type in SINUSOIDAL and c.table_width % 2,
        "position_embedding_type={c.position_embedding_type!r} pairs sines with cosines: the width that they are added in, "
        "{c.table_width} (embedding_size, or hidden_size where that is not set), is odd",
    ),
    Rule(
        "halved sinusoids have frequencies between two ends",
        lambda c: c.position_embedding_type == "sinusoidal_halves" and c.table_width < 4,
        "position_embedding_type='sinusoidal_halves' spaces its frequencies over half its width - 1 steps, but the width that "
        "they are added in, {c.table_width} (embedding_size, or hidden_size where that is not set), is below 4",
    ),
    Rule(
        "dynamic needs room",
        lambda c: any(c.rope_of(key)["rope_type"] in ("dynamic", "ntk") and c.rotary_dim_of(key) <= 2 for key in c.rope_keys),
        "rope_type 'ntk' and 'dynamic' raise the factor to d/(d-2), which needs a rotary dimension d > 2, but it is {dims}",
    ),
]

FEED_FORWARD_RULES = [
    Rule(
        "biases of dense networks need one",
        lambda c: c.mlp_bias and "dense" not in c.mlp_layer_types and not c.num_shared_experts,
        "mlp_bias=True has no effect: it is for dense and shared networks, but mlp_layer_types={c.mlp_layer_types} holds no "
        "'dense' and num_shared_experts={c.num_shared_experts}; the biases of routed experts are expert_bias",
    ),
    Rule(
        "the last bias of dense networks needs one",
        lambda c: c.mlp_out_bias and not c.mlp_bias and "dense" not in c.mlp_layer_types and not c.num_shared_experts,
        "mlp_out_bias=True has no effect: it is for dense and shared networks, but mlp_layer_types={c.mlp_layer_types} holds "
        "no 'dense' and num_shared_experts={c.num_shared_experts}; the biases of routed experts are expert_bias",
    ),
    Rule(
        "activations are dropped in dense networks",
        lambda c: c.activation_dropout != 0 and "sparse" in c.mlp_layer_types,
        "activation_dropout={c.activation_dropout} has no place in experts, but mlp_layer_types={c.mlp_layer_types} holds "
        "'sparse'; set it to 0",
    ),
    Rule(
        "clamped gates are gated silu",
        lambda c: c.swiglu_limit is not None and (c.mlp_type != "gated" or c.hidden_act != "silu"),
        "swiglu_limit={c.swiglu_limit} clamps the gated SwiGLU of gpt-oss, but mlp_type={c.mlp_type!r} and "
        "hidden_act={c.hidden_act!r}; it needs mlp_type='gated' and hidden_act='silu'",
    ),
    Rule(
        "alpha needs the clamped gate",
        lambda c: c.swiglu_alpha is not None and c.swiglu_limit is None,
        "swiglu_alpha={c.swiglu_alpha} has no effect without swiglu_limit; set swiglu_limit too",
    ),
]

EXPERT_RULES = [
    only_with_experts("num_experts_per_tok", None),
    only_with_experts("moe_intermediate_size", None),
    only_with_experts("num_shared_experts", 0),
    only_with_experts("norm_topk_prob", None),
    only_with_experts("routed_scaling_factor", 1.0),
    only_with_experts("n_group", 1),
    only_with_experts("topk_group", 1),
    only_with_experts("router_bias", False),
    only_with_experts("router_weight_in_fp32", False),
    only_with_experts("expert_bias", False),
    only_with_experts("router_balance", "none"),
    only_with_experts("apply_router_weight_on_input", False),
    only_with_experts("expert_output_norm", False),
    only_with_experts("router_selection", "scores"),
    Rule(
        "choosing by logits differs",
        lambda c: (
            c.router_selection == "logits"
            and c.has_experts
            and (
                c.router_scoring == "sparsemixer"
                or (c.router_balance != "bias" and (c.router_scoring == "softmax" or c.topk_group >= c.n_group))
            )
        ),
        "router_selection='logits' has no effect with router_scoring={c.router_scoring!r}, router_balance="
        "{c.router_balance!r}, n_group={c.n_group} and topk_group={c.topk_group}: the best scores, and softmax "
        "groups of the best, have the best logits; it needs router_balance='bias', or router_scoring='sigmoid' "
        "(which sums the two best of a group) with topk_group < n_group; sparsemixer compares logits in any case",
    ),
    only_with("sparsemixer_jitter_eps", "router_scoring", "sparsemixer", 0.01),
    Rule(
        "sparsemixer chooses by its logits alone",
        lambda c: c.router_scoring == "sparsemixer" and (c.n_group > 1 or c.router_balance == "bias"),
        "router_scoring='sparsemixer' compares raw logits, which neither groups nor a selection bias enter: use n_group=1, "
        "not {c.n_group}, and a router_balance from ['none', 'aux_loss'], not {c.router_balance!r}",
    ),
    Rule(
        "sparsemixer's rivals are near",
        lambda c: c.sparsemixer_jitter_eps < 0,
        "sparsemixer_jitter_eps={c.sparsemixer_jitter_eps} must not be negative",
    ),
    only_with_experts("router_z_loss_coef", 0.0),
    Rule(
        "sparse layers need experts",
        lambda c: "sparse" in c.mlp_layer_types and not c.num_experts,
        "mlp_layer_types holds 'sparse' but num_experts={c.num_experts}; set num_experts >= 1",
    ),
    Rule(
        "experts need sparse layers",
        lambda c: bool(c.num_experts) and "sparse" not in c.mlp_layer_types,
        "num_experts={c.num_experts} has no effect: no entry of mlp_layer_types is 'sparse'",
    ),
    Rule(
        "top-k lies within the experts",
        lambda c: c.has_experts and not 1 <= c.num_experts_per_tok <= c.num_experts,
        "num_experts_per_tok={c.num_experts_per_tok} must lie in [1, num_experts={c.num_experts}]",
    ),
    Rule(
        "groups divide the experts",
        lambda c: c.has_experts and (c.n_group < 1 or c.num_experts % c.n_group != 0),
        "n_group={c.n_group} must divide num_experts={c.num_experts} into equal groups",
    ),
    Rule(
        "kept groups exist",
        lambda c: c.has_experts and not 1 <= c.topk_group <= c.n_group,
        "topk_group={c.topk_group} must lie in [1, n_group={c.n_group}]",
    ),
    Rule(
        "kept groups hold top-k experts",
        lambda c: (
            c.has_experts and c.n_group >= 1 and c.num_experts_per_tok > c.topk_group * (c.num_experts // max(c.n_group, 1))
        ),
        "num_experts_per_tok={c.num_experts_per_tok} exceeds the experts of the kept groups: topk_group={c.topk_group} groups "
        "of num_experts / n_group = {c.num_experts} / {c.n_group} each; raise topk_group or lower n_group",
    ),
    Rule(
        "group scores need two experts",
        lambda c: c.has_experts and c.n_group > 1 and c.router_scoring == "sigmoid" and c.num_experts // c.n_group < 2,
        "n_group={c.n_group} leaves fewer than two of num_experts={c.num_experts} in a group, but router_scoring='sigmoid' "
        "scores a group by its two best experts; lower n_group",
    ),
    Rule(
        "shared experts fit their gate",
        lambda c: c.shared_expert_gate and not c.num_shared_experts,
        "shared_expert_gate=True has no effect with num_shared_experts=0; set num_shared_experts >= 1",
    ),
    Rule(
        "shared width needs shared experts",
        lambda c: c.shared_expert_intermediate_size is not None and not c.num_shared_experts,
        "shared_expert_intermediate_size={c.shared_expert_intermediate_size} has no effect with num_shared_experts=0; set "
        "num_shared_experts=1",
    ),
    Rule(
        "coefficients are not negative",
        lambda c: min(c.router_aux_loss_coef, c.router_z_loss_coef, c.router_bias_update_rate, c.num_shared_experts) < 0,
        "router_aux_loss_coef={c.router_aux_loss_coef}, router_z_loss_coef={c.router_z_loss_coef}, "
        "router_bias_update_rate={c.router_bias_update_rate} and num_shared_experts={c.num_shared_experts} must not be "
        "negative",
    ),
    only_with("router_bias_update_rate", "router_balance", "bias", 0.001),
    Rule(
        "bias balancing needs a rate",
        lambda c: c.router_balance == "bias" and c.router_bias_update_rate == 0,
        "router_balance='bias' with router_bias_update_rate=0 balances nothing; set router_bias_update_rate > 0 or "
        "router_balance='none'",
    ),
    Rule(
        "routed experts count",
        lambda c: c.routed_scaling_factor == 0,
        "routed_scaling_factor={c.routed_scaling_factor} switches the routed experts off; use num_experts=0",
    ),
    Rule(
        "an auxiliary coefficient needs balancing",
        lambda c: c.router_aux_loss_coef != 0 and c.router_balance == "none",
        "router_aux_loss_coef={c.router_aux_loss_coef} has no effect with router_balance='none'; use "
        "router_balance='aux_loss', or 'bias' to add it as the complement of bias balancing",
    ),
    Rule(
        "an auxiliary loss needs its coefficient",
        lambda c: c.router_balance == "aux_loss" and c.router_aux_loss_coef == 0,
        "router_balance='aux_loss' with router_aux_loss_coef=0 balances nothing; set router_aux_loss_coef > 0 or "
        "router_balance='none'",
    ),
]

NORM_RULES = [
    Rule(
        "a frozen pad row needs a pad",
        lambda c: c.freeze_pad_embedding and c.pad_token_id is None,
        "freeze_pad_embedding=True has no effect with pad_token_id=None; set pad_token_id",
    ),
    Rule(
        "rmsnorm has no bias",
        lambda c: c.norm_type == "rmsnorm" and c.norm_bias,
        "norm_bias=True has no effect with norm_type='rmsnorm'; use norm_type='layernorm'",
    ),
    Rule(
        "a non-parametric norm has nothing to offset",
        lambda c: not c.norm_affine and (c.norm_unit_offset or c.norm_bias or c.norm_weight_in_fp32),
        "norm_affine=False removes weight and bias, so norm_unit_offset={c.norm_unit_offset}, norm_bias={c.norm_bias} and "
        "norm_weight_in_fp32={c.norm_weight_in_fp32} must be False",
    ),
    Rule(
        "the scope of a multiplier needs the multiplier",
        lambda c: c.embedding_multiplier_scope != "inputs_embeds" and c.embedding_multiplier == 1,
        "embedding_multiplier_scope={c.embedding_multiplier_scope!r} has no effect with embedding_multiplier="
        "{c.embedding_multiplier}; set embedding_multiplier, or leave embedding_multiplier_scope at 'inputs_embeds'",
    ),
    Rule(
        "scalars that multiply are not zero",
        lambda c: 0 in (c.embedding_multiplier, c.residual_multiplier),
        "embedding_multiplier={c.embedding_multiplier} and residual_multiplier={c.residual_multiplier} must not be zero",
    ),
]

RULES = [
    *(*SHAPE_RULES, *LAYER_RULES, *ATTENTION_RULES, *POSITION_RULES),
    *(*FEED_FORWARD_RULES, *EXPERT_RULES, *NORM_RULES, *ENCODER_RULES),
]


def check_rules(config):
    """Raise a ValueError for the first rule of `RULES` that `config` breaks."""
    for rule in RULES:
        if rule.broken(config):
            dims = _rope_dims(config) if "{dims}" in rule.text else None
            raise ValueError(rule.text.format(c=config, dims=dims))
