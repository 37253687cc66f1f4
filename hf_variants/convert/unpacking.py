"""Quantized safetensors unpacked on request, of formats that `packed_files` does not read; and the tokenizer of GGUF files.

Notable here: the whole model is loaded by transformers and unpacked in memory; what comes out is an ordinary model, and is
converted and proven as one. Unpacking gives what the codes say, not the weights that were quantized.
"""

import copy

import torch

from hf_variants.convert.checkpoint_config import folder_keys, load_config
from hf_variants.convert.packed_files import expert_steps


def unpacked_model(folder, dtype=None):
    """The causal language model in `folder` with dense weights, native or of the family.

    Raises:
        ValueError: for a format that cannot be unpacked here, with what transformers said.
    """
    return _dense(_loaded(folder, dtype), folder)


def dense_state(model):
    """The state dict of an unpacked model, with routed experts that were quantized one by one fused as ours are in memory."""
    state = dict(model.state_dict())
    for step in expert_steps(state):
        state.update(step.compute({name: state.pop(name) for name in step.sources}))
    return state


def unpacked_tokenizer(folder, gguf_file):
    """The tokenizer that a GGUF file holds, or None."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    try:
        return AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)
    except (OSError, ValueError, KeyError, ImportError) as error:
        logging.get_logger(__name__).warning(f"No tokenizer goes along: that of {gguf_file} cannot be read ({error}).")
        return None


def _loaded(folder, dtype):
    from transformers import AutoModelForCausalLM

    folder_keys(folder)
    config = load_config(folder)
    given = getattr(config, "quantization_config", None)
    if given is None:
        raise ValueError(f"{folder} holds no quantized weights; leave dequantize out")
    family = str(config.model_type).split("_")[0] == "variants"
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype or "auto", **_asking_for_dense(given, family))
    except (ImportError, RuntimeError, NotImplementedError, KeyError, TypeError) as error:
        raise ValueError(f"the weights of {folder} cannot be unpacked here: {error}") from error


def _asking_for_dense(given, family):
    """The argument that has transformers unpack while it loads, for the formats that offer it."""
    from inspect import signature

    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    from hf_variants.modeling.int8_loading import read_here

    if isinstance(given, dict) and read_here(given, family):
        return {}
    method = given.get("quant_method") if isinstance(given, dict) else given.quant_method
    method = getattr(method, "value", method)
    cls = AUTO_QUANTIZATION_CONFIG_MAPPING.get(method)
    cls = getattr(cls, "stands_for", cls)
    if cls is None or "dequantize" not in signature(cls.__init__).parameters:
        return {}
    return {"quantization_config": cls(dequantize=True)}


@torch.no_grad()
def _dense(model, folder):
    packed = {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "qweight") or hasattr(module, "weight_packed")
    }
    for name, module in packed.items():
        if not hasattr(module, "dequantize"):
            raise ValueError(f"{name} of {folder} is a {type(module).__name__}, which cannot be unpacked")
        weight = module.dequantize(model.dtype)
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=module.bias is not None, device="meta")
        linear.weight = torch.nn.Parameter(weight.contiguous())
        if module.bias is not None:
            linear.bias = torch.nn.Parameter(module.bias.to(model.dtype))
        model.set_submodule(name, linear)
    if not packed and any(type(part).__module__.startswith("bitsandbytes") for part in model.modules()):
        model = model.dequantize(dtype=model.dtype)
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model.config = config
    return model
