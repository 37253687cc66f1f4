"""Loading a checkpoint of fused experts into experts that are one `nn.Linear` each.

Notable here: a quantizer finds Linears only, so a model that is quantized while it is loaded builds its experts apart, and the
fused tensors on disk are split on their way in; each part is quantized as it arrives. Saving is not touched: a quantized model
keeps its experts apart on disk.
"""

from contextlib import contextmanager
from dataclasses import replace

import torch
from transformers.core_model_loading import ConversionOps, WeightConverter

from .experts import VariantsLinearExperts

# fused parameter -> the matrices of one expert, stacked along their rows
FUSED_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}


class SplitExperts(ConversionOps):
    """One fused tensor [E, rows, ...] -> one per expert and part: `experts.N.PART.KIND` of rows / len(parts) rows each."""

    def __init__(self, parts, kind):
        self.parts, self.kind = parts, kind

    @torch.no_grad
    def convert(self, input_dict, source_patterns, target_patterns, **kwargs):
        tensors = next(iter(input_dict.values()))
        fused = tensors[0] if isinstance(tensors, list) else tensors
        return {
            f"mlp.experts.{index}.{part}.{self.kind}": rows.contiguous()
            for index, expert in enumerate(fused)
            for part, rows in zip(self.parts, expert.chunk(len(self.parts)), strict=True)
        }

    @property
    def reverse_op(self):
        raise ValueError("experts that were split while they were loaded are saved apart")


def splitting_converters():
    """One converter per fused expert tensor, weights and biases."""
    return [
        WeightConverter(
            rf"mlp.experts.{fused}{suffix}",
            f"mlp.experts.0.{parts[0]}.{kind}",
            operations=[SplitExperts(parts, kind)],
        )
        for fused, parts in FUSED_PARTS.items()
        for suffix, kind in (("", "weight"), ("_bias", "bias"))
    ]


@contextmanager
def experts_split(model, load_config):
    """Gives `load_config`, with converters for fused experts where `model` keeps them apart."""
    if not any(isinstance(module, VariantsLinearExperts) for module in model.modules()):
        yield load_config
        return
    given = load_config.weight_mapping or []
    yield replace(load_config, weight_mapping=[*given, *splitting_converters()])
    # what was used here would be undone at saving
    model._weight_conversions = [entry for entry in model._weight_conversions if entry in given]


@contextmanager
def quantized_as(config, text):
    """Within it `text` says that its weights are quantized where `config` does: experts are built apart for it."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        yield
        return
    text.quantization_config = settings
    try:
        yield
    finally:
        del text.quantization_config


def forget_irreversible(model):
    """Drop what a quantizer did to read its own files: it has no inverse and needs none, but saving would ask for one."""
    kept = []
    if getattr(model, "_weight_conversions", None) is None:
        return
    for entry in model._weight_conversions:
        try:
            entry.reverse_transform()
        except NotImplementedError:
            continue
        kept.append(entry)
    model._weight_conversions = kept
