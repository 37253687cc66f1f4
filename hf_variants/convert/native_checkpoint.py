"""Loading a native checkpoint so that nothing is silently random: transformers only warns about missing tensors."""

from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers.utils import logging

from hf_variants.convert.heads import OUR_TYPES, auto_class, head_of_config
from hf_variants.convert.native_layout import harmless_names
from hf_variants.convert.registry import find_family
from hf_variants.convert.vision_conversion import is_vision_type, vision_family
from hf_variants.modeling.variants_base import refuse_damaged

# Arguments that both the config and the weights are fetched with.
_WHERE = ("revision", "token", "cache_dir", "subfolder", "local_files_only", "force_download", "proxies")


def load_native(path, dtype=None, gguf_file=None, head=None, **load_kwargs):
    """A native model from a directory or hub id, every tensor accounted for; `head` as in `from_native`.

    Raises:
        ValueError: unknown family (naming the nearest), or tensors that are missing, mis-shaped or left over.
    """
    from transformers import AutoConfig, PreTrainedConfig

    from hf_variants.convert.gguf_files import refuse_bare_file

    refuse_bare_file(path)
    if gguf_file is not None:
        return _load_gguf(path, gguf_file, dtype, head, load_kwargs)
    where = {key: load_kwargs[key] for key in _WHERE if key in load_kwargs}
    try:
        config = AutoConfig.from_pretrained(path, **where)
    except OSError as error:
        raise ValueError(
            f"no config found at {str(path)!r}: give a folder with a config.json, or the id of a repository"
        ) from error
    except StrictDataclassError as error:
        raise ValueError(f"the config of {str(path)!r} cannot be read: {error}") from error
    except ValueError:
        # a type that transformers does not know either: its own text names no type that is near
        find_family(PreTrainedConfig.get_config_dict(path, **where)[0].get("model_type"))
        raise
    if is_vision_type(config.model_type):
        found, head = vision_family(config.model_type), _only_head(head)
    else:
        found = known_family(config, path)
        head = head_of_config(config, found, head)
    _refuse_toggles(config, load_kwargs)
    # Mis-shaped tensors are let through to be refused here by name: the library's own error names none.
    keywords = {"dtype": "auto" if dtype is None else dtype, "ignore_mismatched_sizes": True, **load_kwargs}
    try:
        model, info = auto_class(head, config).from_pretrained(path, output_loading_info=True, **keywords)
    except KeyError as error:
        raise ValueError(f"the config of {str(path)!r} says {error}, which transformers does not know") from error
    except Exception as error:
        refuse_damaged(path, error)
        raise
    _refuse_incomplete(path, model, info, found)
    return model


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
    if config.model_type in OUR_TYPES:
        raise ValueError(f"{what} is a variants model already; load it with AutoModelForCausalLM.from_pretrained")
    return find_family(config.model_type)


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
        problems.append(f"left over: {sorted(extra)[:8]}")
    if problems:
        raise ValueError(f"the checkpoint {path} does not fit {type(model).__name__}: {'; '.join(problems)}")
