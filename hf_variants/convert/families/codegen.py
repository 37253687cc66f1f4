"""CodeGen: GPT-J whose q, v and k are fused in that order, in four blocks of heads. `n_ctx` is never read natively."""

from hf_variants.convert.classic_maps import BLOCK, GPT_WEIGHTS, GPTJ_KEYS, OURS
from hf_variants.convert.config_map import Refuse
from hf_variants.convert.registry import Family
from hf_variants.convert.tensor_ops import SplitPerBlock
from hf_variants.convert.weight_rules import rearrange, rename

FAMILY = Family(
    model_type="codegen",
    config=[
        *GPTJ_KEYS,
        Refuse("n_head", lambda native: native.n_head % 4 != 0, "natively its heads lie in four equal blocks"),
    ],
    weights=[
        *GPT_WEIGHTS,
        rearrange(
            BLOCK + "attn.qkv_proj.weight",
            tuple(f"{OURS}self_attn.{part}_proj.weight" for part in "qvk"),
            SplitPerBlock(blocks=4),
        ),
        rename(BLOCK + "attn.out_proj.weight", OURS + "self_attn.o_proj.weight"),
        rename(BLOCK + "mlp.fc_in.*", OURS + "mlp.up_proj.*"),
        rename(BLOCK + "mlp.fc_out.*", OURS + "mlp.down_proj.*"),
    ],
)
