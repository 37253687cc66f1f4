"""BioGPT: learned positions two rows further on, scaled embeddings. `layer_norm_eps` is never read natively: 1e-5."""

from hf_variants.convert.classic_maps import layerdrop
from hf_variants.convert.config_map import Always, Both, Key, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT, FROZEN_PAD, scale_embedding_switch
from hf_variants.convert.weight_rules import rename

_BLOCK, _OURS = "biogpt.layers.*.", "model.layers.*."

FAMILY = Family(
    model_type="biogpt",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        FROZEN_PAD,
        Same("max_position_embeddings", "intermediate_size", "hidden_act", "activation_dropout"),
        Key("attention_dropout", "attention_probs_dropout_prob"),
        Both(
            lambda native: dict.fromkeys(("hidden_dropout", "embedding_dropout"), native.hidden_dropout_prob),
            lambda config: {"hidden_dropout_prob": config.hidden_dropout},
        ),
        Always(position_embedding_type="learned", position_embedding_offset=2, norm_type="layernorm", norm_eps=1e-5),
        Always(mlp_type="plain", mlp_bias=True, attention_bias=True, attention_out_bias=True),
        scale_embedding_switch(),
        layerdrop(),
    ],
    weights=[
        rename("output_projection.weight", "lm_head.weight"),
        rename("biogpt.embed_tokens.weight", "model.embed_tokens.weight"),
        rename("biogpt.embed_positions.weight", "model.embed_positions.weight"),
        rename("biogpt.layer_norm.*", "model.norm.*"),
        rename(_BLOCK + "self_attn_layer_norm.*", _OURS + "input_layernorm.*"),
        rename(_BLOCK + "final_layer_norm.*", _OURS + "post_attention_layernorm.*"),
        *(rename(f"{_BLOCK}self_attn.{part}_proj.*", f"{_OURS}self_attn.{part}_proj.*") for part in "qkv"),
        rename(_BLOCK + "self_attn.out_proj.*", _OURS + "self_attn.o_proj.*"),
        rename(_BLOCK + "fc1.*", _OURS + "mlp.up_proj.*"),
        rename(_BLOCK + "fc2.*", _OURS + "mlp.down_proj.*"),
    ],
)
