"""OPT: learned positions two rows further on, norms before the branches or (350M) after the sum."""

from hf_variants.convert.classic_maps import layerdrop
from hf_variants.convert.config_map import Always, Both, Key, Same, SpecialTokens
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import FROZEN_PAD
from hf_variants.convert.weight_rules import keep, only_if, rename

_DECODER, _BLOCK, _OURS = "model.decoder.", "model.decoder.layers.*.", "model.layers.*."
_BIASES = ("attention_bias", "attention_out_bias", "mlp_bias")


def _is_post(config):
    return config.norm_placement == "post_ln"


def _read_tables(native):
    if native.word_embed_proj_dim == native.hidden_size:
        return {}
    return {"embedding_size": native.word_embed_proj_dim, "embedding_projection": "tokens"}


def _read_norms(native):
    before = native.do_layer_norm_before
    return {
        "norm_placement": "pre" if before else "post_ln",
        "final_norm": bool(before and not native._remove_final_layer_norm),
        "norm_affine": native.layer_norm_elementwise_affine,
    }


def _write_norms(config):
    return {
        "do_layer_norm_before": not _is_post(config),
        "_remove_final_layer_norm": not config.final_norm and not _is_post(config),
        "layer_norm_elementwise_affine": config.norm_affine,
    }


FAMILY = Family(
    model_type="opt",
    config=[
        Same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
        Same("tie_word_embeddings", "use_cache", "attention_dropout"),
        SpecialTokens(),
        FROZEN_PAD,
        Key("initializer_range", "init_std"),
        Key("intermediate_size", "ffn_dim"),
        Key("hidden_act", "activation_function"),
        Key("hidden_dropout", "dropout"),
        Always(position_embedding_type="learned", position_embedding_offset=2, norm_type="layernorm", norm_eps=1e-5),
        Always(mlp_type="plain"),
        Both(lambda native: dict.fromkeys(_BIASES, native.enable_bias), lambda config: {"enable_bias": config.mlp_bias}),
        Both(_read_norms, _write_norms),
        Both(_read_tables, lambda config: {"word_embed_proj_dim": config.embedding_size}),
        layerdrop(),
    ],
    weights=[
        *keep("lm_head.weight"),
        rename(_DECODER + "embed_tokens.weight", "model.embed_tokens.weight"),
        rename(_DECODER + "project_in.weight", "model.embed_proj.weight"),
        rename(_DECODER + "project_out.weight", "transform.weight"),
        rename(_DECODER + "embed_positions.weight", "model.embed_positions.weight"),
        rename(_DECODER + "final_layer_norm.*", "model.norm.*"),
        *(rename(f"{_BLOCK}self_attn.{part}_proj.*", f"{_OURS}self_attn.{part}_proj.*") for part in "qkv"),
        rename(_BLOCK + "self_attn.out_proj.*", _OURS + "self_attn.o_proj.*"),
        rename(_BLOCK + "fc1.*", _OURS + "mlp.up_proj.*"),
        rename(_BLOCK + "fc2.*", _OURS + "mlp.down_proj.*"),
        *only_if(
            _is_post,
            rename(_BLOCK + "self_attn_layer_norm.*", _OURS + "post_attention_layernorm.*"),
            rename(_BLOCK + "final_layer_norm.*", _OURS + "post_feedforward_layernorm.*"),
        ),
        *only_if(
            lambda config: not _is_post(config),
            rename(_BLOCK + "self_attn_layer_norm.*", _OURS + "input_layernorm.*"),
            rename(_BLOCK + "final_layer_norm.*", _OURS + "post_attention_layernorm.*"),
        ),
    ],
)
