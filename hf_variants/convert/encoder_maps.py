"""Config and weight rules of the encoders around BERT and RoBERTa.

Notable here: their biases of the vocabulary are stored twice. Where the head is tied both names are one tensor; where it is
not, only the one inside `decoder` is read natively, and the other, which feeds nothing, is left at zero on the way back.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same, SpecialTokens
from hf_variants.convert.shared_maps import FROZEN_PAD
from hf_variants.convert.tensor_ops import DropDead
from hf_variants.convert.weight_rules import only_if, rearrange, rename

OURS = "model.layers.*."


def no_decoder():
    """Refuses the causal form of an encoder."""
    return [
        Refuse("is_decoder", lambda native: native.is_decoder, "it makes the encoder a decoder; set it to False"),
        Refuse(
            "add_cross_attention",
            lambda native: native.add_cross_attention,
            "an encoder alone has nothing to attend to",
        ),
    ]


# What nearly every encoder after BERT has, whatever its key names.
UNTIED_KEYS = [
    Same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range"),
    SpecialTokens(),
    FROZEN_PAD,
    Always(is_causal=False),
]
ENCODER_KEYS = [*UNTIED_KEYS, Same("tie_word_embeddings")]
BERT_BIASES = dict.fromkeys(("attention_bias", "attention_out_bias", "mlp_bias", "lm_head_bias"), True)


def dropouts(key="hidden_dropout_prob", attention="attention_probs_dropout_prob"):
    """One native key for the dropout of branches and of embeddings, one for attention weights."""
    return [
        Key("hidden_dropout", key),
        Both(lambda native: {"embedding_dropout": getattr(native, key)}),
        Key("attention_dropout", attention),
    ]


# BERT's shape: LayerNorm after the sum, plain feed-forward, biases everywhere.
BERT_KEYS = [
    *ENCODER_KEYS,
    Same("intermediate_size", "hidden_act", "type_vocab_size"),
    Key("norm_eps", "layer_norm_eps"),
    *dropouts(),
    Always(norm_type="layernorm", mlp_type="plain", position_embedding_type="learned", **BERT_BIASES),
]
POST_LN = Always(norm_placement="post_ln", embedding_norm=True)
DROPPED_CLASSIFIER = Same("classifier_dropout")


def positions_of_ids():
    """RoBERTa's table: positions of ids that are no pads, behind the row of the pad."""

    def read(native):
        if native.pad_token_id is None:
            raise ValueError(
                f"{native.model_type} with pad_token_id=None cannot be converted: its positions are counted from the pad's"
            )
        offset = native.pad_token_id + 1
        rows = {"max_position_embeddings": native.max_position_embeddings - offset, "position_embedding_offset": offset}
        return {**rows, "position_source": "input_ids"}

    def write(config):
        return {"max_position_embeddings": config.max_position_embeddings + config.position_embedding_offset}

    return Both(read, write)


def _tied(config):
    return config.tie_word_embeddings


def _untied(config):
    return not config.tie_word_embeddings


POST_LN_NORMS = {
    "attention.output.LayerNorm": "post_attention_layernorm",
    "output.LayerNorm": "post_feedforward_layernorm",
}


def pre_ln_norms(attention, feed_forward):
    """Native names of the norms before attention and feed-forward, to ours."""
    return {attention: "input_layernorm", feed_forward: "post_attention_layernorm"}


def bert_layers(block, norms=None):
    """Rules of BERT's layers under the native prefix `block`; `norms` are native names of norms to ours."""
    names = dict(POST_LN_NORMS if norms is None else norms)
    names |= {f"attention.self.{part}": f"self_attn.{part[0]}_proj" for part in ("query", "key", "value")}
    names |= {
        "attention.output.dense": "self_attn.o_proj",
        "intermediate.dense": "mlp.up_proj",
        "output.dense": "mlp.down_proj",
    }
    return [rename(f"{block}{native}.*", f"{OURS}{name}.*") for native, name in names.items()]


def bert_embeddings(prefix):
    """Rules of BERT's tables and their norm."""
    names = {"word_embeddings": "embed_tokens", "position_embeddings": "embed_positions"}
    names |= {"token_type_embeddings": "embed_types", "LayerNorm": "embed_norm"}
    return [rename(f"{prefix}embeddings.{native}.*", f"model.{ours}.*") for native, ours in names.items()]


def bert_weights(prefix, norms=None):
    """BERT's stack under `prefix`, with its pooler; `norms` as in `bert_layers`."""
    return [
        *bert_embeddings(prefix),
        *bert_layers(f"{prefix}encoder.layer.*.", norms),
        rename(f"{prefix}pooler.dense.*", "model.pooler.dense.*"),
    ]


def vocabulary_head(name, dense, norm, bias):
    """A language-model head with a transform, whose `name`.decoder repeats the embedding and `bias`."""
    return [
        rename(f"{dense}.*", "transform.dense.*"),
        rename(f"{norm}.*", "transform.norm.*"),
        *only_if(_tied, rename(bias, "lm_head.bias")),
        *only_if(
            _untied,
            rename(f"{name}.decoder.weight", "lm_head.weight"),
            rearrange((f"{name}.decoder.bias", bias), "lm_head.bias", DropDead()),
        ),
    ]


def bert_language_head(norm="LayerNorm"):
    """`cls.predictions`."""
    name = "cls.predictions"
    return vocabulary_head(name, f"{name}.transform.dense", f"{name}.transform.{norm}", f"{name}.bias")


def roberta_language_head():
    """`lm_head` with the transform inside."""
    return vocabulary_head("lm_head", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias")


# The linear heads, by their usual native names.
LINEAR_CLASSIFIER = [rename("classifier.*", "score.*")]
DENSE_CLASSIFIER = [rename("classifier.dense.*", "score.dense.*"), rename("classifier.out_proj.*", "score.out_proj.*")]
SPANS = [rename("qa_outputs.*", "qa_outputs.*")]
STACK = []


def bert_heads():
    """The heads of BERT."""
    return {
        "base": STACK,
        "masked_lm": bert_language_head(),
        "sequence_classification": LINEAR_CLASSIFIER,
        "token_classification": LINEAR_CLASSIFIER,
        "question_answering": SPANS,
    }


def roberta_heads():
    """The heads of RoBERTa and its copies."""
    return {
        "base": STACK,
        "masked_lm": roberta_language_head(),
        "sequence_classification": DENSE_CLASSIFIER,
        "token_classification": LINEAR_CLASSIFIER,
        "question_answering": SPANS,
    }


BERT_HEAD_KEYS = [
    *BERT_KEYS,
    Same("use_cache", "max_position_embeddings"),
    *no_decoder(),
    Both(lambda native: {"lm_head_act": native.hidden_act}),
    Always(pooler=True, task_head="pooler"),
]
ROBERTA_KEYS = [
    *BERT_KEYS,
    DROPPED_CLASSIFIER,
    Same("use_cache"),
    *no_decoder(),
    Always(pooler=True, lm_head_act="gelu", task_head="dropped_dense", classifier_act="tanh"),
    positions_of_ids(),
]
