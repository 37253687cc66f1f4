"""What a config may not be on the side of encoders: token types, positions of ids, heads, attention to another stack.

Notable here: part of `config_rules.RULES`.
"""

from .rule import Rule, only_with
from .vocabulary import LEARNED

DENSE_HEADS = ("dense", "dropped_dense")

ENCODER_RULES = [
    only_with("cross_attention_hidden_size", "add_cross_attention", True),
    only_with("pooler", "is_causal", False, False),
    Rule(
        "token types are counted from zero",
        lambda c: c.type_vocab_size < 0,
        "type_vocab_size={c.type_vocab_size} must not be negative; use 0 for no table of types",
    ),
    Rule(
        "token types need an encoder",
        lambda c: c.type_vocab_size > 0 and c.is_causal,
        "type_vocab_size={c.type_vocab_size} needs is_causal=False: generation does not say which type a new token has; use "
        "type_vocab_size=0",
    ),
    Rule(
        "positions of ids need what they are counted by",
        lambda c: (
            c.position_source == "input_ids"
            and (
                c.position_embedding_type not in LEARNED
                or c.position_embedding_offset < 1
                or c.pad_token_id is None
                or c.is_causal
            )
        ),
        "position_source='input_ids' counts ids that are no pads and gives a pad the row before the first: it needs "
        "position_embedding_type='learned' or 'learned_relative' (is {c.position_embedding_type!r}), "
        "position_embedding_offset >= 1 (is {c.position_embedding_offset}), a pad_token_id (is {c.pad_token_id}) and "
        "is_causal=False (is {c.is_causal}); use position_source='attention_mask'",
    ),
    Rule(
        "the first norm to leave out is that of pre",
        lambda c: not c.first_attention_norm and c.norm_placement != "pre",
        "first_attention_norm=False leaves the first norm of norm_placement='pre' out, but norm_placement="
        "{c.norm_placement!r}; use first_attention_norm=True",
    ),
    Rule(
        "tied tables have one width",
        lambda c: c.tie_word_embeddings and c.embedding_size != c.lm_head_width,
        "tie_word_embeddings=True needs a head as wide as the embedding, but embedding_size={c.embedding_size} and "
        "hidden_size={c.hidden_size}; set lm_head_act or embedding_projection='tokens', whose layers hand on "
        "embedding_size channels, or tie_word_embeddings=False",
    ),
    Rule(
        "a projection of tokens widens",
        lambda c: c.embedding_projection == "tokens" and c.embedding_size == c.hidden_size,
        "embedding_projection='tokens' has no effect with embedding_size={c.embedding_size}, which is hidden_size; set "
        "another embedding_size, or embedding_projection='sum'",
    ),
    Rule(
        "the bias of the transform needs the transform",
        lambda c: not c.lm_head_transform_bias and c.lm_head_act is None,
        "lm_head_transform_bias=False has no effect with lm_head_act=None; set lm_head_act",
    ),
    Rule(
        "a dense task head has its activation",
        lambda c: (c.task_head in DENSE_HEADS) != (c.classifier_act is not None),
        "classifier_act={c.classifier_act!r} is the activation of task_head 'dense' and 'dropped_dense', but task_head="
        "{c.task_head!r}; set both, or leave classifier_act at None",
    ),
    Rule(
        "the pooler head needs the pooler",
        lambda c: c.task_head == "pooler" and not (c.pooler and c.classifier_pooling == "first"),
        "task_head='pooler' classifies what the pooler makes of the first token, but pooler={c.pooler} and "
        "classifier_pooling={c.classifier_pooling!r}; set pooler=True and classifier_pooling='first'",
    ),
    Rule(
        "the transform head needs the transform",
        lambda c: c.task_head == "transform" and (c.lm_head_act is None or c.embedding_size != c.hidden_size),
        "task_head='transform' takes the layer of the language-model head, but lm_head_act={c.lm_head_act!r} and "
        "embedding_size={c.embedding_size} (hidden_size={c.hidden_size}); set lm_head_act, and leave embedding_size unset",
    ),
    Rule(
        "a causal row is read at its end",
        lambda c: c.is_causal and c.classifier_pooling == "first",
        "classifier_pooling='first' with is_causal=True classifies a token that has seen nothing but itself; choose from "
        "['last', 'mean', 'late']",
    ),
]
