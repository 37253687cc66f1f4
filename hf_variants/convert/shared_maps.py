"""Config rules and weight rules that several families share.

Notable here: plain lists and small factories; a family file is read as "Llama, except ...".
"""

from hf_variants.convert.config_map import Always, Both, FrozenPad, HeadDim, Key, Refuse, Same, SpecialTokens
from hf_variants.convert.meaning import fold_ntk
from hf_variants.convert.weight_rules import keep

# Shape and switches whose names and meanings are transformers' common ones.
COMMON_KEYS_WITHOUT_DROPOUT = [
    Same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    Same("initializer_range", "tie_word_embeddings", "use_cache"),
    SpecialTokens(),
]
COMMON_KEYS = [*COMMON_KEYS_WITHOUT_DROPOUT, Same("attention_dropout")]

FROZEN_PAD = FrozenPad()

# What most families after Llama have: grouped heads, a context length and an RMSNorm epsilon.
GROUPED_KEYS = [*COMMON_KEYS, Same("num_key_value_heads", "max_position_embeddings"), FROZEN_PAD]
MODERN_KEYS = [*GROUPED_KEYS, Key("norm_eps", "rms_norm_eps"), Always(norm_type="rmsnorm")]


def layernorm_keys(eps):
    """As `MODERN_KEYS`, but LayerNorm with its epsilon under the native key `eps`."""
    return [*GROUPED_KEYS, Key("norm_eps", eps), Always(norm_type="layernorm")]


EMBEDDINGS = keep("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
BLOCKS = keep("model.layers.*.self_attn.**", "model.layers.*.mlp.**", "model.layers.*.*_layernorm.weight")
LLAMA_WEIGHTS = [*EMBEDDINGS, *BLOCKS]
LAYERNORM_WEIGHTS = [
    *keep("model.embed_tokens.weight", "model.norm.*", "lm_head.weight"),
    *keep("model.layers.*.self_attn.**", "model.layers.*.mlp.**", "model.layers.*.*_layernorm.*"),
]


def qkv_biases(key="attention_bias"):
    """One native switch for the biases of q, k and v; o has none."""
    return Both(
        lambda native: {"attention_bias": getattr(native, key), "attention_out_bias": False},
        lambda config: {key: config.attention_bias},
    )


def granite_multipliers(*more):
    """Factors on embeddings, scores and branches under Granite's names; `more` are further keys of one name."""
    return Same("embedding_multiplier", "attention_multiplier", "residual_multiplier", *more)


def reciprocal(ours, native):
    """A factor on one side that divides on the other (Cohere's logit_scale is 1 / logits_scaling)."""
    return Both(
        lambda config: {ours: 1 / getattr(config, native)},
        lambda config: {native: _exact_reciprocal(getattr(config, ours))},
    )


def _exact_reciprocal(value):
    """1 / value, or the neighbouring float whose reciprocal is `value` again."""
    from math import inf, nextafter

    nearest = 1 / value
    candidates = (nearest, nextafter(nearest, inf), nextafter(nearest, -inf))
    return next((found for found in candidates if 1 / found == value), nearest)


def all_biases(key="attention_bias"):
    """One native switch for the biases of q, k, v and o (of q_a, kv_a and o under MLA)."""
    return Both(
        lambda native: {"attention_bias": getattr(native, key), "attention_out_bias": getattr(native, key)},
        lambda config: {key: config.attention_bias},
    )


# ---- RoPE ----
# A model of which no layer rotates.
NO_POSITIONS = {
    "position_embedding_type": "none",
    "rope_parameters": None,
    "partial_rotary_factor": 1.0,
    "rope_interleaved": False,
}


def rope(partial=False):
    """A flat `rope_parameters`; `partial` for families whose rotary embedding reads `partial_rotary_factor`."""
    return Both(
        lambda native: read_flat_rope(native, partial), lambda config: {"rope_parameters": written_flat_rope(config, partial)}
    )


def read_flat_rope(native, partial=False):
    """Keywords for a flat native `rope_parameters`.

    Raises:
        ValueError: for a partial rotary factor of a type that rotates whole heads.
    """
    given = native.rope_parameters
    share = given.get("partial_rotary_factor") or 1.0
    if share != 1.0 and not partial and given["rope_type"] != "default":
        raise ValueError(
            f"{native.model_type} with rope_parameters={given} cannot be converted: attention rotates whole heads, "
            f"so partial_rotary_factor={share} fails natively too; remove it"
        )
    return {"rope_parameters": live_rope(given), "partial_rotary_factor": share if partial else 1.0}


def live_rope(given):
    """The keys of a native RoPE dict that its rule reads; others are dead and stay native."""
    from hf_variants.modeling.vocabulary import ROPE_KEYS

    kind = given["rope_type"]
    required, optional = ROPE_KEYS.get(kind, (tuple(given), ()))
    live = {"rope_type", "rope_theta", *required, *optional}
    if kind == "dynamic":
        # transformers measures the stretch from max_position_embeddings; ours defaults to the same.
        live.discard("original_max_position_embeddings")
    return {key: value for key, value in given.items() if key in live and value is not None}


def written_flat_rope(config, partial=False):
    """A flat native `rope_parameters` for the first rotary embedding of a config of ours."""
    if config.position_embedding_type != "rope":
        return {"rope_type": "default", "rope_theta": 10000.0}
    key = next(iter(config.rope_keys), None)
    written = written_rope(config, key) if key else {"rope_type": "default", "rope_theta": 10000.0}
    if partial:
        written["partial_rotary_factor"] = config.rope_of(key).get("partial_rotary_factor", config.partial_rotary_factor)
    return written


def written_rope(config, key):
    """A RoPE dict of ours under the names that transformers reads."""
    written = {name: value for name, value in config.rope_of(key).items() if name != "partial_rotary_factor"}
    written = fold_ntk(written, config.rotary_dim_of(key))
    if written["rope_type"] == "dynamic":
        written.pop("original_max_position_embeddings", None)
    return written


def rope_per_layer_type():
    """`rope_parameters` with one dict for full and one for sliding layers (Gemma 3)."""
    return Both(_read_nested, _write_nested)


def _read_nested(native):
    kinds = list(dict.fromkeys(native.layer_types))
    missing = [kind for kind in kinds if kind not in native.rope_parameters]
    if missing:
        raise ValueError(
            f"{native.model_type}: rope_parameters has no entry for {missing} of layer_types; choose from "
            f"{list(native.rope_parameters)}"
        )
    return {"rope_parameters": {kind: live_rope(native.rope_parameters[kind]) for kind in kinds}}


def _write_nested(config):
    keys = {plan.layer_type: plan.rope_key for plan in config.layer_plan() if plan.rope_key is not None}
    written = {kind: written_rope(config, key) for kind, key in keys.items()}
    return {"rope_parameters": written} if written else {}


def rope_on_sliding_layers(unless_windowless=False):
    """Full layers have no positions (Cohere 2); `unless_windowless`: without any window every layer has (EXAONE 4)."""
    return Both(
        lambda native: _read_sliding_rope(native, unless_windowless),
        lambda config: _write_sliding_rope(config, unless_windowless),
    )


def _read_sliding_rope(native, unless_windowless):
    if unless_windowless and native.sliding_window is None:
        return {}
    flags = [int(kind == "sliding_attention") for kind in native.layer_types]
    if any(flags):
        return {"no_rope_layers": flags}
    return dict(NO_POSITIONS)


def _write_sliding_rope(config, unless_windowless):
    if not unless_windowless or config.position_embedding_type != "rope":
        return {}
    return {"sliding_window": config.sliding_window}


# ---- windows ----
def one_window():
    """`sliding_window` for every layer, or None (Mistral); the masks of these families do not read `layer_types`."""
    return Both(_read_one_window, lambda config: {"sliding_window": config.sliding_window})


def _read_one_window(native):
    kind = "full_attention" if native.sliding_window is None else "sliding_attention"
    stray = getattr(native, "layer_types", None)
    if stray is not None and set(stray) != {kind}:
        raise ValueError(
            f"{native.model_type} with layer_types={stray} and sliding_window={native.sliding_window} cannot be "
            "converted: its masks ignore layer_types but its cache follows them; remove layer_types (every layer "
            f"is {kind!r}) or use a model type that reads them, as ministral does"
        )
    return {"sliding_window": native.sliding_window}


def window_of_layer_types(use_key=None):
    """`layer_types` with one window for the sliding ones; `use_key` is a native switch that turns it on."""
    return Both(read_layer_types, lambda config: _write_layer_types(config, use_key))


def read_layer_types(native):
    """`layer_types`, and the window where one of them slides."""
    slides = "sliding_attention" in native.layer_types
    return {"layer_types": list(native.layer_types), "sliding_window": native.sliding_window if slides else None}


def _write_layer_types(config, use_key):
    written = {"layer_types": list(config.layer_types)}
    if config.sliding_window is not None:
        written["sliding_window"] = config.sliding_window
    if use_key is not None:
        written[use_key] = config.sliding_window is not None
    return written


# ---- experts ----
def aux_loss():
    """Native families add their balance loss only while they return router logits; otherwise there is no balancing."""
    return Both(_read_aux_loss, _write_aux_loss)


def _read_aux_loss(native):
    from transformers.utils import logging

    if not native.output_router_logits:
        return {"router_balance": "none"}
    logging.get_logger(__name__).warning_once(
        "output_router_logits=True adds a balance loss: natively over the tokens of all layers at once, here of each "
        "layer, averaged. The two are equal where one layer is sparse, and steer alike where several are."
    )
    balanced = {"router_balance": "aux_loss", "router_aux_loss_coef": native.router_aux_loss_coef}
    return {"output_router_logits": True, **(balanced if native.router_aux_loss_coef else {})}


def _write_aux_loss(config):
    if config.router_balance != "aux_loss":
        return {"output_router_logits": False}
    return {"output_router_logits": True, "router_aux_loss_coef": config.router_aux_loss_coef}


def every_layer_sparse():
    """Experts in every layer, as wide as `intermediate_size` (Mixtral)."""
    return Both(
        lambda native: {
            "num_experts": native.num_local_experts,
            "num_experts_per_tok": native.num_experts_per_tok,
            "intermediate_size": native.intermediate_size,
            "moe_intermediate_size": native.intermediate_size,
        },
        lambda config: (
            {
                "num_local_experts": config.num_experts,
                "num_experts_per_tok": config.num_experts_per_tok,
                "intermediate_size": config.moe_intermediate_size,
            }
            if config.has_experts
            else {}
        ),
    )


def no_bidirectional():
    """Gemma's flag changes the mask on some backends and not on others."""
    return Refuse(
        "use_bidirectional_attention",
        lambda native: bool(getattr(native, "use_bidirectional_attention", None)),
        "natively its effect depends on the attention backend and on whether the batch is padded; set it to False for "
        "a causal model",
    )


def scaled_embedding():
    """Looked-up rows times the root of the width (Gemma)."""
    return Both(
        lambda native: {
            "embedding_multiplier": native.hidden_size**0.5,
            "embedding_multiplier_scope": "input_ids",
        }
    )


def scale_embedding_switch():
    """`scale_embedding`: whether looked-up rows are multiplied by the root of the width."""
    return Both(
        lambda native: scaled_embedding().read(native) if native.scale_embedding else {},
        lambda config: {"scale_embedding": config.embedding_multiplier != 1},
    )


def gemma_keys():
    """What Gemma 2 and Gemma 3 share."""
    return [
        *MODERN_KEYS,
        Same("intermediate_size", "query_pre_attn_scalar", "final_logit_softcapping"),
        Key("hidden_act", "hidden_activation"),
        Always(norm_placement="sandwich", norm_unit_offset=True, norm_weight_in_fp32=True),
        scaled_embedding(),
        HeadDim(declared=True),
        all_biases(),
        window_of_layer_types(),
        no_bidirectional(),
    ]
