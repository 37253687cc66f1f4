"""The stack: embeddings, layers, final norm.

Notable here: `forward` reads the batch once (`SequenceReader`), builds one mask per attention kind and one pair of cosines and
sines per rotary embedding, and then only walks the layers; every decision was made in `__init__` from the layer plan.
"""

from typing import NamedTuple

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import capture_outputs

from .blocks import TOPOLOGIES, Scale
from .cross_attention import cross_mask, new_cache, split_cache
from .kv_cache import fit_cache
from .masks import Blocks, backend_packs, backend_windows, build_mask, geometry_of, places_of, sees_everything
from .norms import build_norm
from .null_modules import Identity, build_dropout
from .packed_attention import packed_rows
from .pooling import PooledModelOutput, VariantsPooler, mean_of_tokens, real_tokens
from .positions import POSITIONS, SPREADS, QueryTemperature, VariantsRotaryEmbedding, positions_of_ids
from .relative_bias import RelativeBias
from .score_terms import AlibiBias
from .sequence import SequenceReader
from .start_window_cache import counts_own_places
from .token_types import build_token_types
from .variants_base import VariantsPreTrainedModel
from .vocabulary import LEARNED, RELATIVE


class ScaledEmbedding(nn.Embedding):
    """Looked-up rows times a factor that is first rounded to their dtype (Gemma)."""

    def __init__(self, *args, factor=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = factor

    def forward(self, input_ids):
        rows = super().forward(input_ids)
        return rows * torch.tensor(self.factor, dtype=rows.dtype, device=rows.device)


def build_embedding(config):
    """Token table, and the module that scales whatever enters the first layer."""
    size = (config.vocab_size, config.embedding_size, config.pad_token_id if config.freeze_pad_embedding else None)
    if config.embedding_multiplier == 1:
        return nn.Embedding(*size), Identity()
    if config.embedding_multiplier_scope == "input_ids":
        return ScaledEmbedding(*size, factor=config.embedding_multiplier), Identity()
    return nn.Embedding(*size), Scale(config.embedding_multiplier)


def sum_tables(model, hidden_states, token_type_ids, places):
    """Token types and positions added to embeddings [B, T, table_width], normed."""
    hidden_states = model.embed_positions(model.embed_types(hidden_states, token_type_ids), places)
    return model.embed_dropout(model.embed_norm(hidden_states))


def project_sum(model, embeds, token_type_ids, places):
    return model.embed_proj(sum_tables(model, embeds, token_type_ids, places))


def project_tokens(model, embeds, token_type_ids, places):
    return sum_tables(model, model.embed_proj(embeds), token_type_ids, places)


# embedding_projection -> embeddings [B, T, embedding_size], token types, places -> the first layer's input [B, T, hidden]
EMBEDDING_PROJECTIONS = {"sum": project_sum, "tokens": project_tokens}


def alibi_bias(model, index, queries, keys):
    return AlibiBias(model.embed_positions.slopes, queries, keys, 1.0 if model.config.alibi_scaled_bf16 else None)


def relative_bias(model, index, queries, keys):
    distance = model.config.relative_attention_max_distance
    return RelativeBias(model.embed_positions.table(index), queries, keys, distance, not model.config.is_causal)


# position_embedding_type -> the bias on the scores, of the model, the index of a layer and the places of queries and keys
SCORE_BIASES = {"alibi": alibi_bias, **dict.fromkeys(RELATIVE, relative_bias)}


class Shared(NamedTuple):
    """What all layers of one call read: masks per attention kind, biases per layer, angles per rotary embedding, a factor on
    queries [B, 1, T, 1] or None, and which tokens are real [B, T], or None where all are.
    """

    masks: dict
    angles: dict
    biases: dict
    query_scale: torch.Tensor | None
    token_mask: torch.Tensor | None


class VariantsModel(VariantsPreTrainedModel):
    """The decoder (or, with `is_causal=False`, the encoder) without a head.

    Args:
        config: a `VariantsConfig`.
        add_pooling_layer: False leaves out the pooler that `config.pooler` asks for, as heads do that do not read it.
    """

    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config)
        self.plan = config.layer_plan()
        self.embed_tokens, self.embed_scale = build_embedding(config)
        self.embed_positions = POSITIONS[config.position_embedding_type](config)
        self.embed_types = build_token_types(config)
        self.embed_norm = build_norm(config, config.table_width) if config.embedding_norm else Identity()
        self.embed_dropout = build_dropout(config.embedding_dropout)
        widens = config.embedding_size != config.hidden_size
        bias = config.embedding_projection == "sum"
        self.embed_proj = nn.Linear(config.embedding_size, config.hidden_size, bias=bias) if widens else Identity()
        self._widen = EMBEDDING_PROJECTIONS[config.embedding_projection]
        rotary = {key: VariantsRotaryEmbedding(config.rope_of(key), config.rotary_dim_of(key)) for key in config.rope_keys}
        self.rotary_emb, self.spread = nn.ModuleDict(rotary), SPREADS[config.rope_interleaved]
        self.temperature = None
        if config.attn_temperature_tuning:
            self.temperature = QueryTemperature(config.attn_scale, config.floor_scale, config.attn_temperature_offset)
        self.layers = nn.ModuleList(TOPOLOGIES[plan.topology](config, plan) for plan in self.plan)
        self.norm = build_norm(config, config.hidden_size) if config.final_norm else Identity()
        self.final_dropout = build_dropout(config.final_dropout)
        self.pooler = VariantsPooler(config) if config.pooler and add_pooling_layer else None
        self.reader = SequenceReader(len(self.layers), *_length_rules(self.rotary_emb))
        # one layer of each attention kind stands for the cache sizes and the mask of its kind
        self.kinds = {plan.layer_type: plan for plan in reversed(self.plan)}
        self.windows = (config.sliding_window, config.attention_chunk_size)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | dict | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        token_type_ids: torch.LongTensor | None = None,
        encoder_hidden_states: torch.FloatTensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        blocks: Blocks | None = None,
        insertions: dict | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MoeModelOutputWithPast | PooledModelOutput:
        r"""Run the stack.

        Args:
            input_ids: [B, T]; or inputs_embeds: [B, T, embedding_size], which is hidden_size where it is not set.
            token_type_ids: [B, T]; zeros when absent. Only zeros where there is no table of types.
            attention_mask: [B, tokens seen so far], 1 at real tokens; a 4D mask [B, 1, Q, K]; or one 4D mask per layer type.
            position_ids: [B, T]; counted over the real tokens when absent. Where they start again, a new document starts.
            past_key_values: a transformers `Cache`, or a `StartWindowCache` for text without end; an `EncoderDecoderCache`
                also keeps what cross-attention makes of the states.
            encoder_hidden_states: [B, S, cross_attention_hidden_size], the states of another stack, with
                `add_cross_attention=True`; a filled `EncoderDecoderCache` replaces them.
            encoder_attention_mask: [B, S], 1 at real states; or booleans [B, 1, T, S], which states each token sees.
            blocks: new tokens that see each other in both directions.
            insertions: {index of a layer: callable that takes and gives hidden states [B, T, hidden], run before it}.

        Raises:
            ValueError: for a position beyond a learned table, a token type without a row, or a mask of the wrong width; for
                states without cross-attention, and the other way round.
        """
        embeds = self.embeds_of(input_ids, inputs_embeds)
        if use_cache and past_key_values is None and self.config.is_causal:
            past_key_values = new_cache(self.config)
        cache, cross_cache = split_cache(past_key_values)
        cache, q_len = fit_cache(cache, *self.windows), embeds.shape[1]
        sequence, ready_made = self.read_batch(embeds, attention_mask, position_ids, cache, blocks)
        places = self.table_places(sequence, input_ids, position_ids)
        shared = self.shared_by_layers(sequence, cache, ready_made)
        states, cross = self.other_stack(encoder_hidden_states, encoder_attention_mask, cross_cache, sequence.inputs_embeds)
        hidden_states = self._widen(self, self.embed_scale(sequence.inputs_embeds), token_type_ids, places)
        more = {"cross": cross, "past_key_values": cache, "use_cache": use_cache}
        hidden_states = self.run_layers(hidden_states, states, shared, insertions or {}, **more)
        if counts_own_places(cache):
            cache.leave()
        hidden_states = self.final_dropout(self.norm(hidden_states))[:, -q_len:]
        if self.pooler is None:
            return MoeModelOutputWithPast(last_hidden_state=hidden_states, past_key_values=past_key_values)
        pooled = self.pooler(hidden_states, shared.token_mask)
        return PooledModelOutput(last_hidden_state=hidden_states, pooler_output=pooled, past_key_values=past_key_values)

    def embeds_of(self, input_ids, inputs_embeds):
        """Embeddings [B, T, embedding_size] of ids, or those given. Raises ValueError for both, neither or no token."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if input_ids is not None and (input_ids.dim() != 2 or input_ids.shape[1] == 0):
            raise ValueError(f"input_ids has the shape {tuple(input_ids.shape)}; give [batch, tokens] with at least one token")
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def read_batch(self, embeds, attention_mask, position_ids, cache, blocks):
        """The `Sequence` of a call, and the masks that the caller made himself, or None."""
        two_dimensional = isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 2
        given = attention_mask is not None and not two_dimensional
        padding = attention_mask if two_dimensional else None
        sequence = self.reader.read(embeds, padding, position_ids, cache, masks_given=given)._replace(blocks=blocks)
        if counts_own_places(cache):
            sequence = cache.enter(sequence, self.config, given)
        # a reader that runs the whole row again needs masks of the whole row
        fits = given and sequence.inputs_embeds.shape[1] == embeds.shape[1]
        return sequence, attention_mask if fits else None

    def shared_by_layers(self, sequence, cache, ready_made):
        """What is made once per call and read by every layer: a `Shared`."""
        length = sequence.inputs_embeds.shape[1]
        return Shared(
            masks=self.masks_of(sequence, cache, ready_made),
            angles=self.angles_of(sequence),
            biases=self.biases_of(sequence, cache),
            query_scale=None if self.temperature is None else self.temperature(sequence.position_ids),
            token_mask=None if sequence.padding is None else sequence.padding[:, -length:],
        )

    def run_layers(self, hidden_states, states, shared, insertions, **kwargs):
        """Hidden states [B, T, hidden] through all layers; arguments as `forward` makes them."""
        for layer, plan in zip(self.layers, self.plan, strict=True):
            if plan.index in insertions:
                hidden_states = insertions[plan.index](hidden_states)
            hidden_states = layer(
                hidden_states,
                *states,
                token_mask=shared.token_mask,
                attention_mask=shared.masks[plan.layer_type],
                position_embeddings=shared.angles.get(plan.rope_key),
                alibi=shared.biases.get(plan.index),
                query_scale=shared.query_scale,
                **kwargs,
            )
        return hidden_states

    def sentence_embeddings(self, input_ids, attention_mask=None, normalize=True, **inputs):
        """One vector per row: the mean of the last states of its real tokens (Sentence-BERT 2019, arXiv:1908.10084 §3).

        Args:
            input_ids: [B, T], one text per row. attention_mask: [B, T], 1 at real tokens; without it, ids that are not
                `config.pad_token_id` are real.
            normalize: divide each vector by its length, so that products are cosines.
            inputs: further arguments of `forward` (`token_type_ids`).

        Returns:
            [B, hidden].

        Raises:
            ValueError: for position_ids, whose documents would be averaged into one vector; or where pads cannot be told.
        """
        if inputs.get("position_ids") is not None:
            raise ValueError("sentence_embeddings takes one text per row and counts its positions; leave position_ids out")
        real = real_tokens(input_ids, input_ids, attention_mask, self.config.pad_token_id)
        states = self(input_ids, attention_mask=real.long(), **inputs).last_hidden_state
        pooled = mean_of_tokens(states, real)
        return nn.functional.normalize(pooled, dim=-1) if normalize else pooled

    def other_stack(self, states, mask, cache, embeds):
        """What layers attend to beside their own tokens: (states,) or (), and (mask, cache) as `VariantsCrossAttention` takes.

        States go to the layers by position: what is handed to a checkpointed layer by name would get no gradient.

        Raises:
            ValueError: for states of another shape, inputs that have no effect without cross-attention, and a mask without
                states.
        """
        if not self.config.add_cross_attention:
            given = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
            if named := [name for name, value in given.items() if value is not None]:
                raise ValueError(f"{' and '.join(named)} has no effect with add_cross_attention=False; set it to True")
            return (), (None, None)
        if states is not None and (states.dim() != 3 or states.shape[-1] != self.config.cross_attention_hidden_size):
            raise ValueError(
                f"encoder_hidden_states has the shape {tuple(states.shape)}; give [{embeds.shape[0]}, states, "
                f"cross_attention_hidden_size={self.config.cross_attention_hidden_size}]"
            )
        cache = None if self.gradient_checkpointing and self.training else cache
        if states is None:
            if mask is not None:
                raise ValueError("encoder_attention_mask says which of encoder_hidden_states are real; give both")
            return (None,), (None, cache)
        return (states,), (cross_mask(mask, embeds.shape[0], states), cache)

    def table_places(self, sequence, input_ids, position_ids):
        """Positions [B, T] by which a table of positions is read: those of the batch, or counted by ids (RoBERTa)."""
        if self.config.position_source == "input_ids" and position_ids is None and input_ids is not None:
            places = positions_of_ids(input_ids, self.config.pad_token_id)
            self._check_table(places.clamp(min=0))
            return places
        self._check_table(sequence.position_ids)
        return sequence.position_ids

    def masks_of(self, sequence, cache, ready_made=None):
        """One mask per attention kind in use: {layer type: boolean [B or 1, 1, Q, K] or None}."""
        if isinstance(ready_made, dict):
            return ready_made
        if ready_made is not None:
            return dict.fromkeys(self.kinds, ready_made)
        if counts_own_places(cache) and cache.overflows(sequence.inputs_embeds.shape[1]):
            return dict.fromkeys(self.kinds, cache.mask(sequence.position_ids, getattr(self.embed_positions, "slopes", None)))
        if sees_everything(sequence, cache, self.plan[0].index, self.windows, self.config.is_causal):
            return dict.fromkeys(self.kinds)
        return {kind: self._mask(plan, sequence, cache) for kind, plan in self.kinds.items()}

    def _mask(self, plan, sequence, cache):
        geometry = self._geometry(plan, sequence, cache)
        if backend_windows(geometry, plan, sequence, self.config.is_causal):
            return None
        if backend_packs(geometry, plan, sequence, self.config.is_causal):
            return packed_rows(sequence.documents)
        return build_mask(
            geometry,
            window=plan.window,
            chunk=plan.chunk,
            is_causal=self.config.is_causal,
            padding=sequence.padding,
            documents=sequence.documents,
            positions=sequence.positions,
            blocks=sequence.blocks,
        )

    def angles_of(self, sequence):
        """Cosines and sines per rotary embedding, as the layers use them: {rope key: ([B, 1, T, d], [B, 1, T, d])}."""
        dtype = sequence.inputs_embeds.dtype
        angles = {key: rotary(sequence.position_ids, sequence.lengths, dtype) for key, rotary in self.rotary_emb.items()}
        return {key: self.spread(*pair) for key, pair in angles.items()}

    def biases_of(self, sequence, cache):
        """The bias of distances per layer, by its index: ALiBi, or T5's; nothing under another position scheme."""
        kind = self.config.position_embedding_type
        if kind not in SCORE_BIASES:
            return {}
        geometries = {kind: self._geometry(plan, sequence, cache) for kind, plan in self.kinds.items()}
        padding, positions = sequence.padding, sequence.positions
        places = {kind: places_of(geometry, padding, positions) for kind, geometry in geometries.items()}
        return {plan.index: SCORE_BIASES[kind](self, plan.index, *places[plan.layer_type]) for plan in self.plan}

    def _geometry(self, plan, sequence, cache):
        return geometry_of(cache, plan.index, sequence.inputs_embeds.shape[1], sequence.inputs_embeds.device)

    def _check_table(self, position_ids):
        limit = self.config.max_position_embeddings
        if self.config.position_embedding_type not in LEARNED or is_tracing(position_ids):
            return
        if int(position_ids.min()) < 0:
            raise ValueError(f"position {int(position_ids.min())} is negative; a learned table starts at position 0")
        if int(position_ids.max()) >= limit:
            raise ValueError(
                f"position {int(position_ids.max())} lies beyond the learned table of max_position_embeddings={limit}; "
                "shorten the sequence, or choose a position_embedding_type that extrapolates ('rope', 'alibi', 'relative', "
                "'sinusoidal')"
            )


def _length_rules(rotary_emb):
    """Whether some rotary embedding follows the length, and the original length of a LongRoPE among them."""
    rules = [rotary.rule for rotary in rotary_emb.values()]
    boundaries = {rule.original for rule in rules if rule.follows_length == "current"}
    if len(boundaries) > 1:
        raise ValueError(
            f"the longrope entries of rope_parameters have different original_max_position_embeddings {sorted(boundaries)}; a "
            "cache can be recomputed at one boundary only: give them the same"
        )
    return any(rule.follows_length for rule in rules), (boundaries or {None}).pop()
