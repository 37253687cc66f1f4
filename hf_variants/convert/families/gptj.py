"""GPT-J: parallel blocks under one norm, interleaved partial rotation, a biased head, attention without biases."""

from hf_variants.convert.classic_maps import BLOCK, GPT_WEIGHTS, GPTJ_KEYS, OURS
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import rename

FAMILY = Family(
    model_type="gptj",
    config=GPTJ_KEYS,
    weights=[
        *GPT_WEIGHTS,
        *(rename(f"{BLOCK}attn.{part}_proj.weight", f"{OURS}self_attn.{part}_proj.weight") for part in "qkv"),
        rename(BLOCK + "attn.out_proj.weight", OURS + "self_attn.o_proj.weight"),
        rename(BLOCK + "mlp.fc_in.*", OURS + "mlp.up_proj.*"),
        rename(BLOCK + "mlp.fc_out.*", OURS + "mlp.down_proj.*"),
    ],
)
