"""LoRA on `PackedLinear`: trains on the packed weights, and merges by putting a dense matrix in their place.

Notable here: nothing here imports peft, which calls in when it is imported itself; four bits cannot hold a sum, so merging
dequantises (peft's own way, adding to `weight`, would be lost on a matrix that is made anew at each access), and unmerging
puts the packed tensors back, bit for bit; what would change the frozen weights at the start is refused.
"""

import copy
import warnings

import torch
from torch import nn

from ..modeling.expert_loading import FUSED_PARTS
from ..modeling.packed_linear import PackedLinear
from .formats import PACKED_TENSORS
from .stacks import has_experts

# Starts of LoRA that leave the frozen weights alone (`init_lora_weights`); the others write into them.
_HARMLESS_STARTS = (True, False, "gaussian", "eva", "orthogonal")


def patch_lora(model_module):
    """Have peft's LoRA take `PackedLinear`s: `model_module` is `peft.tuners.lora.model`. Safe to repeat."""
    original = model_module.dispatch_awq
    if getattr(original, "takes_torch_awq", False):
        return
    layer_class = _layer_class(model_module)

    def dispatch_awq(target, adapter_name, config, **kwargs):
        base = target.get_base_layer() if hasattr(target, "get_base_layer") else target
        if isinstance(base, PackedLinear) and kwargs.get("parameter_name") is None:
            return layer_class(target, adapter_name, config=config, **kwargs)
        return original(target, adapter_name, config=config, **kwargs)

    dispatch_awq.takes_torch_awq = True
    model_module.dispatch_awq = dispatch_awq


def _layer_class(model_module):
    """The LoRA layer, made from the installed peft's own."""
    from peft.tuners.lora.layer import Linear

    class AwqLoraLinear(Linear):
        """LoRA over an `PackedLinear`."""

        def __init__(self, base_layer, adapter_name, config, **kwargs):
            _check_start(config)
            with warnings.catch_warnings():
                # peft asks every layer that it does not know for its features, and finds them
                warnings.filterwarnings("ignore", "Unsupported layer type")
                super().__init__(base_layer, adapter_name, config=config, **kwargs)
            self._packed = None

        def merge(self, safe_merge=False, adapter_names=None):
            if isinstance(self.base_layer, PackedLinear):
                # a list: the packed layer must be no submodule beside the dense one
                self._packed = [self.base_layer]
                self.base_layer = dense_linear(self.base_layer)
            super().merge(safe_merge=safe_merge, adapter_names=adapter_names)

        def unmerge(self):
            super().unmerge()
            if self._packed is not None:
                self.base_layer, self._packed = self._packed[0], None

    return AwqLoraLinear


def _check_start(config):
    """Raise ValueError for what an adapter on packed weights cannot do."""
    if config.init_lora_weights not in _HARMLESS_STARTS:
        raise ValueError(
            f"init_lora_weights={config.init_lora_weights!r} changes the frozen weights, which are packed; choose "
            f"from {list(_HARMLESS_STARTS)}, or dequantise the model first (hf_variants.quantize.dequantize)"
        )
    if config.use_dora:
        raise ValueError(
            "use_dora=True needs the norms of the frozen weights at each step, which are packed; use plain LoRA, or "
            "dequantise the model first (hf_variants.quantize.dequantize)"
        )


def all_linear_names(model):
    """Names that `all-linear` means in a model with packed Linears: all Linears but the output head, packed or not."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    kinds = (PackedLinear, nn.Linear)
    gates = (".mlp.gate", ".mlp.shared_expert_gate")
    return {n for n, m in model.named_modules() if isinstance(m, kinds) and m is not head and not n.endswith(gates)}


def has_packed(model):
    return any(isinstance(module, PackedLinear) for module in model.modules())


def tell_config(model):
    """Have the config of a model say what is packed now: an adapter that was merged made dense what it was over."""
    settings = getattr(model.config, "quantization_config", None)
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    kept = {"awq": "modules_to_not_convert", "compressed-tensors": "ignore"}.get(str(getattr(method, "value", method)))
    if kept is None:
        return
    dense = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if has_packed(model) or has_experts(model.config):
        # experts stay apart in memory, which a config without quantization would not build
        if isinstance(settings, dict):
            settings[kept] = dense
        else:
            setattr(settings, kept, dense)
        return
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False


def dense_linear(packed, dtype=None):
    """The `nn.Linear` of the same function as an `PackedLinear`, in `dtype` (None: what the model around it computes in)."""
    dtype = dtype or packed.weight.dtype
    linear = nn.Linear(packed.in_features, packed.out_features, bias=packed.bias is not None, device="meta")
    linear.weight = nn.Parameter(packed.dequantize(dtype).contiguous(), requires_grad=False)
    if packed.bias is not None:
        linear.bias = nn.Parameter(packed.bias.detach().to(dtype), requires_grad=False)
    return linear


@torch.no_grad()
def dequantize(model, dtype=None):
    """A dense model of the family with the function of `model`, whose packed Linears (and merged adapters) become plain ones.

    Args:
        model: a VariantsFor... model with `PackedLinear`s, or one of which an adapter was merged; left as it is.
        dtype: of the result; None takes that of the model's dense parameters.

    Returns:
        A model of the same class without a quantization config, its experts fused again.
    """
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    dtype = dtype or model.dtype
    state = {}
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear):
            state[f"{name}.weight"] = module.dequantize(dtype)
    state.update({name: t for name, t in model.state_dict().items() if name.rpartition(".")[2] not in PACKED_TENSORS})
    result = type(model)(config).to(dtype).eval()
    result.load_state_dict(_fused(state, result.state_dict()), strict=True)
    result.generation_config = copy.deepcopy(getattr(model, "generation_config", None))
    return result


def _fused(state, wanted):
    """Experts' own matrices `experts.N.PART.KIND` stacked into the fused tensors that `wanted` names."""
    result = dict(state)
    for name, tensor in wanted.items():
        prefix, _, last = name.rpartition(".")
        fused, kind = last.removesuffix("_bias"), "bias" if last.endswith("_bias") else "weight"
        if name in state or fused not in FUSED_PARTS or not prefix.endswith(".experts"):
            continue
        rows = [
            torch.cat([result.pop(f"{prefix}.{expert}.{part}.{kind}") for part in FUSED_PARTS[fused]])
            for expert in range(len(tensor))
        ]
        result[name] = torch.stack(rows)
    return result
