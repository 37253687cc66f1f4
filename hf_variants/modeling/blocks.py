"""Residual topologies: where the norms stand around attention and feed-forward.

Notable here: one subclass per topology, each with a forward of a few lines, so that a reader compares topologies by comparing
bodies. Attention kind and dense or expert feed-forward are orthogonal to it. So is attention to another stack: `look` is its
branch, which stands behind self-attention, or nothing (`CROSS_BRANCHES`).
"""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .cross_attention import build_cross_attention
from .experts import VariantsSparseMLP
from .feed_forward import FEED_FORWARDS
from .grouped_attention import VariantsAttention
from .latent_attention import VariantsLatentAttention
from .norms import build_norm
from .null_modules import Identity, build_dropout

ATTENTIONS = {"gqa": VariantsAttention, "mla": VariantsLatentAttention}


def build_mlp(config, plan):
    """The feed-forward of one layer: dense of the planned width, or sparse."""
    if plan.mlp == "sparse":
        return VariantsSparseMLP(config)
    return FEED_FORWARDS[config.mlp_type](config, plan.intermediate_size)


class Scale(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, hidden_states):
        return hidden_states * self.factor


def no_cross(layer, hidden_states, *args):
    return hidden_states


def cross_pre(layer, hidden_states, *args):
    return hidden_states + layer.scale(layer.attend_across(layer.cross_attn_layernorm(hidden_states), *args))


def cross_pre_normed_residual(layer, hidden_states, *args):
    normed = layer.cross_attn_layernorm(hidden_states)
    return normed + layer.scale(layer.attend_across(normed, *args))


def cross_post(layer, hidden_states, *args):
    return hidden_states + layer.scale(layer.cross_attn_layernorm(layer.attend_across(hidden_states, *args)))


def cross_post_ln(layer, hidden_states, *args):
    return layer.cross_attn_layernorm(hidden_states + layer.scale(layer.attend_across(hidden_states, *args)))


def cross_sandwich(layer, hidden_states, *args):
    attended = layer.attend_across(layer.cross_attn_layernorm(hidden_states), *args)
    return hidden_states + layer.scale(layer.post_cross_attn_layernorm(attended))


# topology -> (norms of the branch, layer, hidden states, what it attends to -> hidden states with the branch joined). Parallel
# layers join it to what the other branches have read too, so its norm is the branch's own.
CROSS_BRANCHES = {
    "pre": (("cross_attn_layernorm",), cross_pre),
    "pre_normed_residual": (("cross_attn_layernorm",), cross_pre_normed_residual),
    "post": (("cross_attn_layernorm",), cross_post),
    "post_ln": (("cross_attn_layernorm",), cross_post_ln),
    "sandwich": (("cross_attn_layernorm", "post_cross_attn_layernorm"), cross_sandwich),
    "parallel": (("cross_attn_layernorm",), cross_pre),
    "parallel_two_norms": (("cross_attn_layernorm",), cross_pre),
}


class VariantsDecoderLayer(GradientCheckpointingLayer):
    """One layer; subclasses say which norms it has and how the branches are joined.

    Args:
        config: a `VariantsConfig`.
        plan: the `LayerPlan` of this layer.
    """

    norms = ()

    def __init__(self, config, plan):
        super().__init__()
        self.self_attn = ATTENTIONS[plan.attention](config, plan)
        self.mlp = build_mlp(config, plan)
        cross_norms, self.look = CROSS_BRANCHES[plan.topology]
        if plan.cross_width is None:
            cross_norms, self.look = (), no_cross
        else:
            self.cross_attn = build_cross_attention(config, plan)
        for name in (*self.norms, *cross_norms):
            setattr(self, name, build_norm(config, config.hidden_size))
        if plan.index == 0 and not config.first_attention_norm:
            self.input_layernorm = Identity()
        self.dropout = build_dropout(config.hidden_dropout)
        attended = config.attention_output_dropout
        self.attention_dropout = build_dropout(config.hidden_dropout if attended is None else attended)
        self.scale = Identity() if config.residual_multiplier == 1 else Scale(config.residual_multiplier)

    def attend(self, hidden_states, **kwargs):
        return self.attention_dropout(self.self_attn(hidden_states, **kwargs)[0])

    def attend_across(self, hidden_states, states, mask, cache):
        return self.attention_dropout(self.cross_attn(hidden_states, states, mask, cache)[0])

    def feed(self, hidden_states, token_mask):
        return self.dropout(self.mlp(hidden_states, token_mask))


class PreNormLayer(VariantsDecoderLayer):
    norms = ("input_layernorm", "post_attention_layernorm")

    def forward(self, hidden_states, states=None, token_mask=None, cross=(None, None), **kwargs):
        hidden_states = hidden_states + self.scale(self.attend(self.input_layernorm(hidden_states), **kwargs))
        hidden_states = self.look(self, hidden_states, states, *cross)
        return hidden_states + self.scale(self.feed(self.post_attention_layernorm(hidden_states), token_mask))


class PreNormedResidualLayer(VariantsDecoderLayer):
    norms = ("input_layernorm", "post_attention_layernorm")

    def forward(self, hidden_states, states=None, token_mask=None, cross=(None, None), **kwargs):
        normed = self.input_layernorm(hidden_states)
        hidden_states = normed + self.scale(self.attend(normed, **kwargs))
        normed = self.post_attention_layernorm(self.look(self, hidden_states, states, *cross))
        return normed + self.scale(self.feed(normed, token_mask))


class PostNormLayer(VariantsDecoderLayer):
    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(self, hidden_states, states=None, token_mask=None, cross=(None, None), **kwargs):
        attended = self.post_attention_layernorm(self.attend(hidden_states, **kwargs))
        hidden_states = hidden_states + self.scale(attended)
        hidden_states = self.look(self, hidden_states, states, *cross)
        return hidden_states + self.scale(self.post_feedforward_layernorm(self.feed(hidden_states, token_mask)))


class PostLayerNormLayer(VariantsDecoderLayer):
    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(self, hidden_states, states=None, token_mask=None, cross=(None, None), **kwargs):
        attended = self.scale(self.attend(hidden_states, **kwargs))
        hidden_states = self.post_attention_layernorm(hidden_states + attended)
        hidden_states = self.look(self, hidden_states, states, *cross)
        return self.post_feedforward_layernorm(hidden_states + self.scale(self.feed(hidden_states, token_mask)))


class SandwichLayer(VariantsDecoderLayer):
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

    def forward(self, hidden_states, states=None, token_mask=None, cross=(None, None), **kwargs):
        attended = self.attend(self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + self.scale(self.post_attention_layernorm(attended))
        hidden_states = self.look(self, hidden_states, states, *cross)
        fed = self.feed(self.pre_feedforward_layernorm(hidden_states), token_mask)
        return hidden_states + self.scale(self.post_feedforward_layernorm(fed))


class ParallelLayer(VariantsDecoderLayer):
    norms = ("input_layernorm",)

    def forward(self, hidden_states, states=None, token_mask=None, cross=(None, None), **kwargs):
        normed = self.input_layernorm(hidden_states)
        attended, fed = self.attend(normed, **kwargs), self.feed(normed, token_mask)
        return self.look(self, hidden_states, states, *cross) + self.scale(attended) + self.scale(fed)


class ParallelTwoNormsLayer(VariantsDecoderLayer):
    norms = ("input_layernorm", "post_attention_layernorm")

    def forward(self, hidden_states, states=None, token_mask=None, cross=(None, None), **kwargs):
        attended = self.attend(self.input_layernorm(hidden_states), **kwargs)
        fed = self.feed(self.post_attention_layernorm(hidden_states), token_mask)
        return self.look(self, hidden_states, states, *cross) + self.scale(attended) + self.scale(fed)


TOPOLOGIES = {
    "pre": PreNormLayer,
    "pre_normed_residual": PreNormedResidualLayer,
    "post": PostNormLayer,
    "post_ln": PostLayerNormLayer,
    "sandwich": SandwichLayer,
    "parallel": ParallelLayer,
    "parallel_two_norms": ParallelTwoNormsLayer,
}
