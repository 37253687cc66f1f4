"""A quantised model of the family as a checkpoint of its native class, under the names that serving engines know.

Notable here: codes, zero points and scales go through the family's own weight rules, as matrices of the weight's shape, and
what comes out must mean exactly what the rules make of the dense weight; a family that stores a matrix otherwise is refused,
never approximated.
"""

import copy

import torch
from torch import nn

from ..modeling.group_codes import GroupCodes
from .batches import sees_images
from .formats import FORMATS
from .stacks import has_experts
from .writer import save_quantized


def check_native(model):
    """Raise ValueError where no native class can hold quantized weights of this model; before any work."""
    from hf_variants.convert.config_conversion import config_to_native

    if sees_images(model.config):
        raise ValueError(
            "to='native' cannot hold this model: the files of native vision-language models name the language model otherwise "
            "than their classes do, and by these names it is told which matrices are packed; write it with to='variants'"
        )
    if has_experts(model.config):
        raise ValueError(
            "to='native' cannot hold this model: transformers keeps the experts of native classes in fused tensors and starts "
            "quantized experts from random weights (known failure); write it with to='variants'"
        )
    config_to_native(model.config, None)


def save_native(result, directory, **options):
    """As `save_quantized`, but in the native class that the model came from (or the first that expresses it).

    Raises:
        ValueError: naming the matrix, where the native family lays it out so that groups are cut.
    """
    return save_quantized(native_result(result), directory, **options)


@torch.no_grad()
def native_result(result):
    """The `QuantizedModel` of the native class, with tensors of its own.

    Raises:
        ValueError: where the native class cannot keep a matrix in its codes.
    """
    from hf_variants.convert import to_native
    from hf_variants.convert.heads import head_of_ours
    from hf_variants.convert.registry import find_family
    from hf_variants.convert.skeletons import tied_names
    from hf_variants.convert.weight_rules import apply_rules

    dense, codes = _dense_copy(result), result.codes
    native = to_native(dense)
    found = find_family(native.config.model_type)
    rules = found.rules(head_of_ours(type(dense), found))
    config = dense.config
    tied = tied_names(dense, config)
    state = {name: tensor for name, tensor in dense.state_dict().items() if name not in tied}
    views = [apply_rules(rules, _view(state, codes, part), config, back=True) for part in _PARTS]
    wanted, form = native.state_dict(), FORMATS[result.report.bits]
    names = []
    for name, module in list(native.named_modules()):
        weight = f"{name}.weight"
        if weight not in views[0] or not bool((views[2][weight] > 0).any()):
            continue
        packed = _regroup(name, *(view[weight] for view in views), result.report.group_size, form)
        if not isinstance(module, nn.Linear) or not torch.equal(packed.dequantize(), wanted[weight].float()):
            raise ValueError(
                f"to='native': {native.config.model_type} stores {weight} so that its codes cannot be kept; write the "
                "checkpoint with to='variants', or leave that matrix dense by leave_unquantized"
            )
        native.set_submodule(name, form.linear.from_codes(packed, module.bias))
        names.append(name)
    if sum(native.get_submodule(name).in_features * native.get_submodule(name).out_features for name in names) != sum(
        c.codes.numel() for c in codes.values()
    ):
        raise ValueError(
            f"to='native': some matrices would become dense in {type(native).__name__}; write it with to='variants'"
        )
    dense_names = [name for name, module in native.named_modules() if isinstance(module, nn.Linear)]
    settings = form.settings(result.report.group_size, dense_names)
    report = copy.copy(result.report)
    report.unquantized_modules = dense_names
    dtypes = {name: result.main_dtype for name, _ in native.named_parameters()}
    return type(result)(native.eval(), names, report, dtypes, settings, result.probe, result.probe_outputs)


_PARTS = ("codes", "zeros", "scales")


def _dense_copy(result):
    """The result with dense float32 matrices in place of the packed ones, and without a quantization config."""
    dense = copy.deepcopy(result.model).float()
    del dense.config.quantization_config
    for name in result.names:
        packed = dense.get_submodule(name)
        linear = nn.Linear(packed.in_features, packed.out_features, bias=packed.bias is not None, device="meta")
        linear.weight = nn.Parameter(packed.dequantize().contiguous(), requires_grad=False)
        linear.bias = packed.bias
        dense.set_submodule(name, linear)
    return dense


def _view(state, codes, part):
    """The state dict with one part of the codes, as a matrix of the weight's shape, in place of every weight."""
    view = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for name, found in codes.items():
        values = getattr(found, part).float()
        view[f"{name}.weight"] = values if part == "codes" else values.repeat_interleave(found.group, 1)
    return view


def _regroup(name, codes, zeros, scales, group_size, form):
    """`GroupCodes` of a native matrix from three matrices of its shape."""
    group = codes.shape[-1] if group_size == -1 else group_size
    if codes.shape[-1] % group or codes.shape[0] % form.out_multiple:
        raise ValueError(f"to='native': {name} of shape {tuple(codes.shape)} cannot be packed in groups of {group}")
    zeros, scales = (part[:, ::group].contiguous() for part in (zeros, scales))
    return GroupCodes(
        codes.round().to(torch.uint8), zeros.round().to(torch.uint8), scales.to(form.scale_dtype), group, form.top
    )
