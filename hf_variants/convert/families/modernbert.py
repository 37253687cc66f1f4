"""ModernBERT: a pre-LN encoder with GeGLU that alternates full and local layers, each kind with a RoPE base of its own.

The first norm of attention is left out, for the embedding is normed. `sparse_prediction` only leaves logits out, and stays
native, as do the keys of the initialisation.
"""

from hf_variants.convert.config_map import Always, Both, Key, Same, TrainingOnly
from hf_variants.convert.encoder_maps import ENCODER_KEYS, OURS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import all_biases, rope_per_layer_type
from hf_variants.convert.tensor_ops import Split, gate_and_up_rows, head_rows
from hf_variants.convert.weight_rules import only_if, rearrange, rename

_BLOCK = "model.layers.*."
_TRANSFORM = [rename("head.**", "transform.**")]
_CLASSIFIER = [*_TRANSFORM, rename("classifier.*", "score.*")]


def _read_layers(native):
    slides = "sliding_attention" in native.layer_types
    return {"layer_types": list(native.layer_types), "sliding_window": native.local_attention if slides else None}


def _write_layers(config):
    window = {} if config.sliding_window is None else {"local_attention": config.sliding_window}
    return {"layer_types": list(config.layer_types), **window}


def _read_heads(native):
    dropped = dict.fromkeys(("classifier_dropout", "token_classifier_dropout", "qa_dropout"), native.classifier_dropout)
    return {**dropped, "classifier_pooling": {"cls": "first"}.get(native.classifier_pooling, native.classifier_pooling)}


def _write_heads(config):
    pooling = {"first": "cls"}.get(config.classifier_pooling, config.classifier_pooling)
    return {"classifier_dropout": config.classifier_dropout or 0.0, "classifier_pooling": pooling}


FAMILY = Family(
    model_type="modernbert",
    config=[
        *ENCODER_KEYS,
        Same("intermediate_size", "max_position_embeddings", "norm_eps", "norm_bias", "attention_dropout", "mlp_bias"),
        Same("embedding_dropout"),
        Key("hidden_act", "hidden_activation"),
        Key("lm_head_bias", "decoder_bias"),
        Key("lm_head_act", "classifier_activation"),
        Key("lm_head_transform_bias", "classifier_bias"),
        Both(lambda native: {"attention_output_dropout": native.attention_dropout}),
        Always(norm_type="layernorm", norm_placement="pre", embedding_norm=True, first_attention_norm=False),
        Always(mlp_type="gated", task_head="transform"),
        all_biases(),
        Both(_read_layers, _write_layers),
        rope_per_layer_type(),
        Both(_read_heads, _write_heads),
        TrainingOnly("mlp_dropout", "drops inside the feed-forward"),
    ],
    weights=[
        rename("model.embeddings.tok_embeddings.weight", "model.embed_tokens.weight"),
        rename("model.embeddings.norm.*", "model.embed_norm.*"),
        rename("model.final_norm.*", "model.norm.*"),
        rename(_BLOCK + "attn_norm.*", OURS + "input_layernorm.*"),
        rename(_BLOCK + "mlp_norm.*", OURS + "post_attention_layernorm.*"),
        rearrange(_BLOCK + "attn.Wqkv.*", tuple(f"{OURS}self_attn.{part}_proj.*" for part in "qkv"), Split(head_rows)),
        rename(_BLOCK + "attn.Wo.*", OURS + "self_attn.o_proj.*"),
        rearrange(_BLOCK + "mlp.Wi.*", tuple(f"{OURS}mlp.{part}_proj.*" for part in ("gate", "up")), Split(gate_and_up_rows)),
        rename(_BLOCK + "mlp.Wo.*", OURS + "mlp.down_proj.*"),
    ],
    prefix="model.",
    heads={
        "base": [],
        "masked_lm": [
            *_TRANSFORM,
            rename("decoder.bias", "lm_head.bias"),
            *only_if(lambda config: not config.tie_word_embeddings, rename("decoder.weight", "lm_head.weight")),
        ],
        "sequence_classification": _CLASSIFIER,
        "token_classification": _CLASSIFIER,
        "question_answering": [*_TRANSFORM, rename("classifier.*", "qa_outputs.*")],
    },
    other_heads=("head.", "decoder."),
)
