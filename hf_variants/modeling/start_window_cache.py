"""A cache of bounded size for text without end: the first tokens and the latest ones, at places counted within the cache.

Xiao et al. 2023, arXiv:2309.17453 §3.2. With s = `num_sink_tokens`, w = `window`, and t the number of tokens before a query:

    seen        0 1 2 3 | 4 5 ... 96 97 | 98 99 100        s = 4, w = 3, query t = 100
    visible     0 1 2 3                   98 99 100        j < s, or j > t - w
    place       0 1 2 3                    4  5   6        query and keys, as if nothing had been between

Notable here: keys are kept as they are before RoPE and turned to their place at every step, so nothing adds up however long
the text is. How the text is cut into calls does not matter: where the queries of one call see the first tokens from other
distances than the latest ones, heads are widened to [turned for the latest | turned for the first], of which a key fills one.
What could not be exact is refused, models that know nothing of places too.
"""

import torch
from transformers.cache_utils import Cache, DynamicLayer

from .positions import SPREADS, RotaryTurn, VariantsRotaryEmbedding


class StartWindowCache(Cache):
    """Give it as `past_key_values` to a decoder of the family, to `generate` too; a new one per batch of texts.

    Args:
        config: the `VariantsConfig` of the model, with RoPE, ALiBi or no positions, and full attention in every layer.
        num_sink_tokens: first tokens that are kept; 0 keeps the latest alone.
        window: latest tokens that a query sees, itself included.

    Holds keys and values of `num_sink_tokens + window - 1` tokens. `get_seq_length` counts the tokens seen, kept or not. Rows
    have no pads.

    Raises:
        ValueError: for sizes below 1 (0 for `num_sink_tokens`), more places than the context of a model with RoPE, or a config
            whose tokens cannot change their place.
    """

    is_compileable = False
    counts_own_places = True

    def __init__(self, config, num_sink_tokens=4, window=1020):
        check_config(config)
        for name, value, least in (("num_sink_tokens", num_sink_tokens, 0), ("window", window, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
        self.num_sink_tokens, self.window, self.capacity = num_sink_tokens, window, num_sink_tokens + window
        limit = config.max_position_embeddings
        if config.position_embedding_type == "rope" and self.capacity > limit:
            raise ValueError(
                f"num_sink_tokens + window = {num_sink_tokens} + {window} exceeds max_position_embeddings={limit}: places "
                "within the cache would lie beyond the context that the model was trained on"
            )
        turns = {key: PlaceTurn(config, key) for key in config.rope_keys}
        part = 1 if config.attention_type == "mla" else 0
        super().__init__(layers=[StartWindowLayer(self, turns.get(plan.rope_key), part) for plan in config.layer_plan()])
        self.config, self.seen, self._expected = config, 0, None

    @property
    def held(self):
        """Tokens whose keys are held."""
        return min(self.seen, self.capacity - 1)

    @property
    def dropped(self):
        """Tokens whose keys were dropped, all of them between the first and the latest."""
        return self.seen - self.held

    def overflows(self, q_len):
        """Whether a call of several tokens is one in which not all of them see the same tokens before the call."""
        return q_len > 1 and self.seen + q_len > self.capacity

    def widens(self, q_len):
        """Whether the queries of a call see the first tokens from other distances than the latest."""
        return self.num_sink_tokens > 0 and self.overflows(q_len)

    def enter(self, sequence, config, masks_given=False):
        """Tell the cache of the tokens that come next.

        Args:
            sequence: a `Sequence`, as read. config: of the model. masks_given: whether the caller made masks of its own.

        Returns:
            The `Sequence` with all tokens at position 0: heads are not turned before they have their place.

        Raises:
            ValueError: for pads, blocks, masks of the caller, packed rows, positions other than those that follow, or a model
                that places tokens otherwise than the config that the cache was made for.
        """
        if config is not self.config and placing(config) != placing(self.config):
            raise ValueError(
                f"StartWindowCache was made for a config that places tokens by {placing(self.config)}, but the model places "
                f"them by {placing(config)}; make it from model.config"
            )
        if masks_given:
            raise ValueError("StartWindowCache says itself which tokens are seen; leave the 4D attention_mask out")
        if sequence.padding is not None:
            raise ValueError(
                "attention_mask hides tokens, but StartWindowCache counts places over whole rows; give rows of equal length, "
                "or one row at a time"
            )
        if sequence.blocks is not None:
            raise ValueError(
                "blocks of tokens that see each other (images) are not kept together by StartWindowCache; use another cache"
            )
        positions = sequence.position_ids
        expected = torch.arange(self.seen, self.seen + positions.shape[1], device=positions.device)
        if sequence.positions is not None or not bool((positions == expected).all()):
            raise ValueError(
                f"position_ids must go on from the {self.seen} tokens that StartWindowCache has seen, one text per row; leave "
                "them out: the cache places tokens itself"
            )
        self._expected = positions.shape[1]
        return sequence._replace(position_ids=torch.zeros_like(positions))

    def leave(self):
        """The tokens of `enter` have passed all layers."""
        self.seen, self._expected = self.seen + self._expected, None

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Keys and values that the new tokens meet, turned to their places; see `StartWindowLayer`.

        Raises:
            ValueError: for keys of a model that is none of the family.
        """
        if self._expected != key_states.shape[2]:
            raise ValueError(
                "StartWindowCache turns keys itself and serves models of the family, which leave that to it; convert other "
                "models with hf_variants.convert.from_native"
            )
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def place_query(self, query, layer_idx):
        """Heads [B, heads, T, D] of the new tokens turned to their places, [B, heads, T, 2 D] where `widens`."""
        turn, q_len = self.layers[layer_idx].turn, query.shape[2]
        if turn is None:
            return query
        new = torch.arange(q_len, device=query.device)
        latest = turn(query, self.held + new, self.held + q_len)
        if not self.widens(q_len):
            return latest
        return torch.cat((latest, turn(query, (self.seen + new).clamp(max=self.capacity - 1), self.capacity)), dim=-1)

    def columns(self, q_len, device):
        """Numbers [K] of the tokens that a call of `q_len` tokens meets, in order: those held, then the new ones."""
        index = torch.arange(self.held + q_len, device=device)
        return torch.where(index < self.num_sink_tokens, index, index + self.dropped)

    def mask(self, tokens, slopes=None):
        """Visible keys of a call that `overflows`, boolean [1, 1, Q, K].

        With ALiBi's slopes [heads], [1, heads, Q, K] in their dtype: -inf where hidden, and else what is missing of the bias
        when all keys are taken for the latest ones, as `get_mask_sizes` numbers them.

        Args:
            tokens: [B, Q], of which only shape and device are read.
        """
        keys = self.columns(tokens.shape[1], tokens.device)
        queries = (torch.arange(tokens.shape[1], device=tokens.device) + self.seen).unsqueeze(1)
        first = keys < self.num_sink_tokens
        visible = (keys <= queries) & (first | (keys > queries - self.window))
        if slopes is None:
            return visible[None, None]
        nearer = (queries - self.dropped - queries.clamp(max=self.capacity - 1)) * first
        return (slopes.view(-1, 1, 1) * nearer).masked_fill(~visible, -torch.inf).unsqueeze(0)

    def get_seq_length(self, layer_idx=0):
        return self.seen

    def get_query_offset(self, layer_idx=0):
        return self.seen

    def get_mask_sizes(self, query_length, layer_idx=0):
        """(number of keys, number of the first) as if the held tokens were the last ones: what ALiBi's distances need."""
        return self.held + query_length, self.dropped

    def reset(self):
        super().reset()
        self.seen, self._expected = 0, None


class StartWindowLayer(DynamicLayer):
    """Keys and values of one layer, the rotary part as it is before RoPE.

    Args:
        cache: the `StartWindowCache` that this belongs to.
        turn: `PlaceTurn` of the layer, or None where nothing turns.
        part: which of what is cached turns: 0 the keys; 1 the values, where MLA keeps its shared rotary key.
    """

    is_croppable = False
    supports_early_init = False

    def __init__(self, cache, turn, part):
        super().__init__()
        self.cache, self.turn, self.part = cache, turn, part

    def update(self, key_states, value_states, *args, **kwargs):
        """Append tokens, drop those between the first and the latest, and return what the new ones meet."""
        states = list(super().update(key_states, value_states))
        met = list(states)
        if self.turn is not None:
            met[self.part] = self._placed(states[self.part], key_states.shape[2])
        self.keys, self.values = (self._kept(part) for part in states)
        return tuple(met)

    def _placed(self, states, q_len):
        places = torch.arange(states.shape[2], device=states.device)
        turned = self.turn(states, places, states.shape[2])
        if not self.cache.widens(q_len):
            return turned
        first = (places < self.cache.num_sink_tokens).view(-1, 1)
        return torch.cat((turned.masked_fill(first, 0), turned.masked_fill(~first, 0)), dim=-1)

    def _kept(self, states):
        first, latest = self.cache.num_sink_tokens, self.cache.window - 1
        if states.shape[2] <= first + latest:
            return states
        return torch.cat((states[:, :, :first], states[:, :, states.shape[2] - latest :]), dim=2)

    def get_seq_length(self):
        return self.cache.seen

    def crop(self, tokens_to_remove):
        raise ValueError("StartWindowCache cannot go back: what it dropped is gone; assisted decoding needs another cache")


class PlaceTurn:
    """Turns heads to whole-numbered places by the RoPE rule `key` of a config, without the rule's factor on the scores.

    That factor is part of heads already when they come here, turned to position 0.
    """

    def __init__(self, config, key):
        self.rotary = VariantsRotaryEmbedding(config.rope_of(key), config.rotary_dim_of(key))
        self.spread, self.turn = SPREADS[config.rope_interleaved], RotaryTurn(config.rope_interleaved)
        self._table = None

    def __call__(self, states, places, below):
        """states [B, heads, T, D], places [T], all of them less than the number `below`."""
        cos, sin = self._angles(below, states)
        return self.turn(states, (cos[:, :, places], sin[:, :, places]))

    def _angles(self, least, states):
        """Cosines and signed sines of at least so many places, [1, 1, N, d] in the dtype of `states`."""
        table = self._table
        if table is None or table[0].shape[2] < least or (table[0].dtype, table[0].device) != (states.dtype, states.device):
            places = torch.arange(2 * least, device=states.device, dtype=torch.float32)
            angles = places.unsqueeze(-1) * self.rotary.inv_freq.to(states.device)
            self._table = table = self.spread(angles.cos()[None].to(states.dtype), angles.sin()[None].to(states.dtype))
        return table


def counts_own_places(cache):
    """Whether `cache` is a `StartWindowCache`, also one from another copy of this file."""
    return getattr(cache, "counts_own_places", False)


def placed_query(cache, query, layer_idx):
    """`query` turned to its place in a cache that counts places itself; as it is with any other."""
    return cache.place_query(query, layer_idx) if counts_own_places(cache) else query


def placing(config):
    """What of a config decides where heads are turned: scheme, attention, layout, and each layer's RoPE rule and width."""
    keys = [plan.rope_key for plan in config.layer_plan()]
    rules = {key: (config.rope_of(key), config.rotary_dim_of(key)) for key in config.rope_keys}
    return config.position_embedding_type, config.attention_type, config.rope_interleaved, keys, rules


def check_config(config):
    """Refuse a config whose cached tokens cannot change their place. Raises ValueError naming the field."""
    if not hasattr(config, "layer_plan") or not getattr(config, "is_causal", False):
        raise ValueError(
            f"model_type={getattr(config, 'model_type', None)!r}, is_causal={getattr(config, 'is_causal', None)}: "
            "StartWindowCache serves decoders of the family; convert other models with hf_variants.convert.from_native"
        )
    if getattr(config, "add_cross_attention", False):
        raise ValueError(
            "add_cross_attention=True reads another stack, whose states an endless text outgrows; use another cache"
        )
    scheme = config.position_embedding_type
    if scheme not in ("rope", "alibi", "none"):
        why = (
            "adds a trained bias to the scores, which is made for places that do not change"
            if scheme == "relative"
            else "is part of a token from its first layer on, so cached tokens cannot change their place"
        )
        raise ValueError(f"position_embedding_type={scheme!r} {why}; StartWindowCache takes 'rope', 'alibi' and 'none'")
    kinds = sorted(set(config.layer_types) - {"full_attention"})
    if kinds:
        raise ValueError(
            f"layer_types holds {kinds}: their caches are bounded already and hide the first tokens; StartWindowCache takes "
            "models of 'full_attention' layers"
        )
    for key in config.rope_keys:
        kind = config.rope_of(key)["rope_type"]
        if kind in ("dynamic", "longrope"):
            raise ValueError(
                f"rope_type={kind!r} chooses frequencies by the length of the text, which has no end here; StartWindowCache "
                "takes the other rules"
            )
    if scheme == "rope" and config.qk_norm != "none" and config.qk_norm_after_rope:
        raise ValueError(
            "qk_norm_after_rope=True norms keys after they were turned, so they cannot be kept unturned for another place"
        )
    for name in ("attn_temperature_tuning", "alibi_scaled_bf16"):
        if getattr(config, name):
            raise ValueError(f"{name}=True reads the number of a token in its text, which StartWindowCache does not keep")
