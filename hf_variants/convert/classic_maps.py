"""Config and weight rules of the families around GPT-2, GPT-J and GPT-NeoX.

Notable here: GPT-2's key names, RoPE given as a number of dimensions, and q, k, v fused by key-value head.
"""

from math import inf, nextafter

from hf_variants.convert.config_map import Always, Both, Key, Refuse, TrainingOnly
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT
from hf_variants.convert.tensor_ops import Split, SplitPerGroup, Transpose, head_rows
from hf_variants.convert.weight_rules import keep, rearrange, rename

BLOCK, OURS = "transformer.h.*.", "model.layers.*."


def width(key="n_inner"):
    """A feed-forward width of which None means four times the hidden size."""

    def read(native):
        given = getattr(native, key)
        return {"intermediate_size": 4 * native.hidden_size if given is None else given}

    def write(config):
        return {key: None if config.intermediate_size == 4 * config.hidden_size else config.intermediate_size}

    return Both(read, write)


GPT_KEYS = [
    *COMMON_KEYS_WITHOUT_DROPOUT,
    Key("max_position_embeddings", "n_positions"),
    Key("norm_eps", "layer_norm_epsilon"),
    Key("hidden_act", "activation_function"),
    Key("attention_dropout", "attn_pdrop"),
    Key("hidden_dropout", "resid_pdrop"),
    Key("embedding_dropout", "embd_pdrop"),
    Always(norm_type="layernorm", mlp_type="plain", mlp_bias=True),
    width(),
]


def scale_switch():
    """`scale_attn_weights`: scores divided by the root of the head width, or not at all."""
    return Both(
        lambda native: {"attention_multiplier": None if native.scale_attn_weights else 1.0},
        lambda config: {"scale_attn_weights": config.attention_multiplier is None},
    )


def no_cross_attention():
    return Refuse(
        "add_cross_attention",
        lambda native: native.add_cross_attention,
        "a decoder alone has nothing to attend to",
    )


def layerdrop(key="layerdrop"):
    return TrainingOnly(key, "leaves whole layers out")


# ---- GPT-J's rotation ----
def share_of(dims, head_dim):
    """The float of which `int(head_dim * share)` is `dims`."""
    share = dims / head_dim
    return share if int(head_dim * share) == dims else nextafter(share, inf)


def rotary_dim():
    """`rotary_dim` leading dimensions turned in pairs, with a fixed theta of 10000 (GPT-J)."""

    def read(native):
        return {
            "partial_rotary_factor": share_of(native.rotary_dim, native.hidden_size // native.num_attention_heads),
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "rope_interleaved": True,
        }

    def write(config):
        keys = config.rope_keys
        return {"rotary_dim": config.rotary_dim_of(keys[0])} if keys else {}

    return Both(read, write)


GPTJ_KEYS = [*GPT_KEYS, Always(norm_placement="parallel", lm_head_bias=True), rotary_dim()]


# ---- weights ----


def fused_qkv(native, ours=OURS):
    """q, k and v fused by key-value head, weights and biases."""
    return rearrange(native, tuple(f"{ours}self_attn.{part}_proj.*" for part in "qkv"), SplitPerGroup())


def transposed(native, ours):
    """A linear layer that is stored [in, out] natively."""
    return [
        rearrange(f"{BLOCK}{native}.weight", f"{OURS}{ours}.weight", Transpose()),
        rename(f"{BLOCK}{native}.bias", f"{OURS}{ours}.bias"),
    ]


def fused_conv1d(native):
    """q, k and v in one layer that is stored [in, out]."""
    parts = tuple(f"{OURS}self_attn.{part}_proj." for part in "qkv")
    return [
        rearrange(f"{BLOCK}{native}.weight", tuple(name + "weight" for name in parts), Transpose(), Split(head_rows)),
        rearrange(f"{BLOCK}{native}.bias", tuple(name + "bias" for name in parts), Split(head_rows)),
    ]


GPT_WEIGHTS = [
    *keep("lm_head.*"),
    rename("transformer.wte.weight", "model.embed_tokens.weight"),
    rename("transformer.ln_f.*", "model.norm.*"),
    rename(BLOCK + "ln_1.*", OURS + "input_layernorm.*"),
]
