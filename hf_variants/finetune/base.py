"""The checkpoint that a run starts from: of the family as it is; native or toggled, written once as output_dir/base.

Notable here: an adapter is worth nothing without its base, so a base that exists nowhere else is kept beside it.
"""

import hashlib
import shutil
from pathlib import Path

from ..training.models import load_model, no_model
from ..training.processes import print_once
from ..training.stages import stage_fingerprint


def check_base(spec):
    """The config of `model_path`, of the family or native. Raises ValueError where it holds no model or an unknown one."""
    from transformers import AutoConfig

    import hf_variants  # noqa: F401 - registers the family with the Auto classes

    source = {} if spec.gguf_file is None else {"gguf_file": spec.gguf_file}
    try:
        config = AutoConfig.from_pretrained(spec.model_path, **source)
    except (OSError, ValueError, KeyError) as error:
        raise no_model(spec.model_path, error) from None
    check_source(config, spec.model_path, quantized=spec.gguf_file is not None)
    return config


def is_native(config):
    """Whether a config is of a native family, and not of this one."""
    from ..convert.heads import OUR_TYPES

    return config.model_type not in OUR_TYPES


def check_source(config, path, quantized=False):
    """Raise a ValueError for a config of a native type that does not convert, or of quantized weights, unless `quantized`."""
    from ..convert.native_checkpoint import known_family

    if is_native(config):
        known_family(config, f"model_path={path!r}")
    if getattr(config, "quantization_config", None) is not None and not quantized:
        raise ValueError(
            f"model_path={path!r} holds quantized weights; give the checkpoint it was quantized from (method=qlora "
            "quantizes that one while loading)"
        )


def base_fingerprint(spec):
    """What tells one base from another: the stage that made it, else its config and samples of its weights."""
    made = stage_fingerprint(spec.model_path)
    folder = Path(spec.model_path)
    if made or not folder.is_dir():
        return made
    weights = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.gguf"))
    config = folder / "config.json"
    text = config.read_text(encoding="utf-8") if config.is_file() else None
    return {"config": text, "weights": {file.name: sampled_digest(file) for file in weights}}


def sampled_digest(file, slices=32, length=1 << 16):
    """Hex digest of a file's size and of slices spread evenly over it: weights that were trained again differ in nearly every
    byte, so that a file of many gigabytes need not be read whole.
    """
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for index in range(slices):
            stream.seek(max(0, size - length) * index // max(1, slices - 1))
            digest.update(stream.read(length))
    return digest.hexdigest()[:16]


def prepare_base(spec, config, announce=print_once):
    """Path (str) of a checkpoint of the family that the run can load as it is.

    Raises:
        ValueError: for a native checkpoint that does not convert, or toggles that the config refuses.
    """
    native = is_native(config)
    if not native and not spec.toggles:
        return spec.model_path
    return written_once(spec, lambda partial: _write(spec, native, partial, announce))


def written_once(spec, write):
    """Path (str) of output_dir/base, which `write` fills where it is not yet there: under another name, until it is whole."""
    folder = Path(spec.output_dir) / "base"
    if not (folder / "config.json").is_file():
        partial = folder.with_name("base.partial")
        shutil.rmtree(partial, ignore_errors=True)
        write(partial)
        partial.rename(folder)
    return str(folder)


def converted(spec, announce, **source):
    """The native model in `model_path`, converted, in the dtype of the spec; `source` as `from_native` takes it."""
    import torch

    from ..convert import from_native

    announce(f"base: converting {spec.model_path}")
    return from_native(spec.model_path, dtype=getattr(torch, spec.dtype), **source)


def _write(spec, native, folder, announce):
    import torch
    from transformers import set_seed

    from .tokenizers import open_tokenizer

    dtype, source = getattr(torch, spec.dtype), spec.model_path
    if native:
        model = converted(spec, announce, gguf_file=spec.gguf_file)
        if spec.toggles:
            source = folder.with_name("native.partial")
            model.save_pretrained(source)
    if spec.toggles:
        set_seed(spec.seed)
        model, report = load_model(source, dtype=dtype, output_loading_info=True, **spec.toggles)
        for name, keys in (("fresh", report["missing_keys"]), ("left out", report["unexpected_keys"])):
            if keys:
                announce(
                    f"base: {len(keys)} weights are {name} under toggles={spec.toggles}: {', '.join(sorted(keys)[:4])} ..."
                )
        if native:
            shutil.rmtree(source)
    model.save_pretrained(folder)
    open_tokenizer(spec, spec.model_path).save_pretrained(folder)
