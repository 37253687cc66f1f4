"""UltraBERT: EuroBERT with local layers and a RoPE base per layer type.

Notable here: natively the window counts the tokens on one side, ours those on both. Its language head, two projections under
an activation each, has no place here, so the stack and its classifiers convert without it.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim, Key, Same
from hf_variants.convert.encoder_maps import ENCODER_KEYS, LINEAR_CLASSIFIER, SPANS, STACK
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, all_biases, rope_per_layer_type

_POOLINGS = {"cls": "first", "mean": "mean"}


def _read_window(native):
    slides = "sliding_attention" in native.layer_types
    return {"layer_types": list(native.layer_types), "sliding_window": 2 * native.sliding_window if slides else None}


def _write_window(config):
    window = {} if config.sliding_window is None else {"sliding_window": config.sliding_window // 2}
    return {"layer_types": list(config.layer_types), **window}


def _read_heads(native):
    dropped = dict.fromkeys(("classifier_dropout", "token_classifier_dropout"), native.classifier_dropout)
    return {**dropped, "classifier_pooling": _POOLINGS[native.classifier_pooling]}


def _write_heads(config):
    pooling = {ours: theirs for theirs, ours in _POOLINGS.items()}.get(config.classifier_pooling, "mean")
    return {"classifier_pooling": pooling, "classifier_dropout": config.classifier_dropout or 0.0}


FAMILY = Family(
    model_type="ultrabert",
    config=[
        *ENCODER_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias", "num_key_value_heads", "max_position_embeddings", "use_cache"),
        Same("attention_dropout"),
        Key("norm_eps", "rms_norm_eps"),
        Always(norm_type="rmsnorm", task_head="biased_linear"),
        HeadDim(declared=True),
        all_biases(),
        Both(_read_window, _write_window),
        rope_per_layer_type(),
        Both(_read_heads, _write_heads),
    ],
    weights=[rule for rule in LLAMA_WEIGHTS if rule.native != ("lm_head.weight",)],
    prefix="model.",
    heads={
        "base": STACK,
        "sequence_classification": LINEAR_CLASSIFIER,
        "token_classification": LINEAR_CLASSIFIER,
        "question_answering": SPANS,
    },
    other_heads=("head.",),
)
