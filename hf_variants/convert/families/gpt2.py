"""GPT-2: learned positions, LayerNorm, biases everywhere, linear weights stored [in, out] with q, k, v fused.

`summary_*` belongs to another head and `reorder_and_upcast_attn` changes rounding in half precision alone; both stay
native.
"""

from hf_variants.convert.classic_maps import (
    BLOCK,
    GPT_KEYS,
    GPT_WEIGHTS,
    OURS,
    fused_conv1d,
    no_cross_attention,
    scale_switch,
    transposed,
)
from hf_variants.convert.config_map import Always, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import rename

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
        *fused_conv1d("attn.c_attn"),
        *transposed("attn.c_proj", "self_attn.o_proj"),
        *transposed("mlp.c_fc", "mlp.up_proj"),
        *transposed("mlp.c_proj", "mlp.down_proj"),
    ],
)
