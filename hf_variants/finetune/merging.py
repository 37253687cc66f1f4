"""Adapters on disk: loading one on its base as it was trained, and merging it into weights that need no peft.

Notable here: an adapter that was trained on experts taken apart (DoRA, QLoRA) finds them apart again and is fused back after
the merge; a QLoRA adapter is merged into the float base, which its 4-bit weights were rounded from.
"""

import json
import os
import shutil
from pathlib import Path

from ..training.stages import read_json
from .expert_layout import fuse_experts, split_experts

# names of the classes, in the order of the scores
CLASSES_FILE = "classes.json"


def load_adapter(adapter, base=None, dtype="auto"):
    """The float base with an adapter on it, in eval mode (`peft.PeftModel`).

    Args:
        adapter: directory of an adapter, as `hf-variants finetune` writes it.
        base: checkpoint of the family; None takes the one that the adapter names.
        dtype: of the weights: "auto", or a name such as "float32".

    Raises:
        ValueError: where there is no adapter, no base, or their weights do not fit each other.
    """
    import torch
    from peft import PeftModel

    folder = Path(adapter)
    config = read_json(folder / "adapter_config.json")
    if config is None:
        raise ValueError(f"adapter={str(adapter)!r} holds no adapter_config.json")
    dtype = dtype if dtype == "auto" else getattr(torch, dtype)
    model = _load_base(base or config["base_model_name_or_path"], config.get("task_type"), folder, dtype)
    names = adapter_weights(folder)
    if any(".experts.0." in name for name in names):
        split_experts(model)
    adapted = PeftModel.from_pretrained(model, adapter)
    present = {_plain(name) for name in adapted.state_dict()}
    if lost := sorted(name for name in names if _plain(name) not in present):
        raise ValueError(f"{len(lost)} weights of adapter={str(adapter)!r} have no place in its base: {', '.join(lost[:4])}")
    return adapted.eval()


def _plain(name):
    """The name of an adapter's tensor without what peft adds to it in memory or leaves out on disk."""
    return name.replace(".modules_to_save", "").replace(".default", "").removesuffix(".weight")


def merge_adapter(adapter, target, base=None, dtype="auto"):
    """Write the base with the adapter added to its weights to the directory `target`, tokenizer included; returns the model.

    Args as `load_adapter`. Raises ValueError as `load_adapter`.
    """
    from transformers import AutoTokenizer

    target = Path(target)
    model = load_adapter(adapter, base, dtype).merge_and_unload()
    fuse_experts(model)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(adapter).save_pretrained(partial)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(partial, target)
    return model


def adapter_weights(folder):
    """Names of the tensors of an adapter. Raises ValueError where its file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    file = Path(folder) / "adapter_model.safetensors"
    try:
        with safe_open(file, framework="pt") as stream:
            return list(stream.keys())
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _load_base(path, task_type, folder, dtype):
    from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

    from ..training.models import load_model

    if task_type != "SEQ_CLS":
        return load_model(path, AutoModelForSeq2SeqLM if task_type == "SEQ_2_SEQ_LM" else None, dtype=dtype)

    names = read_json(folder / CLASSES_FILE)
    if not names:
        raise ValueError(f"adapter={str(folder)!r} does not say its classes: {CLASSES_FILE} is missing")
    return AutoModelForSequenceClassification.from_pretrained(path, dtype=dtype, **label_keys(names))


def label_keys(names):
    """Config keys of a classifier with these classes."""
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }
