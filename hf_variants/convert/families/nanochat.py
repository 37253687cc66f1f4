"""nanochat: norms without weights, one of them after the embedding, and RoPE that turns backwards.

Turning by -angle is turning by +angle with the halves of each head swapped, which is done to the rows of q and k.
"""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, all_biases, rope
from hf_variants.convert.tensor_ops import SwapHalves
from hf_variants.convert.weight_rules import keep, rearrange, rename

_LAYER = "model.layers.*."


def _swapped(part):
    name = f"{_LAYER}self_attn.{part}_proj.*"
    return rearrange(name, name, SwapHalves())


FAMILY = Family(
    model_type="nanochat",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "final_logit_softcapping"),
        Always(norm_affine=False, embedding_norm=True, qk_norm="l2", qk_norm_after_rope=True, mlp_type="plain"),
        HeadDim(),
        all_biases(),
        rope(),
    ],
    weights=[
        *EMBEDDINGS,
        *(_swapped(part) for part in "qk"),
        *keep(*(f"{_LAYER}self_attn.{part}_proj.*" for part in "vo")),
        rename(_LAYER + "mlp.fc1.weight", _LAYER + "mlp.up_proj.weight"),
        rename(_LAYER + "mlp.fc2.weight", _LAYER + "mlp.down_proj.weight"),
    ],
)
