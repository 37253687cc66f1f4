"""DistilBERT: BERT without token types and pooler, and with key names of its own.

`sinusoidal_pos_embds` fills the table of positions once, before training, and stays native.
"""

from hf_variants.convert.config_map import Always, Both, Key, Same
from hf_variants.convert.encoder_maps import BERT_BIASES, ENCODER_KEYS, OURS, POST_LN, SPANS, STACK
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import only_if, rename

_BLOCK = "distilbert.transformer.layer.*."
_PARTS = {
    **{f"attention.{part}_lin": f"self_attn.{part}_proj" for part in "qkv"},
    "attention.out_lin": "self_attn.o_proj",
    "sa_layer_norm": "post_attention_layernorm",
    "ffn.lin1": "mlp.up_proj",
    "ffn.lin2": "mlp.down_proj",
    "output_layer_norm": "post_feedforward_layernorm",
}
_TABLES = {"word_embeddings": "embed_tokens", "position_embeddings": "embed_positions", "LayerNorm": "embed_norm"}
_CLASSIFIER = [rename("classifier.*", "score.*")]


def _read_dropouts(native):
    # attention's output is not dropped; tokens are classified behind the dropout of the stack
    dropped = dict.fromkeys(("hidden_dropout", "embedding_dropout", "token_classifier_dropout"), native.dropout)
    return {**dropped, "attention_output_dropout": 0.0}


FAMILY = Family(
    model_type="distilbert",
    config=[
        *ENCODER_KEYS,
        Same("max_position_embeddings", "attention_dropout", "qa_dropout"),
        Key("intermediate_size", "hidden_dim"),
        Key("hidden_act", "activation"),
        Key("classifier_dropout", "seq_classif_dropout"),
        Both(_read_dropouts, lambda config: {"dropout": config.hidden_dropout}),
        Both(lambda native: {"lm_head_act": native.activation}),
        Always(norm_type="layernorm", norm_eps=1e-12, mlp_type="plain", position_embedding_type="learned", **BERT_BIASES),
        Always(task_head="dense", classifier_act="relu"),
        POST_LN,
    ],
    weights=[
        *(rename(f"distilbert.embeddings.{native}.*", f"model.{ours}.*") for native, ours in _TABLES.items()),
        *(rename(f"{_BLOCK}{native}.*", f"{OURS}{ours}.*") for native, ours in _PARTS.items()),
    ],
    prefix="distilbert.",
    heads={
        "base": STACK,
        "masked_lm": [
            rename("vocab_transform.*", "transform.dense.*"),
            rename("vocab_layer_norm.*", "transform.norm.*"),
            rename("vocab_projector.bias", "lm_head.bias"),
            *only_if(
                lambda config: not config.tie_word_embeddings,
                rename("vocab_projector.weight", "lm_head.weight"),
            ),
        ],
        "sequence_classification": [rename("pre_classifier.*", "score.dense.*"), rename("classifier.*", "score.out_proj.*")],
        "token_classification": _CLASSIFIER,
        "question_answering": SPANS,
    },
)
