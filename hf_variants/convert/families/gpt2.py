"""GPT-2: learned positions, LayerNorm, biases everywhere, linear weights stored [in, out] with q, k, v fused.

`summary_*` belongs to another head and `reorder_and_upcast_attn` changes rounding in half precision alone; both stay
native.
"""

from hf_variants.convert.classic_maps import BLOCK, GPT_KEYS, GPT_WEIGHTS, OURS, no_cross_attention, scale_switch
from hf_variants.convert.config_map import Always, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.tensor_ops import Split, Transpose, head_rows
from hf_variants.convert.weight_rules import rearrange, rename


def _transposed(native, ours):
    return [
        rearrange(f"{BLOCK}{native}.weight", f"{OURS}{ours}.weight", Transpose()),
        rename(f"{BLOCK}{native}.bias", f"{OURS}{ours}.bias"),
    ]


_QKV = tuple(f"{OURS}self_attn.{part}_proj." for part in "qkv")

FAMILY = Family(
    model_type="gpt2",
    config=[
        *GPT_KEYS,
        Same("scale_attn_by_inverse_layer_idx"),
        Always(position_embedding_type="learned", attention_bias=True, attention_out_bias=True),
        scale_switch(),
        no_cross_attention(),
    ],
    weights=[
        *GPT_WEIGHTS,
        rename("transformer.wpe.weight", "model.embed_positions.weight"),
        rename(BLOCK + "ln_2.*", OURS + "post_attention_layernorm.*"),
        rearrange(BLOCK + "attn.c_attn.weight", tuple(name + "weight" for name in _QKV), Transpose(), Split(head_rows)),
        rearrange(BLOCK + "attn.c_attn.bias", tuple(name + "bias" for name in _QKV), Split(head_rows)),
        *_transposed("attn.c_proj", "self_attn.o_proj"),
        *_transposed("mlp.c_fc", "mlp.up_proj"),
        *_transposed("mlp.c_proj", "mlp.down_proj"),
    ],
)
