"""LoRA that reaches every expert: what `target_modules` means for experts that live in fused tensors.

    LoraConfig(target_modules="all-linear")                         every projection and every expert, lm_head excepted
    LoraConfig(target_modules=["gate_proj", "up_proj", "down_proj"])    dense, shared and routed experts
    LoraConfig(target_modules="all-linear", target_parameters=["gate.weight"])      the router too

Notable here: peft translates Linear names to `target_parameters` from a table of model types, which takes the names away from
dense layers and shared experts and always adapts the router; so the family is translated here instead, when peft injects an
adapter. An adapter that could reach the experts in part only, or not at all, is refused or warned about.
"""

import re
import warnings
from functools import wraps

from .when_imported import when_imported

ALL_LINEAR = "all-linear"
# fused parameter -> names of the Linears that it stands for
FUSED_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}
_FUSED_NAME = re.compile(r"(.*\.experts)\.(gate_up_proj|up_proj|down_proj)$")


def fused_experts(model):
    """{name of a fused expert parameter: names of the Linears it stands for, all experts alike}."""
    found = {}
    for name, _ in model.named_parameters():
        match = _FUSED_NAME.fullmatch(name.replace(".base_layer", ""))
        if match:
            found[match.group(0)] = [f"{match.group(1)}.0.{part}" for part in FUSED_PARTS[match.group(2)]]
    return found


def reach_experts(peft_config, model, is_targeted):
    """Add the fused expert parameters that `target_modules` means to `target_parameters` of a LoRA config, in place.

    Args:
        is_targeted: peft's test of a module name against a config.

    Raises:
        ValueError: when only a part of a fused parameter is named.
    """
    wanted = peft_config.target_modules
    if wanted is None:
        # peft's own default, or its own error
        return
    everything = isinstance(wanted, str) and wanted.lower() == ALL_LINEAR
    chosen = []
    for parameter, linears in fused_experts(model).items():
        hits = [name for name in linears if everything or is_targeted(peft_config, name)]
        if hits and len(hits) < len(linears):
            missing = sorted({name.rpartition(".")[2] for name in linears} - {name.rpartition(".")[2] for name in hits})
            raise ValueError(
                f"target_modules={wanted!r} names a part of {parameter!r}, which is one fused tensor; name {missing} too, or "
                "the matrices of dense layers and shared experts alone ('shared_experts.up_proj')"
            )
        if hits:
            chosen.append(parameter)
    if chosen:
        peft_config.target_parameters = sorted({*(peft_config.target_parameters or ()), *chosen})


def warn_of_experts(peft_config, model):
    """Warn where a method other than LoRA is asked for all Linears and cannot adapt fused experts."""
    wanted = getattr(peft_config, "target_modules", None)
    if isinstance(wanted, str) and wanted.lower() == ALL_LINEAR and fused_experts(model):
        warnings.warn(
            f"{peft_config.peft_type} adapts modules only: the routed experts of this model are fused tensors and stay "
            "frozen; use LoRA to adapt them",
            stacklevel=2,
        )


def name_packed(peft_config, model):
    """Spell out what all Linears are where packed ones, which peft does not know as Linears, are among them, in place.

    Raises:
        ValueError: for a method other than LoRA, which cannot adapt packed matrices.
    """
    from .quantize.adapters import all_linear_names, has_packed

    wanted = getattr(peft_config, "target_modules", None)
    if wanted is None or not has_packed(model):
        return
    if str(getattr(peft_config.peft_type, "value", peft_config.peft_type)) != "LORA":
        raise ValueError(
            f"{peft_config.peft_type} cannot adapt packed weights; use LoRA, or dequantise the model first "
            "(hf_variants.quantize.dequantize)"
        )
    if isinstance(wanted, str) and wanted.lower() == ALL_LINEAR:
        peft_config.target_modules = all_linear_names(model)


def is_ours(model):
    """Whether a model is of the family, of whatever class: remote code has copies of the classes."""
    kind = str(getattr(getattr(model, "config", None), "model_type", None))
    return kind == "variants" or kind.startswith("variants_")


def _patch_tuner(tuners_utils):
    """Have peft's tuners translate the targets of this family before they inject an adapter. Safe to repeat."""
    tuner = tuners_utils.BaseTuner
    inject = tuner.inject_adapter
    if getattr(inject, "reaches_variants", False):
        return

    @wraps(inject)
    def inject_adapter(self, model, adapter_name, *args, **kwargs):
        if is_ours(model):
            peft_config = self.peft_config[adapter_name]
            name_packed(peft_config, model)
            if hasattr(peft_config, "target_parameters"):
                reach_experts(peft_config, model, tuners_utils.check_target_module_exists)
            else:
                warn_of_experts(peft_config, model)
        return inject(self, model, adapter_name, *args, **kwargs)

    inject_adapter.reaches_variants = True
    tuner.inject_adapter = inject_adapter
    merge = tuner.merge_and_unload

    @wraps(merge)
    def merge_and_unload(self, *args, **kwargs):
        from .quantize.adapters import tell_config

        merged = merge(self, *args, **kwargs)
        if is_ours(merged):
            tell_config(merged)
        return merged

    tuner.merge_and_unload = merge_and_unload


def _patch_lora(model_module):
    # imported here: it brings in torch, which the help of a command does without
    from .quantize.adapters import patch_lora

    patch_lora(model_module)


def register_peft():
    """Teach peft the family: now where peft is imported, else when it is."""
    when_imported("peft.tuners.tuners_utils", _patch_tuner)
    when_imported("peft.tuners.lora.model", _patch_lora)
