"""Cross-attention: queries of one stack, keys and values of the states of another.

Vaswani et al. 2017, arXiv:1706.03762 §3.2.3. Notable here: the same projections, norms and score terms as self-attention,
grouped or latent; the states have an order of their own, so no rotation, bias of distance, window or query temperature acts
(`layer_plan.cross_plan`). Keys and values (the latents under MLA) are made once and kept in the cross cache of an
`EncoderDecoderCache`. A query that sees no state gets zeros before the output projection, on every backend.
"""

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.utils.import_utils import is_tracing

from .attention_backends import attention_function
from .grouped_attention import VariantsAttention, split_heads
from .latent_attention import VariantsLatentAttention
from .layer_plan import cross_plan
from .masks import documents_of, needs_padding
from .products import project
from .score_terms import ScoreTerms


def cross_mask(mask, batch, states):
    """Which of the states [B, S, width] each query sees: boolean [B, 1, Q or 1, S], or None where all of them.

    Args:
        mask: [B, S], 1 at real states; or [B, 1, T, S] or [B, T, S], per query; or None.

    Raises:
        ValueError: for another shape.
    """
    if mask is None:
        return None
    length = states.shape[1]
    additive = mask.dim() > 2 and mask.is_floating_point()
    if mask.dim() not in (2, 3, 4) or mask.shape[0] != batch or mask.shape[-1] != length or additive:
        raise ValueError(
            f"encoder_attention_mask is {mask.dtype} of the shape {tuple(mask.shape)}, but there are {batch} rows of {length} "
            f"encoder states; give [{batch}, {length}], or booleans of [{batch}, 1, queries, {length}]"
        )
    mask = needs_padding(mask)
    if mask is None or mask.dim() == 4:
        return mask
    return mask[:, None, None] if mask.dim() == 2 else mask.unsqueeze(1)


def document_mask(states, mask, position_ids, own_positions, own_mask, past_key_values):
    """`mask` [B, S], or which states each token may attend to [B, 1, T, S] where rows hold several documents.

    Args:
        states: [B, S, width]. mask: [B, S], 1 at real states, or None.
        position_ids: of the states, [B or 1, S]; own_positions: of the tokens, [B or 1, T]; each may be None.
        own_mask: [B, T], 1 at real tokens, or anything else, which is not looked at.
        past_key_values: the cache of the tokens, or None.

    Raises:
        ValueError: where the two sides of a row hold different numbers of documents, or packed rows are decoded from a cache.
    """
    if (position_ids is None and own_positions is None) or is_tracing(states):
        return mask
    batch = states.shape[0]
    theirs, real = _documents(position_ids, mask, batch, states.shape[1], states.device)
    length = theirs.shape[1] if own_positions is None else own_positions.shape[-1]
    own, shown = _documents(own_positions, own_mask, batch, length, states.device)
    if not bool(theirs.any()) and not bool(own.any()):
        return mask
    if past_key_values is not None and past_key_values.get_seq_length() > 0:
        raise ValueError(
            "rows of several documents (position_ids that start again) cannot be decoded from a cache; unpack them"
        )
    counts = [(documents * visible).amax(dim=1) + 1 for documents, visible in ((theirs, real), (own, shown))]
    if bool((counts[0] != counts[1]).any()):
        row = int((counts[0] != counts[1]).nonzero()[0])
        raise ValueError(
            f"row {row} holds {int(counts[0][row])} documents in the encoder (position_ids) and {int(counts[1][row])} in the "
            "decoder (decoder_position_ids); the n-th attends to the n-th, so give as many"
        )
    return ((own.unsqueeze(2) == theirs.unsqueeze(1)) & real.unsqueeze(1)).unsqueeze(1)


def _documents(positions, mask, batch, length, device):
    two_dimensional = isinstance(mask, torch.Tensor) and mask.dim() == 2
    visible = mask.bool() if two_dimensional else torch.ones(batch, length, dtype=torch.bool, device=device)
    if positions is None:
        return torch.zeros(batch, length, dtype=torch.long, device=device), visible
    return documents_of(positions.expand(batch, -1), visible), visible


def recall(cache, layer_idx, states, make):
    """Keys and values of `states`: what `make(states)` gives, made once and then read from `cache`.

    Args:
        cache: an `EncoderDecoderCache`, or None to make them anew.
        states: [B, S, width], or None where the cache holds their keys.

    Raises:
        ValueError: where the cache was filled from states of another length or batch, or there are neither states nor keys.
    """
    filled = cache is not None and cache.is_updated.get(layer_idx)
    if states is None and (not filled or cache.cross_attention_cache.layers[layer_idx].is_compileable):
        raise ValueError(
            "cross-attention has no states to attend to: give encoder_hidden_states, which only a filled cache that grows "
            "replaces"
        )
    if cache is None:
        return make(states)
    if not filled:
        keys, values = cache.cross_attention_cache.update(*make(states), layer_idx)
        cache.is_updated[layer_idx] = True
    else:
        layer = cache.cross_attention_cache.layers[layer_idx]
        keys, values = layer.keys, layer.values
    if states is None:
        return keys, values
    (batch, length), static = states.shape[:2], cache.cross_attention_cache.layers[layer_idx].is_compileable
    if keys.shape[0] != batch or (keys.shape[2] < length if static else keys.shape[2] != length):
        raise ValueError(
            f"past_key_values holds cross keys of {keys.shape[0]} rows of {keys.shape[2]} states, but encoder_hidden_states "
            f"has {batch} rows of {length}; one cache serves one encoder input: start a new one"
        )
    return keys[:, :, :length], values[:, :, :length]


def split_cache(past_key_values):
    """The cache of self-attention and, where there is one, the `EncoderDecoderCache` around it; each may be None.

    Cross layers that are not filled yet become plain ones: no window cuts states off.
    """
    if not isinstance(past_key_values, EncoderDecoderCache):
        return past_key_values, None
    layers = past_key_values.cross_attention_cache.layers
    for index, layer in enumerate(layers):
        if layer.is_sliding and not layer.is_initialized:
            layers[index] = DynamicLayer()
    return past_key_values.self_attention_cache, past_key_values


def new_cache(config):
    """An empty growing cache of a causal stack: for its self-attention and, where it has one, for its cross-attention."""
    cache = DynamicCache(config=config)
    return EncoderDecoderCache(cache, DynamicCache()) if config.add_cross_attention else cache


def blind_rows(mask, q_len):
    """A mask [B, 1, Q, S] in which every query sees something, and [B, Q, 1, 1] true at those that see nothing; or Nones."""
    if mask is None:
        return None, None
    blind = ~mask.any(dim=-1, keepdim=True)
    return (mask | blind).expand(-1, -1, q_len, -1), blind.transpose(1, 2)


class VariantsCrossAttention(VariantsAttention):
    """Attention of one layer to the states of another stack, with `num_key_value_heads` groups.

    Args:
        config: the `VariantsConfig` of the stack that asks.
        plan: the `LayerPlan` of the layer.
        kv_width: width of the states.
    """

    def __init__(self, config, plan, kv_width):
        super().__init__(config, cross_plan(config, plan), kv_width)
        self.is_causal = False

    def forward(self, hidden_states, encoder_hidden_states=None, attention_mask=None, past_key_values=None, **kwargs):
        """Args: hidden_states [B, T, hidden]; encoder_hidden_states [B, S, kv_width], which a filled cache replaces;
        attention_mask, boolean [B or 1, 1, T or 1, S] or None (`cross_mask` makes it); past_key_values, an
        `EncoderDecoderCache` or None.

        Returns the output [B, T, hidden] and the weights [B, heads, T, S] (eager backend) or None.
        """
        query = self._order(self, project(self.q_proj, hidden_states), self.q_norm, None)
        key, value = recall(past_key_values, self.layer_idx, encoder_hidden_states, self.keys_and_values)
        mask, blind = blind_rows(attention_mask, query.shape[2])
        out, weights = attention_function(self.config._attn_implementation)(
            self,
            query,
            key,
            value,
            mask,
            scaling=self.scaling,
            dropout=self.attention_dropout if self.training else 0.0,
            terms=ScoreTerms(self.softcap, None, self.sinks),
        )
        out = out if blind is None else out.masked_fill(blind, 0.0)
        return project(self.o_proj, self._gate(self, out, hidden_states)), weights

    def keys_and_values(self, states):
        """[B, S, kv_width] -> keys and values [B, kv_heads, S, head_dim]."""
        key = self._order(self, project(self.k_proj, states), self.k_norm, None)
        return key, split_heads(self.clip(project(self.v_proj, states)), self.head_dim)


class VariantsLatentCrossAttention(VariantsLatentAttention):
    """Latent attention of one layer to the states of another stack: one cached latent per state serves all heads.

    The part of a head that MLA rotates stays as projected: one key shared by all heads. Arguments as `VariantsCrossAttention`.
    """

    def __init__(self, config, plan, kv_width):
        super().__init__(config, cross_plan(config, plan), kv_width)
        self.is_causal = False

    def forward(self, hidden_states, encoder_hidden_states=None, attention_mask=None, past_key_values=None, **kwargs):
        """As `VariantsCrossAttention.forward`."""
        q_nope, q_rope = self._queries(hidden_states)
        latent, k_rope = recall(past_key_values, self.layer_idx, encoder_hidden_states, self._latents)
        mask, blind = blind_rows(attention_mask, q_nope.shape[2])
        out, weights = self._attend(q_nope, q_rope, latent, k_rope, mask, None, past_key_values is not None)
        out = out if blind is None else out.masked_fill(blind, 0.0)
        return project(self.o_proj, self._gate(self, out, hidden_states)), weights

    def keys_and_values(self, states):
        """[B, S, kv_width] -> what a cache holds of them: latents [B, 1, S, rank (+ norms)] and keys [B, 1, S, rope]."""
        return self._latents(states)


# attention_type -> attention to the states of another stack
CROSS_ATTENTIONS = {"gqa": VariantsCrossAttention, "mla": VariantsLatentCrossAttention}


def build_cross_attention(config, plan):
    """The cross-attention of one layer. `plan.cross_width` says how wide the states are."""
    return CROSS_ATTENTIONS[plan.attention](config, plan, plan.cross_width)
