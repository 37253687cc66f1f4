"""EuroBERT: Llama made bidirectional, with a bare masked-language head and a classifier that averages the logits of tokens."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Key, Same
from hf_variants.convert.encoder_maps import ENCODER_KEYS, LINEAR_CLASSIFIER
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, all_biases, rope
from hf_variants.convert.weight_rules import keep, rename

_NATIVE_POOLING = {"first": "bos", "late": "late"}


def _read_pooling(native):
    pooling = {"bos": "first"}.get(native.classifier_pooling, native.classifier_pooling)
    return {"classifier_pooling": pooling, "classifier_dropout": 0.0, "token_classifier_dropout": 0.0}


FAMILY = Family(
    model_type="eurobert",
    config=[
        *ENCODER_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias", "num_key_value_heads", "max_position_embeddings", "use_cache"),
        Same("attention_dropout"),
        Key("norm_eps", "rms_norm_eps"),
        Both(lambda native: {"lm_head_bias": native.mlp_bias}),
        Always(norm_type="rmsnorm", task_head="dense", classifier_act="gelu"),
        Both(_read_pooling, lambda config: {"classifier_pooling": _NATIVE_POOLING.get(config.classifier_pooling, "mean")}),
        HeadDim(declared=True),
        all_biases(),
        rope(),
    ],
    weights=[rule for rule in LLAMA_WEIGHTS if rule.native != ("lm_head.weight",)],
    prefix="model.",
    heads={
        "base": [],
        "masked_lm": keep("lm_head.*"),
        "sequence_classification": [rename("dense.*", "score.dense.*"), rename("classifier.*", "score.out_proj.*")],
        "token_classification": LINEAR_CLASSIFIER,
    },
)
