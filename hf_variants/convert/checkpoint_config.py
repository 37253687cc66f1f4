"""The `config.json` of a checkpoint, read so that what is wrong in it is named: the file, the key, its value and the choices.

Notable here: what transformers would answer with an AttributeError, a KeyError or a text of several lines is one ValueError of
one line. `parsed` alone imports neither torch nor transformers.
"""

import json
from pathlib import Path

# A checkpoint's main dtype, by the name that config.json has for it.
_DTYPES = ("float32", "bfloat16", "float16", "float64")
ADAPTER = "adapter_config.json"


def one_line(error):
    """The text of an error on one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def parsed(file):
    """The dict in a JSON file. Raises ValueError where it holds none."""
    try:
        keys = json.loads(Path(file).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is not valid JSON: {one_line(error)}") from None
    if not isinstance(keys, dict):
        raise ValueError(f"{str(file)!r} holds a {type(keys).__name__}; it must hold config keys")
    return keys


def folder_keys(folder):
    """The keys of a folder's config.json. Raises ValueError where it is missing or no config of a whole model."""
    folder = Path(folder)
    refuse_adapter(folder)
    file = folder / "config.json"
    if not file.is_file():
        found = sorted(path.name for path in folder.glob("*.gguf"))
        told = f"; of its GGUF files {found}, name one by gguf_file (--gguf-file)" if found else ""
        raise ValueError(f"no config.json in {folder}: it holds no checkpoint{told}")
    return checked_keys(parsed(file), str(file))


def checked_keys(keys, where):
    """`keys` of a config. Raises ValueError where the keys that are read before any class is known are none."""
    kind = keys.get("model_type")
    if not kind:
        raise ValueError(f"{where} names no model_type")
    if not isinstance(kind, str):
        raise ValueError(f"{where}: model_type={kind!r} must be one word")
    packed = keys.get("quantization_config")
    if packed is not None and not isinstance(packed, dict):
        raise ValueError(f"{where}: quantization_config={packed!r} must be a dict of keys")
    name = "dtype" if keys.get("dtype") is not None else "torch_dtype"
    dtype = keys.get(name)
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"{where}: {name}={dtype!r} is no dtype of weights; choose from {list(_DTYPES)}, or remove the key")
    return keys


def load_config(source, **where):
    """The config object of a folder or repository whose keys were checked. Raises ValueError, whatever transformers raises."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, **{"trust_remote_code": False, **where})
    except Exception as error:
        raise ValueError(f"the config of {str(source)!r} cannot be read: {one_line(error)}") from error


def known_dtype(given):
    """The torch dtype that an argument means, None for None. Raises ValueError for what weights are not stored in."""
    import torch

    found = given if isinstance(given, torch.dtype) else getattr(torch, str(given).removeprefix("torch."), None)
    if given is not None and (not isinstance(found, torch.dtype) or not found.is_floating_point or found.itemsize < 2):
        raise ValueError(f"dtype={given!r} is unknown; choose from float32, bfloat16, float16, float64")
    return None if given is None else found


def refuse_quantized(config, what):
    """Raise ValueError for a config whose weights are quantized."""
    found = getattr(config, "quantization_config", None)
    if found is not None:
        found = found if isinstance(found, dict) else found.to_dict()
        raise ValueError(
            f"{what} holds quantized weights (quant_method={str(found.get('quant_method'))!r}), which no rule can rearrange: "
            "convert the unquantized model, or ask for dequantize, which unpacks what the codes say"
        )


def refuse_adapter(folder):
    """Raise ValueError for a folder with an adapter, which transformers would load on top of whatever else lies there."""
    if not (Path(folder) / ADAPTER).is_file():
        return
    whole = (Path(folder) / "config.json").is_file()
    beside = f", or move {ADAPTER} and its weights away to convert the model beside it as it is" if whole else ""
    raise ValueError(
        f"{folder} holds an adapter ({ADAPTER}): load it on its base model, call merge_and_unload(), save the result and "
        f"convert that{beside}"
    )
