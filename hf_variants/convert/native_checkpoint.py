"""Loading a native checkpoint so that nothing is silently random: transformers only warns about missing tensors."""

import copy
import re
from pathlib import Path

import torch
from transformers.utils import logging

from hf_variants.convert.checkpoint_config import checked_keys, folder_keys, load_config, one_line, refuse_quantized
from hf_variants.convert.config_conversion import config_from_native
from hf_variants.convert.heads import OUR_TYPES, auto_class, head_of_config, native_class
from hf_variants.convert.misfits import hint, named_class
from hf_variants.convert.native_layout import harmless_names
from hf_variants.convert.registry import find_family
from hf_variants.convert.skeletons import skeleton
from hf_variants.convert.vision_conversion import OURS as OUR_VISION
from hf_variants.convert.vision_conversion import is_vision_type, vision_family
from hf_variants.convert.weight_files import FolderTensors
from hf_variants.modeling.variants_base import refuse_damaged

# What no weights are stored in but those of a quantized model.
_CODES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2)
# Arguments that both the config and the weights are fetched with.
_WHERE = ("revision", "token", "cache_dir", "subfolder", "local_files_only", "force_download", "proxies")


def load_native(path, dtype=None, gguf_file=None, head=None, **load_kwargs):
    """A native model from a directory or hub id, every tensor accounted for; `head` as in `from_native`.

    Raises:
        ValueError: unknown family (naming the nearest), or tensors that are missing, mis-shaped or left over.
    """
    from hf_variants.convert.gguf_files import refuse_bare_file

    refuse_bare_file(path)
    if gguf_file is not None:
        return _load_gguf(path, gguf_file, dtype, head, load_kwargs)
    where = {key: load_kwargs[key] for key in _WHERE if key in load_kwargs}
    config = _native_config(path, where)
    if "quantization_config" not in load_kwargs:
        refuse_quantized(config, path)
    if is_vision_type(config.model_type):
        found, head = vision_family(config.model_type), _only_head(head)
    else:
        found = known_family(config, path)
        head = head_of_config(config, found, head)
    _refuse_toggles(config, load_kwargs)
    folder = _folder_of(path, where)
    if folder is not None and load_kwargs.get("use_safetensors", True) and "variant" not in load_kwargs:
        _refuse_unreadable(folder, config)
    # Mis-shaped tensors are let through to be refused here by name: the library's own error names none. The backend is that of
    # a model that only lends its weights.
    keywords = {"dtype": "auto" if dtype is None else dtype, "ignore_mismatched_sizes": True, "use_safetensors": True}
    keywords = {**keywords, "attn_implementation": "eager", **load_kwargs}
    try:
        model, info = auto_class(head, config).from_pretrained(path, output_loading_info=True, **keywords)
    except Exception as error:
        refuse_damaged(path, error)
        _refuse_unbuildable(config, native_class(config, head), path)
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if isinstance(error, TypeError) and unknown and unknown[1] in load_kwargs:
            raise ValueError(
                f"{unknown[1]!r} is neither an argument of from_pretrained nor a key of {type(config).__name__}"
            ) from error
        if isinstance(error, OSError):
            raise ValueError(f"no weights as safetensors could be loaded from {str(path)!r}: {one_line(error)}") from error
        raise
    _refuse_incomplete(path, model, info, found)
    return model


def _native_config(path, where):
    """The config of a native model that converts."""
    from transformers import PreTrainedConfig

    folder = _folder_of(path, where)
    if folder is not None:
        keys = folder_keys(folder)
    else:
        try:
            keys = PreTrainedConfig.get_config_dict(path, **where)[0]
        except Exception as error:
            raise ValueError(
                f"no config found at {str(path)!r}: give a folder with a config.json, or the id of a repository "
                f"({one_line(error)})"
            ) from error
        checked_keys(keys, f"the config of {str(path)!r}")
    if not is_vision_type(keys["model_type"]):
        known_type(keys["model_type"], path)
    return load_config(path, **where)


def _folder_of(path, where):
    """The folder that `path` is, None for a Hub id."""
    folder = Path(path) / (where.get("subfolder") or "")
    return folder if folder.is_dir() else None


def _refuse_unbuildable(config, cls, path):
    try:
        skeleton(cls, copy.deepcopy(config), torch.float32, attn_implementation="eager")
    except Exception as error:
        raise unbuildable(config, cls, path, error) from error


def unbuildable(config, cls, where, error):
    """The ValueError for a config of the checkpoint `where` that transformers reads, but cannot build `cls` from."""
    if config.model_type not in OUR_TYPES and not is_vision_type(config.model_type):
        config_from_native(config)  # names the key and its choices, where it is one that the family knows
    text = f"{type(error).__name__}: {one_line(error)}"
    return ValueError(f"the config of {where} is none that {cls.__name__} can be built from ({text})")


def _refuse_unreadable(folder, config):
    """Raise ValueError for weight files that lack, are damaged, or hold codes of which the config says nothing."""
    meta = FolderTensors(folder).meta
    harmless = harmless_names(meta, depth_of(config))
    codes = {name: tensor.dtype for name, tensor in meta.items() if tensor.dtype in _CODES and name not in harmless}
    if codes and getattr(config, "quantization_config", None) is None:
        kinds = sorted({str(dtype).removeprefix("torch.") for dtype in codes.values()})
        raise ValueError(
            f"{folder} holds {len(codes)} weights stored as {', '.join(kinds)}: {sorted(codes)[:8]}; those are codes of a "
            "quantized model, but its config has no quantization_config that says what they mean: convert the unquantized one"
        )


def _load_gguf(path, name, dtype, head, load_kwargs):
    """The native model in a GGUF file, each tensor unpacked by itself."""
    import torch
    from transformers.utils import cached_file

    from hf_variants.convert.model_conversion import build_model
    from hf_variants.convert.sides import gguf_side

    others = sorted(load_kwargs.keys() - set(_WHERE))
    if others:
        raise ValueError(f"{others} cannot be given with gguf_file, whose weights are unpacked on the CPU; leave them out")
    if isinstance(dtype, str) and dtype != "auto":
        if not isinstance(found := getattr(torch, dtype, None), torch.dtype):
            raise ValueError(f"dtype={dtype!r} is unknown; choose from float32, bfloat16, float16, float64")
        dtype = found
    folder = Path(path)
    if folder.is_dir():
        folder /= load_kwargs.get("subfolder") or ""
    else:
        try:
            folder = Path(cached_file(str(path), name, **load_kwargs)).parents[len(Path(name).parts) - 1]
        except OSError as error:
            raise ValueError(f"{str(path)!r} is no folder, and no repository with {name} could be fetched: {error}") from error
    side = gguf_side(folder, name, None if dtype == "auto" else dtype, head)
    return build_model(side.cls, side.config, dict(side.weights), None)


def _only_head(head):
    if head not in (None, "image_text_to_text"):
        raise ValueError(f"head={head!r} is no head of a vision-language model; leave it out, or say 'image_text_to_text'")
    return "image_text_to_text"


def known_family(config, what):
    """The family of a native config. Raises ValueError when it is not native, or not known."""
    return known_type(config.model_type, what)


def known_type(model_type, what):
    """The family of a native model type; as `known_family`.

    Raises:
        ValueError: for a variants type, which needs no conversion, and as `known_family`.
    """
    if model_type in OUR_TYPES:
        raise ValueError(f"{what} is a variants model already; load it with AutoModelForCausalLM.from_pretrained")
    if model_type == OUR_VISION:
        raise ValueError(f"{what} is a variants model already; load it with AutoModelForImageTextToText.from_pretrained")
    return find_family(model_type)


def _refuse_toggles(config, load_kwargs):
    """The library would hand a key that the native config lacks to the model, which fails without saying why."""
    from hf_variants.modeling.configuration_variants import VariantsConfig

    for key in load_kwargs:
        if key in VariantsConfig.__annotations__ and not hasattr(config, key):
            raise ValueError(
                f"{key}={load_kwargs[key]!r} is a toggle of this family, which {config.model_type} does not have: convert, "
                f"save the result, and load it with AutoModelForCausalLM.from_pretrained(folder, {key}=...)"
            )


def depth_of(config):
    """Layers of the stack, or of the longer of two, behind which files may hold layers that nothing builds."""
    stacks = [
        part for part in (getattr(config, "encoder", None), getattr(config, "decoder", None)) if hasattr(part, "to_dict")
    ]
    if stacks:
        return max(stack.num_hidden_layers for stack in stacks)
    keys = ("num_hidden_layers", "decoder_layers", "num_decoder_layers")
    return max(getattr(config, key, None) or 0 for key in keys)


def _refuse_incomplete(path, model, info, found):
    problems = []
    for label in ("missing_keys", "mismatched_keys"):
        if info.get(label):
            problems.append(f"{label.replace('_keys', '')}: {sorted(map(str, info[label]))[:8]}")
    extra = set(info.get("unexpected_keys") or ())
    extra -= harmless_names(extra, depth_of(model.config))
    of_others = [name for name in extra if found.is_of_a_head(name)]
    if of_others:
        logging.get_logger(__name__).warning(
            f"{path} also holds {sorted(of_others)[:8]}, parts of other heads than {type(model).__name__}: they are left out. "
            "Name another head with head= to convert it"
        )
    extra = [name for name in extra if name not in of_others]
    if extra:
        problems.append(f"left over: {sorted(extra)[:8]}{hint(extra, model.config, type(model))}")
    elif info.get("missing_keys"):
        problems[0] += named_class(model.config, type(model))
    if problems:
        raise ValueError(f"the checkpoint {path} does not fit {type(model).__name__}: {'; '.join(problems)}")
