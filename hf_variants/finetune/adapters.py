"""Adapters: which peft config a method means, and the model it is put on.

Notable here: plain LoRA adapts fused experts where they are; DoRA, dropout and 4-bit weights need Linears, so experts are
taken apart for them.
"""

from .expert_layout import split_experts
from .specs import ADAPTERS

# task -> peft's name of it, where that is not causal language modeling
_TASK_TYPES = {"classification": "SEQ_CLS", "seq2seq": "SEQ_2_SEQ_LM"}


def adapter_config(spec):
    """peft's LoraConfig of a spec with `method`, `adapter` and `task`, or None for method="full"."""
    if spec.method not in ADAPTERS:
        return None
    from peft import LoraConfig

    adapter = spec.adapter
    return LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=adapter.target_modules,
        use_rslora=adapter.rslora,
        use_dora=spec.method == "dora",
        task_type=_TASK_TYPES.get(spec.task, "CAUSAL_LM"),
    )


def quantization(spec):
    """Keywords of from_pretrained for the base of a QLoRA run (nf4 with double quantization), else none.

    Raises:
        ValueError: where bitsandbytes is not installed.
    """
    if spec.method != "qlora":
        return {}
    import torch
    from transformers import BitsAndBytesConfig

    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise ValueError("method='qlora' needs bitsandbytes: pip install 'hf-variants[quantize]'") from None
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, spec.dtype),
        llm_int8_skip_modules=["score"] if spec.task == "classification" else None,
    )
    return {"quantization_config": config}


def keep_differentiable(model):
    """Keep bitsandbytes from repacking 4-bit weights in an evaluation on a CPU (seen in 0.50): its kernel for the packed form
    has no gradient, so every step after the first evaluation would train on a broken graph without a word.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def make_reachable(model, spec):
    """Take the experts of a float model apart where the method could not adapt them fused; returns whether it was done."""
    needed = spec.method == "dora" or (spec.method == "lora" and spec.adapter.dropout > 0)
    return bool(needed and split_experts(model))


def trainable_share(model):
    """(trainable parameters, all parameters) of a model; 4-bit weights count as the numbers that they stand for."""
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = model.num_parameters() if not hasattr(model, "get_base_model") else None
    if total is None:
        _, total = model.get_nb_trainable_parameters()
    return trainable, total
