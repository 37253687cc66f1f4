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

    from ..convert.native_checkpoint import known_family

    source = {} if spec.gguf_file is None else {"gguf_file": spec.gguf_file}
    try:
        config = AutoConfig.from_pretrained(spec.model_path, **source)
    except (OSError, ValueError, KeyError) as error:
        raise no_model(spec.model_path, error) from None
    if config.model_type != "variants":
        known_family(config, f"model_path={spec.model_path!r}")
    if getattr(config, "quantization_config", None) is not None and spec.gguf_file is None:
        raise ValueError(
            f"model_path={spec.model_path!r} holds quantized weights; give the checkpoint it was quantized from (method=qlora "
            "quantizes that one while loading)"
        )
    return config


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
    native = config.model_type != "variants"
    if not native and not spec.toggles:
        return spec.model_path
    folder = Path(spec.output_dir) / "base"
    if not (folder / "config.json").is_file():
        partial = folder.with_name("base.partial")
        shutil.rmtree(partial, ignore_errors=True)
        _write(spec, native, partial, announce)
        partial.rename(folder)
    return str(folder)


def _write(spec, native, folder, announce):
    import torch
    from transformers import set_seed

    from .tokenizers import open_tokenizer

    dtype, source = getattr(torch, spec.dtype), spec.model_path
    if native:
        from ..convert import from_native

        announce(f"base: converting {spec.model_path}")
        model = from_native(spec.model_path, dtype=dtype, gguf_file=spec.gguf_file)
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
