"""ModernBERT as a decoder (Ettin): LayerNorm, a norm after the embedding, none before the first attention, a dense head.

`local_attention` is twice the causal window of its sliding layers.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same, TrainingOnly
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    COMMON_KEYS_WITHOUT_DROPOUT,
    FROZEN_PAD,
    all_biases,
    read_layer_types,
    rope_per_layer_type,
)
from hf_variants.convert.tensor_ops import Split, gate_and_up_rows
from hf_variants.convert.weight_rules import rearrange, rename

_LAYER = "model.layers.*."


def _write_window(config):
    window = {} if config.sliding_window is None else {"local_attention": 2 * config.sliding_window}
    return {"layer_types": list(config.layer_types), **window}


FAMILY = Family(
    model_type="modernbert-decoder",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        Same("max_position_embeddings", "intermediate_size", "norm_eps", "norm_bias", "mlp_bias", "embedding_dropout"),
        FROZEN_PAD,
        Always(norm_type="layernorm", embedding_norm=True, first_attention_norm=False),
        Key("hidden_act", "hidden_activation"),
        Key("lm_head_act", "classifier_activation"),
        Key("lm_head_transform_bias", "classifier_bias"),
        Key("lm_head_bias", "decoder_bias"),
        all_biases(),
        Both(read_layer_types, _write_window),
        Refuse(
            "local_attention",
            lambda native: "sliding_attention" in native.layer_types and native.sliding_window < 1,
            "natively its half is the window of the sliding layers; set it to at least 2",
        ),
        rope_per_layer_type(),
        *(
            TrainingOnly(key, what)
            for key, what in (
                ("attention_dropout", "drops weights and output of attention"),
                ("mlp_dropout", "drops inside the feed-forward"),
            )
        ),
    ],
    weights=[
        rename("model.embeddings.tok_embeddings.weight", "model.embed_tokens.weight"),
        rename("model.embeddings.norm.*", "model.embed_norm.*"),
        rename("model.final_norm.*", "model.norm.*"),
        rename("lm_head.**", "transform.**"),
        rename("decoder.*", "lm_head.*"),
        rename(_LAYER + "attn_norm.*", _LAYER + "input_layernorm.*"),
        rename(_LAYER + "mlp_norm.*", _LAYER + "post_attention_layernorm.*"),
        rename(_LAYER + "attn.Wo.*", _LAYER + "self_attn.o_proj.*"),
        rename(_LAYER + "attn.*_proj.*", _LAYER + "self_attn.*_proj.*"),
        rearrange(
            _LAYER + "mlp.Wi.*", tuple(f"{_LAYER}mlp.{part}_proj.*" for part in ("gate", "up")), Split(gate_and_up_rows)
        ),
        rename(_LAYER + "mlp.Wo.*", _LAYER + "mlp.down_proj.*"),
    ],
)
