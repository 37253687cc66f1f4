"""GLM-4 9B: interleaved RoPE on half of each head, biases on q, k, v alone, gate and up fused."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, qkv_biases, rope
from hf_variants.convert.tensor_ops import Split, gate_and_up_rows
from hf_variants.convert.weight_rules import keep, rearrange

_MLP = "model.layers.*.mlp."

KEYS = [
    *MODERN_KEYS,
    Same("intermediate_size", "hidden_act"),
    Always(rope_interleaved=True),
    HeadDim(declared=True),
    qkv_biases(),
    rope(partial=True),
]
BRANCHES = [
    *keep("model.layers.*.self_attn.**", _MLP + "down_proj.weight"),
    rearrange(
        _MLP + "gate_up_proj.weight",
        tuple(_MLP + f"{part}_proj.weight" for part in ("gate", "up")),
        Split(gate_and_up_rows),
    ),
]

FAMILY = Family(
    model_type="glm",
    config=KEYS,
    weights=[*EMBEDDINGS, *BRANCHES, *keep("model.layers.*.*_layernorm.weight")],
)
