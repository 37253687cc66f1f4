"""XLM and its French sibling: post-LN encoders with their layers' parts in lists side by side, and a bare head with a bias.

Notable here: natively pads are zeroed behind every layer, which no token sees; and a batch without a mask is masked by the
number of its ids that are no pads, from the left, where ours takes every token as visible.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same, SpecialTokens
from hf_variants.convert.encoder_maps import BERT_BIASES, LINEAR_CLASSIFIER, OURS, POST_LN, SPANS, STACK
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import FROZEN_PAD
from hf_variants.convert.weight_rules import only_if, rename

_ACTS = {True: "gelu", False: "relu"}
_PARTS = {
    **{f"attentions.*.{part}_lin": f"self_attn.{part}_proj" for part in "qkv"},
    "attentions.*.out_lin": "self_attn.o_proj",
    "ffns.*.lin1": "mlp.up_proj",
    "ffns.*.lin2": "mlp.down_proj",
    "layer_norm1.*": "post_attention_layernorm",
    "layer_norm2.*": "post_feedforward_layernorm",
}


def _read_dropouts(native):
    dropped = dict.fromkeys(("hidden_dropout", "embedding_dropout", "token_classifier_dropout"), native.dropout)
    return {**dropped, "classifier_dropout": native.summary_first_dropout}


def _write_dropouts(config):
    return {"dropout": config.hidden_dropout, "summary_first_dropout": config.classifier_dropout or 0.0}


def _is_other_summary(native):
    wanted = ("first", True, True)
    found = (native.summary_type, native.summary_use_proj, native.summary_proj_to_labels)
    dropped = getattr(native, "summary_last_dropout", 0)
    return found != wanted or bool(native.summary_activation) or bool(dropped)


_KEYS = [
    Same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings"),
    Same("max_position_embeddings", "attention_dropout"),
    SpecialTokens(),
    FROZEN_PAD,
    Always(is_causal=False),
    Key("initializer_range", "init_std"),
    Key("norm_eps", "layer_norm_eps"),
    Both(lambda native: {"intermediate_size": 4 * native.hidden_size}),
    Both(
        lambda native: {"hidden_act": _ACTS[native.gelu_activation]},
        lambda config: {"gelu_activation": config.hidden_act == "gelu"},
    ),
    Both(_read_dropouts, _write_dropouts),
    Always(norm_type="layernorm", mlp_type="plain", position_embedding_type="learned", **BERT_BIASES),
    POST_LN,
    Always(task_head="biased_linear"),
    Refuse("causal", lambda native: native.causal, "it makes the encoder a decoder; set it to False"),
    Refuse("asm", lambda native: native.asm, "no toggle means an adaptive softmax; set it to False"),
    Refuse(
        "n_langs",
        lambda native: native.n_langs > 1 and native.use_lang_emb,
        "no toggle means embeddings of languages; set use_lang_emb to False",
    ),
    Refuse("summary_type", _is_other_summary, "ours classifies the first state by one layer, without an activation"),
]


def xlm_family(model_type, *more):
    """The `Family` of a type built as XLM is; `more` are further config rules."""
    return Family(
        model_type=model_type,
        config=[*_KEYS, *more],
        weights=[
            rename("transformer.embeddings.weight", "model.embed_tokens.weight"),
            rename("transformer.position_embeddings.weight", "model.embed_positions.weight"),
            rename("transformer.layer_norm_emb.*", "model.embed_norm.*"),
            *(rename(f"transformer.{native}.*", f"{OURS}{ours}.*") for native, ours in _PARTS.items()),
        ],
        prefix="transformer.",
        heads={
            "base": STACK,
            "masked_lm": [
                rename("pred_layer.proj.bias", "lm_head.bias"),
                *only_if(
                    lambda config: not config.tie_word_embeddings,
                    rename("pred_layer.proj.weight", "lm_head.weight"),
                ),
            ],
            "sequence_classification": [rename("sequence_summary.summary.*", "score.*")],
            "token_classification": LINEAR_CLASSIFIER,
            "question_answering": SPANS,
        },
    )
