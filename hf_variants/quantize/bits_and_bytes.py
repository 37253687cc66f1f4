"""bitsandbytes for every member of the family: nf4, nf4 with double quantisation, int8; counted after loading.

    model = load_in_bitsandbytes("folder", "nf4")       # experts included; router and head stay as they are
    quantized_counts(model)                             # what is packed, and what is dense

Notable here: bitsandbytes passes over what is no Linear without a word, so what it packed is counted, and a matrix of a layer
that stayed dense unasked is an error.
"""

from torch import nn

# scheme -> arguments of BitsAndBytesConfig, dtype of what is computed around it
SCHEMES = {
    "nf4": ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bfloat16"),
    "nf4-double": ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, "bfloat16"),
    # its product runs in float16 whatever it is given
    "int8": ({"load_in_8bit": True}, "float16"),
}
_CPU_IN, _CPU_OUT = 64, 32
_NEVER = ("mlp.gate", "mlp.shared_expert_gate")


def load_in_bitsandbytes(path, scheme="nf4", *, dtype=None, skip=(), **load_kwargs):
    """`from_pretrained` of a variants checkpoint, of the class that its config names, with its layers packed by bitsandbytes.

    Args:
        scheme: one of `SCHEMES`.
        dtype: what is computed in; None takes that of the scheme.
        skip: names of modules to leave dense beside the heads and the routers.

    Raises:
        ValueError: for an unknown scheme; no config, or that of a quantised checkpoint; where bitsandbytes is not installed; a
            model with images; when a matrix of a layer stayed dense unasked.
    """
    import torch
    from transformers import BitsAndBytesConfig
    from transformers.utils import is_bitsandbytes_available

    from .checkpoint import config_at
    from .checks import refuse_quantized_config

    if scheme not in SCHEMES:
        raise ValueError(f"scheme={scheme!r} is unknown; choose from {list(SCHEMES)}")
    if not is_bitsandbytes_available():
        raise ValueError(f"scheme={scheme!r} needs bitsandbytes: pip install hf-variants[quantize]")
    arguments, usual = SCHEMES[scheme]
    dtype = dtype or getattr(torch, usual)
    if arguments.get("load_in_4bit"):
        arguments = {**arguments, "bnb_4bit_compute_dtype": dtype}
    config = config_at(path)
    refuse_quantized_config(config)
    auto = _auto_class(config)
    # given names replace bitsandbytes' own list, which holds the head
    given = [*_outside_of_layers(auto, config), "mlp.shared_expert_gate", *skip]
    settings = BitsAndBytesConfig(**arguments, llm_int8_skip_modules=given)
    model = auto.from_pretrained(path, quantization_config=settings, dtype=dtype, **load_kwargs)
    counts = quantized_counts(model)
    left = [name for name in counts["dense"] if not any(part in name for part in (*_NEVER, *skip))]
    if left or not counts["modules"]:
        raise ValueError(
            f"bitsandbytes left {len(left)} matrices of the layers dense: {left[:6]}; name them in skip to allow it, or "
            "convert the checkpoint to the family first"
        )
    if arguments.get("load_in_4bit"):
        _check_cpu_kernel(model, dtype)
    return model


def _auto_class(config):
    """The Auto class of the class that a config names. Raises ValueError for models with images."""
    import transformers

    if hasattr(config, "vision_config") or hasattr(config, "image_size"):
        raise ValueError(
            f"model_type={config.model_type!r}: what image encoders hold is not counted yet, so they are not packed; choose a "
            "language model, an encoder or an encoder-decoder"
        )
    classes = {entry.split(".")[-1]: auto for auto, entry in (getattr(config, "auto_map", None) or {}).items()}
    named = next((classes[name] for name in config.architectures or [] if name in classes), "AutoModelForCausalLM")
    return getattr(transformers, named)


def _outside_of_layers(auto, config):
    """Names of the Linears outside of the layers: heads, poolers, projections of the embedding."""
    import torch

    from hf_variants.convert.skeletons import skeleton

    model = skeleton(auto._model_mapping[type(config)], config, torch.float32)
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return ["lm_head", *(name for name in linears if ".layers." not in f".{name}")]


def _stacks(model):
    """{path under the base model: list of layers} of each stack."""
    base = model.base_model
    if hasattr(base, "layers"):
        return {"layers": base.layers}
    return {f"{name}.layers": part.layers for name, part in base.named_children() if hasattr(part, "layers")}


def _check_cpu_kernel(model, dtype):
    """Raise ValueError for widths at which bitsandbytes' bfloat16 product on a CPU fails in its first forward."""
    import bitsandbytes
    import torch

    if model.device.type != "cpu" or dtype != torch.bfloat16:
        return
    kind = bitsandbytes.nn.Linear4bit
    packed = {n: m for n, m in model.named_modules() if isinstance(m, kind)}
    odd = [n for n, m in packed.items() if m.in_features % _CPU_IN or m.out_features % _CPU_OUT]
    if odd:
        raise ValueError(
            f"bitsandbytes' bfloat16 kernel on a CPU needs input widths that are multiples of {_CPU_IN} and output widths "
            f"that are multiples of {_CPU_OUT}, which those of {odd[:6]} are not; pass dtype=torch.float32, or use skip"
        )


def quantized_counts(model):
    """What is packed: {"modules": count, "parameters": weights they stand for, "dense": names of matrices of layers that are
    not}."""
    modules = parameters = 0
    dense = []
    packed = packed_kinds()
    for path, module in [(f"{top}.{name}", m) for top, layers in _stacks(model).items() for name, m in layers.named_modules()]:
        if isinstance(module, packed):
            modules += 1
            parameters += module.in_features * module.out_features
            continue
        own = module.named_parameters(recurse=False)
        kept = [part for part, p in own if p.dim() > 1 or isinstance(module, nn.Linear) and part == "weight"]
        dense += [path if part == "weight" else f"{path}.{part}" for part in kept]
    return {"modules": modules, "parameters": parameters, "dense": dense}


def packed_kinds():
    """Classes of quantized Linears: this package's, and those of bitsandbytes where it is installed."""
    from transformers.utils import is_bitsandbytes_available

    from ..modeling.packed_linear import PackedLinear

    if not is_bitsandbytes_available():
        return (PackedLinear,)
    import bitsandbytes

    return (PackedLinear, bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
