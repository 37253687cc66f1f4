"""GPT-NeoX (Pythia): parallel blocks under two norms, or sequential ones; partial rotation; q, k, v fused per head."""

from hf_variants.convert.classic_maps import fused_qkv
from hf_variants.convert.config_map import Always, Both, Key, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS, all_biases, rope
from hf_variants.convert.weight_rules import keep, rename

_BLOCK, _OURS = "gpt_neox.layers.*.", "model.layers.*."

FAMILY = Family(
    model_type="gpt_neox",
    config=[
        *COMMON_KEYS,
        Same("max_position_embeddings", "intermediate_size", "hidden_act"),
        Key("norm_eps", "layer_norm_eps"),
        Always(norm_type="layernorm", mlp_type="plain", mlp_bias=True),
        Both(
            lambda native: dict.fromkeys(("hidden_dropout", "embedding_dropout"), native.hidden_dropout),
            lambda config: {"hidden_dropout": config.hidden_dropout},
        ),
        all_biases(),
        rope(partial=True),
        Both(
            lambda native: {"norm_placement": "parallel_two_norms" if native.use_parallel_residual else "pre"},
            lambda config: {"use_parallel_residual": config.norm_placement == "parallel_two_norms"},
        ),
    ],
    weights=[
        *keep("lm_head.weight"),
        rename("gpt_neox.embed_in.weight", "model.embed_tokens.weight"),
        rename("gpt_neox.final_layer_norm.*", "model.norm.*"),
        rename(_BLOCK + "*_layernorm.*", _OURS + "*_layernorm.*"),
        fused_qkv(_BLOCK + "attention.query_key_value.*"),
        rename(_BLOCK + "attention.dense.*", _OURS + "self_attn.o_proj.*"),
        rename(_BLOCK + "mlp.dense_h_to_4h.*", _OURS + "mlp.up_proj.*"),
        rename(_BLOCK + "mlp.dense_4h_to_h.*", _OURS + "mlp.down_proj.*"),
    ],
)
