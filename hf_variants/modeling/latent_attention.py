"""Multi-head latent attention: keys and values of all heads are expanded from one cached latent per token.

DeepSeek-V2 (arXiv:2405.04434 §2.1). The cache holds, per token and layer, `kv_lora_rank` numbers of the latent (as its keys)
and `qk_rope_head_dim` of the shared rotary key (as its values).

Notable here: while few queries meet a cache, decoding is ABSORBED: the expansion is folded into query and output, so the
cached latents are used as they are (§2.1.2, "absorbed into W^Q and W^O"). Query-key norm stays exact in both forms: the norm
of an expanded key is one number per head and token (its rotary part is shared, its weight folds into the query), so that
number is cached behind the latent and multiplies the scores.
"""

import torch
from torch import nn
from transformers import initialization as init

from .attention_backends import attention_function
from .attention_scores import attention_weights, causal_mask
from .grouped_attention import TEMPERATURES, split_heads
from .norms import VariantsRMSNorm, build_norm
from .null_modules import Identity
from .output_gate import build_output_gate
from .positions import NoTurn, RotaryTurn
from .products import project
from .score_terms import ScoreTerms
from .start_window_cache import placed_query


class VariantsLatentAttention(nn.Module):
    """Latent attention of one layer.

    Args:
        config: a `VariantsConfig` with `attention_type="mla"`.
        plan: the `LayerPlan` of this layer.
        kv_width: width of the states that latents are made of; None gives hidden_size.
    """

    num_key_value_groups = 1

    def __init__(self, config, plan, kv_width=None):
        super().__init__()
        kv_width = config.hidden_size if kv_width is None else kv_width
        self.config, self.layer_idx, self.scaling = config, plan.index, plan.scaling
        self.is_causal, self.num_heads, self.window = config.is_causal, config.num_attention_heads, plan.window
        self.nope, self.rope, self.rank = config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
        self.v_head_dim, self.qk_head_dim = config.v_head_dim, config.query_head_dim
        self.attention_dropout, self.softcap = config.attention_dropout, config.attn_logit_softcapping
        self.query = QUERY_PROJECTIONS[config.q_lora_rank is not None]
        if config.q_lora_rank is None:
            self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.qk_head_dim, bias=False)
        else:
            self.q_a_proj = nn.Linear(config.hidden_size, config.q_lora_rank, bias=config.attention_bias)
            self.q_a_layernorm = build_norm(config, config.q_lora_rank, eps=config.latent_norm_eps)
            self.q_b_proj = nn.Linear(config.q_lora_rank, self.num_heads * self.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(kv_width, self.rank + self.rope, bias=config.attention_bias)
        self.kv_a_layernorm = build_norm(config, self.rank, eps=config.latent_norm_eps)
        self.kv_b_proj = nn.Linear(self.rank, self.num_heads * (self.nope + self.v_head_dim), bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.v_head_dim, config.hidden_size, bias=config.attention_out_bias)
        self.gate_proj, self._gate = build_output_gate(config)
        self.q_norm, self.k_norm = LATENT_QK_NORMS[plan.qk_norm](config)
        kept = torch.float32 if config.sinks_in_fp32 else None
        self.sinks = nn.Parameter(torch.empty(self.num_heads, dtype=kept)) if config.attention_sinks else None
        self.turn = NoTurn() if plan.rope_key is None else RotaryTurn(config.rope_interleaved)
        self._temper = TEMPERATURES[plan.tempered]
        # absorbed: Q * K * (2 rank + rope) products a head; expanded: K * rank * (nope + v) more, and Q * K * (qk + v)
        saved = 2 * self.rank - self.nope - self.v_head_dim
        self.absorb_up_to = self.rank * (self.nope + self.v_head_dim) // saved if saved > 0 else 1 << 30

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
        """hidden_states [B, T, hidden]; returns the output of the same shape and the weights (where computed) or None."""
        q_nope, q_rope = self._queries(hidden_states, position_embeddings, query_scale)
        latent, k_rope = self._latents(hidden_states, position_embeddings)
        if past_key_values is not None:
            q_rope = placed_query(past_key_values, q_rope, self.layer_idx)
            latent, k_rope = past_key_values.update(latent, k_rope, self.layer_idx)
        cached = past_key_values is not None
        out, weights = self._attend(q_nope, q_rope, latent, k_rope, attention_mask, alibi, cached)
        return project(self.o_proj, self._gate(self, out, hidden_states)), weights

    def _queries(self, hidden_states, position_embeddings=None, query_scale=None):
        """[B, heads, T, nope] and the turned [B, heads, T, rope]."""
        query = self.q_norm(split_heads(self.query(self, hidden_states), self.qk_head_dim))
        q_nope, q_rope = self._temper(query, query_scale).split([self.nope, self.rope], dim=-1)
        return q_nope, self.turn(q_rope, position_embeddings)

    def _latents(self, states, position_embeddings=None):
        """What a cache holds of states [B, S, width]: latents [B, 1, S, rank (+ norms)] and turned keys [B, 1, S, rope]."""
        latent, k_rope = project(self.kv_a_proj_with_mqa, states).split([self.rank, self.rope], dim=-1)
        latent, k_rope = self.kv_a_layernorm(latent).unsqueeze(1), k_rope.unsqueeze(1)
        latent, k_rope = self.k_norm(self, latent, k_rope)
        return latent, self.turn(k_rope, position_embeddings)

    def _attend(self, q_nope, q_rope, latent, k_rope, mask, alibi, cached):
        """Output [B, T, heads, v] and weights (where computed) or None of what `_queries` and `_latents` gave."""
        latent, key_scale = latent[..., : self.rank], self.k_norm.scale_of(latent, self.rank)
        alibi = None if alibi is None else alibi.scaled(self.scaling)
        terms = ScoreTerms(self.softcap, alibi, self.sinks, key_scale)
        attend = self._absorbed if self._absorbs(cached, q_nope.shape[2]) else self._expanded
        return attend(q_nope, q_rope, latent, k_rope, mask, terms)

    def _absorbs(self, cached, q_len):
        # in training the backend's memory-lean kernel is worth more than the smaller product
        if self.training or not cached or not _is_matrix(self.kv_b_proj):
            return False
        return q_len <= self.absorb_up_to

    def _expanded(self, q_nope, q_rope, latent, k_rope, mask, terms):
        """Keys and values of every head, through the attention backend of the config."""
        k_nope, value = self.expand(latent)
        key = torch.cat((self.k_norm.weigh_nope(k_nope), k_rope.expand(-1, self.num_heads, -1, -1)), dim=-1)
        if terms.key_scale is not None:
            key = key * terms.key_scale.unsqueeze(-1).to(key.dtype)
        return attention_function(self.config._attn_implementation)(
            self,
            torch.cat((q_nope, q_rope), dim=-1),
            key,
            value,
            mask,
            scaling=self.scaling,
            dropout=self.attention_dropout if self.training else 0.0,
            terms=terms._replace(key_scale=None),
        )

    def _absorbed(self, q_nope, q_rope, latent, k_rope, mask, terms):
        """Scores and sums on the latents themselves; the same numbers as `_expanded`, for every backend."""
        batch, heads, q_len, _ = q_nope.shape
        expand = self.kv_b_proj.weight.view(heads, self.nope + self.v_head_dim, self.rank)
        to_key, to_value = expand.split([self.nope, self.v_head_dim], dim=1)
        q_latent = (self.k_norm.weigh_nope(q_nope) @ to_key).reshape(batch, heads * q_len, self.rank)
        scores = q_latent @ latent[:, 0].transpose(1, 2)
        scores = scores + q_rope.reshape(batch, heads * q_len, -1) @ k_rope[:, 0].transpose(1, 2)
        scores = scores.view(batch, heads, q_len, -1).float() * self.scaling
        weights = attention_weights(scores, causal_mask(self, q_nope, latent, mask), terms).to(latent.dtype)
        out = (weights.view(batch, heads * q_len, -1) @ latent[:, 0]).view(batch, heads, q_len, self.rank)
        return (out @ to_value.transpose(1, 2)).transpose(1, 2), weights

    def expand(self, latent):
        """latent [B, 1, K, rank] -> keys without rotary part [B, heads, K, nope] and values [B, heads, K, v]."""
        expanded = split_heads(self.kv_b_proj(latent[:, 0]), self.nope + self.v_head_dim)
        return expanded.split([self.nope, self.v_head_dim], dim=-1)


def _is_matrix(module):
    """Whether a module is a product with its `weight` and nothing else: a Linear, or a packed one that says so."""
    return type(module) is nn.Linear or getattr(module, "holds_plain_matrix", False)


def _plain_query(self, hidden_states):
    return project(self.q_proj, hidden_states)


def _compressed_query(self, hidden_states):
    return project(self.q_b_proj, self.q_a_layernorm(project(self.q_a_proj, hidden_states)))


# whether queries are compressed -> how they are projected
QUERY_PROJECTIONS = {False: _plain_query, True: _compressed_query}


class NoKeyNorm(nn.Module):
    """Leaves keys as they are: the null object of `LatentKeyNorm`."""

    def forward(self, attention, latent, k_rope):
        return latent, k_rope

    def scale_of(self, latent, rank):
        return None

    def weigh_nope(self, states):
        return states


class LatentKeyNorm(VariantsRMSNorm):
    """RMSNorm over a whole key head [nope | rope], before RoPE, without ever keeping the expanded key.

    The weight of the rotary part multiplies the shared rotary key; that of the other part multiplies the expanded key (or the
    query that meets it); what remains is 1 / rms, one number per head and token, kept behind the latent.
    """

    def forward(self, attention, latent, k_rope):
        k_nope, _ = attention.expand(latent)
        squares = k_nope.float().pow(2).sum(-1) + k_rope.float().pow(2).sum(-1)
        inverse = torch.rsqrt(squares / self.dim + self.eps).transpose(1, 2).unsqueeze(1)
        return torch.cat((latent, inverse.to(latent.dtype)), dim=-1), self._weigh(k_rope, slice(-k_rope.shape[-1], None))

    def scale_of(self, latent, rank):
        """[B, heads, K] factors on the scores."""
        return latent[:, 0, :, rank:].transpose(1, 2).float()

    def weigh_nope(self, states):
        return self._weigh(states, slice(0, states.shape[-1]))

    def _weigh(self, states, part):
        if self.weight is None:
            return states
        weight = self.weight + 1 if self.unit_offset else self.weight
        return states * weight[part]


def _no_latent_norm(config):
    return Identity(), NoKeyNorm()


def _head_latent_norm(config, affine=True):
    options = {
        "eps": config.norm_eps,
        "affine": affine and config.norm_affine,
        "unit_offset": config.norm_unit_offset and affine,
    }
    return VariantsRMSNorm(config.query_head_dim, **options), LatentKeyNorm(config.query_head_dim, **options)


def _l2_latent_norm(config):
    return _head_latent_norm(config, affine=False)


LATENT_QK_NORMS = {"none": _no_latent_norm, "head": _head_latent_norm, "l2": _l2_latent_norm}
