"""Grouped-query attention: MHA, GQA and MQA are the same layer with as many, fewer and one key-value heads.

    MHA   q0 q1 q2 q3      GQA   q0 q1 q2 q3      MQA   q0 q1 q2 q3
          |  |  |  |             \\ /   \\ /              \\  |  |  /
          k0 k1 k2 k3             k0    k1                  k0

Vaswani et al. 2017 (arXiv:1706.03762), Ainslie et al. 2023 (arXiv:2305.13245), Shazeer 2019 (arXiv:1911.02150).
"""

import torch
from torch import nn
from transformers import initialization as init

from .attention_backends import attention_function
from .norms import PerHeadNorm, VariantsRMSNorm, build_norm
from .null_modules import Identity
from .output_gate import build_output_gate
from .positions import NoTurn, RotaryTurn
from .products import project
from .score_terms import ScoreTerms
from .start_window_cache import placed_query


def split_heads(states, head_dim):
    """[B, T, heads * D] -> [B, heads, T, D]."""
    return states.view(*states.shape[:-1], -1, head_dim).transpose(1, 2)


class Clip(nn.Module):
    """Clamps to [-limit, limit] (MPT, OLMo, DBRX)."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, states):
        return states.clamp(min=-self.limit, max=self.limit)


class VariantsAttention(nn.Module):
    """Attention of one layer with `num_key_value_heads` groups.

    Args:
        config: a `VariantsConfig`.
        plan: the `LayerPlan` of this layer.
        kv_width: width of the states that keys and values are made of; None gives hidden_size.
    """

    def __init__(self, config, plan, kv_width=None):
        super().__init__()
        kv_from = config.hidden_size if kv_width is None else kv_width
        self.config, self.layer_idx, self.scaling = config, plan.index, plan.scaling
        self.head_dim, self.is_causal, self.window = config.head_dim, config.is_causal, plan.window
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.attention_dropout, self.softcap = config.attention_dropout, config.attn_logit_softcapping
        width, kv_width = (n * self.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(config.hidden_size, width, bias=config.attention_bias)
        self.k_proj = nn.Linear(kv_from, kv_width, bias=config.attention_bias)
        self.v_proj = nn.Linear(kv_from, kv_width, bias=config.attention_bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=config.attention_out_bias)
        self.gate_proj, self._gate = build_output_gate(config)
        self.q_norm, self.k_norm = QK_NORMS[plan.qk_norm](config, width, kv_width)
        kept = torch.float32 if config.sinks_in_fp32 else None
        self.sinks = nn.Parameter(torch.empty(config.num_attention_heads, dtype=kept)) if config.attention_sinks else None
        self.turn = NoTurn() if plan.rope_key is None else RotaryTurn(config.rope_interleaved)
        self.clip = Identity() if config.clip_qkv is None else Clip(config.clip_qkv)
        self._order = _ORDERS[(plan.qk_norm, config.qk_norm_after_rope)]
        self._temper = TEMPERATURES[plan.tempered]

    def fill(self):
        if self.sinks is not None:
            init.normal_(self.sinks, mean=0.0, std=self.config.initializer_range)

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        position_embeddings=None,
        past_key_values=None,
        alibi=None,
        query_scale=None,
        **kwargs,
    ):
        """hidden_states [B, T, hidden]; returns the output of the same shape and the weights (eager backend) or None."""
        query = self._order(self, project(self.q_proj, hidden_states), self.q_norm, position_embeddings)
        query = self._temper(query, query_scale)
        key = self._order(self, project(self.k_proj, hidden_states), self.k_norm, position_embeddings)
        value = split_heads(self.clip(project(self.v_proj, hidden_states)), self.head_dim)
        if past_key_values is not None:
            query = placed_query(past_key_values, query, self.layer_idx)
            key, value = past_key_values.update(key, value, self.layer_idx)
        out, weights = attention_function(self.config._attn_implementation)(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            dropout=self.attention_dropout if self.training else 0.0,
            terms=ScoreTerms(self.softcap, None if alibi is None else alibi.scaled(self.scaling), self.sinks),
        )
        return project(self.o_proj, self._gate(self, out, hidden_states)), weights


def as_they_are(query, scale):
    return query


def by_position(query, scale):
    return (query * scale).to(query.dtype)


# whether queries have a temperature -> [B, heads, T, D], factors [B, 1, T, 1] -> [B, heads, T, D]
TEMPERATURES = {False: as_they_are, True: by_position}


def _norm_heads_then_turn(self, states, norm, position_embeddings):
    return self.turn(norm(split_heads(self.clip(states), self.head_dim)), position_embeddings)


def _turn_then_norm_heads(self, states, norm, position_embeddings):
    return norm(self.turn(split_heads(self.clip(states), self.head_dim), position_embeddings))


def _norm_channels_then_turn(self, states, norm, position_embeddings):
    return self.turn(split_heads(self.clip(norm(states)), self.head_dim), position_embeddings)


def _turn_then_norm_channels(self, states, norm, position_embeddings):
    turned = self.turn(split_heads(self.clip(states), self.head_dim), position_embeddings)
    return split_heads(norm(turned.transpose(1, 2).flatten(2)), self.head_dim)


# (qk_norm, qk_norm_after_rope) -> how a projected query or key becomes turned heads
_ORDERS = {
    ("none", False): _norm_heads_then_turn,
    ("none", True): _norm_heads_then_turn,
    ("head", False): _norm_heads_then_turn,
    ("per_head", False): _norm_heads_then_turn,
    ("l2", False): _norm_heads_then_turn,
    ("full", False): _norm_channels_then_turn,
    ("head", True): _turn_then_norm_heads,
    ("per_head", True): _turn_then_norm_heads,
    ("l2", True): _turn_then_norm_heads,
    ("full", True): _turn_then_norm_channels,
}


def no_qk_norm(config, width, kv_width):
    return Identity(), Identity()


def head_qk_norm(config, width, kv_width):
    return build_norm(config, config.query_head_dim), build_norm(config, config.query_head_dim)


def per_head_qk_norm(config, width, kv_width):
    return PerHeadNorm(config, width // config.head_dim), PerHeadNorm(config, kv_width // config.head_dim)


def full_qk_norm(config, width, kv_width):
    return build_norm(config, width), build_norm(config, kv_width)


def l2_qk_norm(config, width, kv_width):
    norms = (VariantsRMSNorm(config.query_head_dim, eps=config.norm_eps, affine=False) for _ in range(2))
    return tuple(norms)


QK_NORMS = {"none": no_qk_norm, "head": head_qk_norm, "per_head": per_head_qk_norm, "full": full_qk_norm, "l2": l2_qk_norm}
