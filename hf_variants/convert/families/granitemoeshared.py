"""Granite MoE with a shared expert of its own width, or none where that is zero."""

from hf_variants.convert.config_map import Both
from hf_variants.convert.families.granitemoe import KEYS, WEIGHTS
from hf_variants.convert.registry import Family
from hf_variants.convert.tensor_ops import Split
from hf_variants.convert.weight_rules import rearrange, rename

_LAYER = "model.layers.*."


def _read_shared(native):
    width = native.shared_intermediate_size
    return {"num_shared_experts": 1, "shared_expert_intermediate_size": width} if width else {}


SHARED_KEYS = Both(_read_shared, lambda config: {"shared_intermediate_size": config.shared_expert_intermediate_size or 0})

FAMILY = Family(
    model_type="granitemoeshared",
    config=[*KEYS, SHARED_KEYS],
    weights=[
        *WEIGHTS,
        rearrange(
            _LAYER + "shared_mlp.input_linear.weight",
            tuple(f"{_LAYER}mlp.shared_experts.{part}_proj.weight" for part in ("gate", "up")),
            Split(lambda config: [config.shared_expert_intermediate_size] * 2),
        ),
        rename(_LAYER + "shared_mlp.output_linear.weight", _LAYER + "mlp.shared_experts.down_proj.weight"),
    ],
)
