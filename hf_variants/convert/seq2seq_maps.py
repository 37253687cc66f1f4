"""Config and weight rules of encoder-decoders: T5's, and those of BART and its kin.

Notable here: both stacks of BART's kin have the same layers under names that differ by their prefix; its members differ in
where the norms stand and in what a position is.
"""

import math

from hf_variants.convert.classic_maps import layerdrop
from hf_variants.convert.config_map import Always, Both, FrozenPad, Key, Refuse, Same, SpecialTokens
from hf_variants.convert.stored_sinusoids import DropSinusoids
from hf_variants.convert.weight_rules import keep, rearrange, rename

STACKS = ("encoder", "decoder")
# what T5's one rate drops beside the branches
RATES = ("attention_dropout", "embedding_dropout", "activation_dropout", "final_dropout")


def _read_start(native):
    # some native configs have the attribute only where a file names it; ours says what it is for
    return {"decoder_start_token_id": getattr(native, "decoder_start_token_id", None)}


def joined(*rules):
    """What every encoder-decoder here says of the whole, and `rules`."""
    start = Both(_read_start, lambda config: {"decoder_start_token_id": config.decoder_start_token_id})
    return [Same("use_cache"), SpecialTokens(), start, *rules]


# ---- T5 ----
def _read_feed_forward(native):
    kind = "gated" if native.is_gated_act else "plain"
    return {"mlp_type": kind, "hidden_act": native.dense_act_fn}


def _write_feed_forward(config):
    if config.mlp_type == "plain":
        return {"feed_forward_proj": config.hidden_act}
    return {"feed_forward_proj": "gated-gelu" if config.hidden_act == "gelu_new" else f"gated-{config.hidden_act}"}


def t5_stack(depth):
    """Config rules of one stack of T5; `depth` is the native key of its layers."""
    return [
        Same("vocab_size", "relative_attention_num_buckets", "relative_attention_max_distance"),
        Key("hidden_size", "d_model"),
        Key("head_dim", "d_kv"),
        Key("intermediate_size", "d_ff"),
        Key("num_attention_heads", "num_heads"),
        Key("num_hidden_layers", depth),
        Key("norm_eps", "layer_norm_epsilon"),
        Key("hidden_dropout", "dropout_rate"),
        Both(lambda native: dict.fromkeys(RATES, native.dropout_rate)),
        Both(_read_feed_forward, _write_feed_forward),
        SpecialTokens(),
        Always(position_embedding_type="relative", attention_multiplier=1.0, max_position_embeddings=512),
    ]


def scaled_where_tied():
    """What tells v1.0, whose tied head has scaled logits, from v1.1 in the native config: rules for the decoder and the whole.

    The flag of tying is always true natively; whether the head is its own is told by the weights. Of a config alone, that of
    v1.0 is taken for tied and that of v1.1 for a table of its own, as they were published.
    """
    scale = Both(
        lambda native: {"logits_scaling": native.d_model**0.5 if native.scale_decoder_outputs else 1.0},
        lambda config: {"tie_word_embeddings": config.logits_scaling != 1},
    )
    return scale, Both(lambda native: {"tie_word_embeddings": native.scale_decoder_outputs})


def t5_weights(bias_of_layers=False, encoder_attention="SelfAttention"):
    """T5's weights; feed-forward is `layer.1` of the encoder and `layer.2` of the decoder.

    Args:
        bias_of_layers: whether every layer has a relative bias, and not the first alone.
        encoder_attention: native name of the encoder's attention.
    """
    first, table = ("*", "embed_positions.*.weight") if bias_of_layers else ("0", "embed_positions.weight")
    rules = [rename("shared.weight", "model.decoder.embed_tokens.weight"), *keep("lm_head.weight")]
    for stack, last in (("encoder", 1), ("decoder", 2)):
        block, ours = f"{stack}.block.*.layer", f"model.{stack}.layers.*"
        attention = encoder_attention if stack == "encoder" else "SelfAttention"
        rules += [
            rename(
                f"{stack}.block.{first}.layer.0.{attention}.relative_attention_bias.weight",
                f"model.{stack}.{table}",
            ),
            rename(f"{stack}.final_layer_norm.weight", f"model.{stack}.norm.weight"),
            *(rename(f"{block}.0.{attention}.{p}.weight", f"{ours}.self_attn.{p}_proj.weight") for p in "qkvo"),
            rename(f"{block}.0.layer_norm.weight", f"{ours}.input_layernorm.weight"),
            rename(f"{block}.{last}.layer_norm.weight", f"{ours}.post_attention_layernorm.weight"),
        ]
        names = {"wi": "up_proj", "wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
        for native, name in names.items():
            plain = native == "wi"
            rule = rename(f"{block}.{last}.DenseReluDense.{native}.weight", f"{ours}.mlp.{name}.weight")
            rules += [rule] if native == "wo" else [_if_gated(rule, not plain)]
    rules += [
        *(
            rename(f"decoder.block.*.layer.1.EncDecAttention.{p}.weight", f"model.decoder.layers.*.cross_attn.{p}_proj.weight")
            for p in "qkvo"
        ),
        rename("decoder.block.*.layer.1.layer_norm.weight", "model.decoder.layers.*.cross_attn_layernorm.weight"),
    ]
    return rules


def _if_gated(rule, gated):
    from dataclasses import replace

    return replace(rule, when=lambda config: (config.decoder.mlp_type == "gated") == gated)


# ---- BART and its kin ----
def bart_stack(stack, *more):
    """Config rules of one stack of BART's kin, and `more`."""
    return [
        Same("vocab_size", "max_position_embeddings", "attention_dropout", "activation_dropout"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", f"{stack}_layers"),
        Key("num_attention_heads", f"{stack}_attention_heads"),
        Key("intermediate_size", f"{stack}_ffn_dim"),
        Key("hidden_act", "activation_function"),
        Key("hidden_dropout", "dropout"),
        Both(lambda native: {"embedding_dropout": native.dropout}),
        Key("initializer_range", "init_std"),
        SpecialTokens(),
        FrozenPad(),
        Always(norm_type="layernorm", norm_eps=1e-5, mlp_type="plain", attention_bias=True, mlp_bias=True),
        *more,
    ]


def pre_norms(embedding_norm=False):
    """Norms before the branches and, behind each stack, a last one."""
    return Always(norm_placement="pre", final_norm=True, embedding_norm=embedding_norm)


def post_norms(embedding_norm):
    return Always(norm_placement="post_ln", embedding_norm=embedding_norm)


def learned_positions(offset=2):
    return Always(position_embedding_type="learned", position_embedding_offset=offset)


def sinusoids():
    return Always(position_embedding_type="sinusoidal_concat", sinusoid_dtype="float64")


def scale_embedding(scope):
    """`scale_embedding`: embeddings times the root of the width; `scope` says whether given ones too."""
    return Both(
        lambda native: (
            {"embedding_multiplier": math.sqrt(native.d_model), "embedding_multiplier_scope": scope}
            if native.scale_embedding
            else {}
        ),
        lambda config: {"scale_embedding": config.embedding_multiplier != 1},
    )


def bart_joined(*more, logits_bias=True):
    """What BART's kin say of the whole: the constants on the logits, and the dropping of whole layers, which ours lacks."""
    return joined(
        Always(final_logits_bias=logits_bias),
        *map(layerdrop, ("encoder_layerdrop", "decoder_layerdrop")),
        *more,
    )


def one_table():
    """The tables of both stacks and the head are one; natively nothing else is usual, and untied `shared` feeds nothing."""
    untied = Refuse(
        "tie_word_embeddings",
        lambda native: not native.tie_word_embeddings,
        "untied, its table `shared` feeds nothing and has no place here; set it to True",
    )
    return [untied, Same("tie_word_embeddings"), Always(share_embeddings=True)]


def shared_table():
    return rename("model.shared.weight", "model.decoder.embed_tokens.weight")


NORMS_PRE = {
    "self_attn_layer_norm": "input_layernorm",
    "encoder_attn_layer_norm": "cross_attn_layernorm",
    "final_layer_norm": "post_attention_layernorm",
}
NORMS_POST = {
    "self_attn_layer_norm": "post_attention_layernorm",
    "encoder_attn_layer_norm": "cross_attn_layernorm",
    "final_layer_norm": "post_feedforward_layernorm",
}


def bart_weights(norms, embedding_norm, final_norm, computed_positions):
    """Weights of BART's kin beside the token tables; `computed_positions` where positions are sinusoids."""
    rules = [*keep("final_logits_bias")]
    for stack in STACKS:
        native, ours = f"model.{stack}.", f"model.{stack}."
        block = f"{native}layers.*."
        rules += [
            *(rename(f"{block}self_attn.{p}_proj.*", f"{ours}layers.*.self_attn.{p}_proj.*") for p in "qkv"),
            rename(f"{block}self_attn.out_proj.*", f"{ours}layers.*.self_attn.o_proj.*"),
            rename(f"{block}fc1.*", f"{ours}layers.*.mlp.up_proj.*"),
            rename(f"{block}fc2.*", f"{ours}layers.*.mlp.down_proj.*"),
        ]
        if stack == "decoder":
            rules += [rename(f"{block}encoder_attn.{p}_proj.*", f"{ours}layers.*.cross_attn.{p}_proj.*") for p in "qkv"]
            rules += [rename(f"{block}encoder_attn.out_proj.*", f"{ours}layers.*.cross_attn.o_proj.*")]
        for theirs, mine in norms.items():
            if stack == "decoder" or theirs != "encoder_attn_layer_norm":
                rules += [rename(f"{block}{theirs}.*", f"{ours}layers.*.{mine}.*")]
        if embedding_norm:
            rules += [rename(f"{native}layernorm_embedding.*", f"{ours}embed_norm.*")]
        if final_norm:
            rules += [rename(f"{native}layer_norm.*", f"{ours}norm.*")]
        if not computed_positions:
            rules += [rename(f"{native}embed_positions.weight", f"{ours}embed_positions.weight")]
    return rules


def _rows_of(stack):
    def shape(config):
        own = getattr(config, stack)
        return own.max_position_embeddings, own.hidden_size

    return shape


def stored_sinusoids():
    """The tables of sinusoids that native classes build, each left out beside a bias of its stack's first layer."""
    return [
        rearrange(
            (f"model.{stack}.layers.0.fc1.bias", f"model.{stack}.embed_positions.weight"),
            f"model.{stack}.layers.0.mlp.up_proj.bias",
            DropSinusoids(_rows_of(stack)),
        )
        for stack in STACKS
    ]
