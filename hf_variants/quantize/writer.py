"""Writing a quantised model so that the folder is either complete and verified, or absent.

Notable here: everything is written into a hidden folder beside the target, read back with plain `from_pretrained`,
compared with the model in memory, and renamed at the very end.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import torch

from ..modeling.awq_loading import register_awq
from ..modeling.int8_loading import register_int8
from .memory import give_back

REPORT_NAME = "quantization_report.json"
# What float32 arithmetic in another order may differ by, relative to the largest logit.
_TOLERANCE = 1e-4


def save_quantized(result, directory, *, tokenizer=None, overwrite=False, facts=None, max_shard_size="5GB"):
    """Write a `QuantizedModel` as a checkpoint that `from_pretrained` reads, with `quantization_report.json` beside it.

    Args:
        result: QuantizedModel; its model is cast to its storage dtypes, in place.
        directory: folder to write; appears only when everything in it is complete.
        tokenizer: written along when given.
        overwrite: whether a folder that is there is replaced (when the new one is complete).
        facts: more to say in the report.

    Returns:
        dict, the report as written: that of the result, with "bytes" (size of the weights) and "max_logit_difference" (of the
        reloaded model against the result while its quantised weights were dense matrices).

    Raises:
        ValueError: when `directory` is in the way.
        RuntimeError: when the reloaded model differs; nothing is left behind then.
    """
    directory = Path(directory)
    check_target(directory, overwrite)
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.partial-", dir=directory.parent))
    try:
        model = result.to_storage()
        model.config.quantization_config = dict(result.quantization_config)
        model.config.dtype = result.main_dtype
        model.save_pretrained(partial, max_shard_size=max_shard_size)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        give_back()
        report = {
            **result.report.to_dict(),
            **(facts or {}),
            "bytes": weight_bytes(partial),
            "max_logit_difference": verify_checkpoint(partial, type(model), result.probe, result.probe_outputs),
        }
        write_report(partial, report)
        if hasattr(model, "complete_folder"):
            # the card tells what the report measured
            model.complete_folder(partial)
        partial.chmod(0o755)
        _move_into_place(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def check_target(directory, overwrite):
    """Raise ValueError when `directory` cannot become the new folder."""
    directory = Path(directory)
    refuse_inside_a_file(directory)
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"output {str(directory)!r} is a file; name a folder")
    if directory.is_dir() and any(directory.iterdir()) and not overwrite:
        raise ValueError(f"output folder {str(directory)!r} is not empty; name another one or pass overwrite=True")


def refuse_inside_a_file(directory):
    """Raise ValueError where a folder cannot be made because a file stands where another one should."""
    if in_the_way := [str(parent) for parent in Path(directory).parents if parent.is_file()]:
        raise ValueError(f"output {str(directory)!r} would lie in {in_the_way[0]!r}, which is a file; name another folder")


def refuse_source_as_target(source, directory):
    """Raise ValueError where replacing the folder `directory` would remove the checkpoint in the folder `source`."""
    source, target = Path(source).resolve(), Path(directory).resolve()
    if source.is_dir() and target in (source, *source.parents):
        raise ValueError(
            f"output {str(directory)!r} is the source {str(source)!r} or holds it, and would replace the full precision by "
            "the quantised weights; name another folder"
        )


def verify_checkpoint(directory, model_class, batch, expected):
    """Reload in float32; raise RuntimeError for missing or unexpected keys or other outputs. Returns max |difference|."""
    register_awq()
    register_int8()
    model, info = model_class.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    wrong = {key: sorted(map(str, names)) for key, names in info.items() if names}
    if wrong:
        raise RuntimeError(f"the written checkpoint does not load cleanly: {wrong}")
    with torch.no_grad():
        difference = float((_outputs(model, batch) - expected.to(model.device)).abs().max())
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise RuntimeError(f"the reloaded checkpoint differs from the quantised model: max |difference| = {difference}")
    return difference


def weight_bytes(directory):
    """Bytes of all safetensors files of a folder."""
    return sum(file.stat().st_size for file in Path(directory).glob("*.safetensors"))


def write_report(directory, report):
    """Write `quantization_report.json`, whole or not at all."""
    target = Path(directory) / REPORT_NAME
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=2) + "\n")
    os.replace(partial, target)


def _move_into_place(partial, directory):
    retired = None
    if directory.exists():
        retired = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old-", dir=directory.parent))
        os.replace(directory, retired / directory.name)
    os.replace(partial, directory)
    if retired is not None:
        shutil.rmtree(retired)


def _outputs(model, batch):
    out = model(**{key: value.to(model.device) for key, value in batch.items()})
    return (out.logits if hasattr(out, "logits") else out[0]).float()
