"""DBRX: clipped queries, keys and values, LayerNorm without bias, experts in every layer with their rows in one table.

The base of RoPE is read from the top level natively; `attn_config.rope_theta` only has to be there. `emb_pdrop` is never
read, so it stays native.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, TrainingOnly
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT, FROZEN_PAD, rope
from hf_variants.convert.tensor_ops import Join, Split, Transpose, Unflatten, head_rows
from hf_variants.convert.weight_rules import keep, rearrange, rename

_BLOCK, _OURS = "transformer.blocks.*.", "model.layers.*."
_EXPERTS = _BLOCK + "ffn.experts.mlp."


def _read_attention(native):
    attention = native.attn_config
    return {
        "num_key_value_heads": attention.kv_n_heads,
        "clip_qkv": attention.clip_qkv,
        "attention_dropout": attention.attn_pdrop,
    }


def _write_attention(config):
    theta = config.rope_of(config.rope_keys[0])["rope_theta"] if config.rope_keys else 10000.0
    return {
        "attn_config": {
            "kv_n_heads": config.num_key_value_heads,
            "clip_qkv": config.clip_qkv,
            "attn_pdrop": config.attention_dropout,
            "rope_theta": theta,
        }
    }


def _read_experts(native):
    experts = native.ffn_config
    return {
        "num_experts": experts.moe_num_experts,
        "num_experts_per_tok": experts.moe_top_k,
        "intermediate_size": experts.ffn_hidden_size,
        "moe_intermediate_size": experts.ffn_hidden_size,
        "norm_topk_prob": experts.moe_normalize_expert_weights is not None,
        "hidden_act": experts.ffn_act_fn.get("name", "silu"),
    }


def _write_experts(config):
    if not config.has_experts:
        return {}
    return {
        "ffn_config": {
            "moe_num_experts": config.num_experts,
            "moe_top_k": config.num_experts_per_tok,
            "ffn_hidden_size": config.moe_intermediate_size,
            "moe_normalize_expert_weights": 1.0 if config.norm_topk_prob else None,
            "ffn_act_fn": {"name": config.hidden_act},
        }
    }


FAMILY = Family(
    model_type="dbrx",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        FROZEN_PAD,
        # The width of the experts is taken from this name before its alias is read.
        Both(writer=lambda config: {"d_model": config.hidden_size}),
        Key("max_position_embeddings", "max_seq_len"),
        Key("hidden_dropout", "resid_pdrop"),
        Always(norm_type="layernorm", norm_bias=False, norm_eps=1e-5),
        Refuse(
            "attn_config.clip_qkv",
            lambda native: native.attn_config.clip_qkv is None,
            "natively it fails; set it to a value that no projection reaches for no clipping",
        ),
        TrainingOnly("ffn_config.moe_jitter_eps", "multiplies the input of the router by noise"),
        Refuse(
            "ffn_config.moe_normalize_expert_weights",
            lambda native: native.ffn_config.moe_normalize_expert_weights not in (None, 1),
            "ours divides the chosen weights by their sum or not at all; set it to 1.0 or None",
        ),
        Refuse(
            "output_router_logits",
            lambda native: native.output_router_logits and native.ffn_config.moe_loss_weight != 0,
            "the balance loss that it adds is set in ffn_config; convert with False and set router_balance afterwards",
        ),
        Both(_read_attention, _write_attention),
        Both(_read_experts, _write_experts),
        rope(),
    ],
    weights=[
        *keep("lm_head.weight"),
        rename("transformer.wte.weight", "model.embed_tokens.weight"),
        rename("transformer.norm_f.weight", "model.norm.weight"),
        rename(_BLOCK + "norm_attn_norm.norm_1.weight", _OURS + "input_layernorm.weight"),
        rename(_BLOCK + "norm_attn_norm.norm_2.weight", _OURS + "post_attention_layernorm.weight"),
        rearrange(
            _BLOCK + "norm_attn_norm.attn.Wqkv.weight",
            tuple(f"{_OURS}self_attn.{part}_proj.weight" for part in "qkv"),
            Split(head_rows),
        ),
        rename(_BLOCK + "norm_attn_norm.attn.out_proj.weight", _OURS + "self_attn.o_proj.weight"),
        rename(_BLOCK + "ffn.router.layer.weight", _OURS + "mlp.gate.weight"),
        rearrange(
            (_EXPERTS + "w1", _EXPERTS + "v1"),
            _OURS + "mlp.experts.gate_up_proj",
            Unflatten(lambda config: config.num_experts),
            Join(1),
        ),
        rearrange(
            _EXPERTS + "w2",
            _OURS + "mlp.experts.down_proj",
            Unflatten(lambda config: config.num_experts),
            Transpose(1, 2),
        ),
    ],
    needs={"attn_config": {"clip_qkv": 8.0, "rope_theta": 10000.0}},
)
