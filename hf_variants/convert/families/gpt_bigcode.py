"""GPT-BigCode (StarCoder): GPT-2 with one key-value head, or one per query head.

The switches of softmax in fp32 are never read natively, so they stay native.
"""

from hf_variants.convert.classic_maps import (
    BLOCK,
    GPT_KEYS,
    GPT_WEIGHTS,
    OURS,
    fused_qkv,
    no_cross_attention,
    scale_switch,
)
from hf_variants.convert.config_map import Always, Both
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import rename

FAMILY = Family(
    model_type="gpt_bigcode",
    config=[
        *GPT_KEYS,
        Always(position_embedding_type="learned", attention_bias=True, attention_out_bias=True),
        Both(
            lambda native: {"num_key_value_heads": native.num_key_value_heads},
            lambda config: {"multi_query": config.num_key_value_heads == 1},
        ),
        scale_switch(),
        no_cross_attention(),
    ],
    weights=[
        *GPT_WEIGHTS,
        rename("transformer.wpe.weight", "model.embed_positions.weight"),
        rename(BLOCK + "ln_2.*", OURS + "post_attention_layernorm.*"),
        fused_qkv(BLOCK + "attn.c_attn.*"),
        rename(BLOCK + "attn.c_proj.*", OURS + "self_attn.o_proj.*"),
        rename(BLOCK + "mlp.c_fc.*", OURS + "mlp.up_proj.*"),
        rename(BLOCK + "mlp.c_proj.*", OURS + "mlp.down_proj.*"),
    ],
)
