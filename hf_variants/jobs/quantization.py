"""`hf-variants quantize`: a 4-bit checkpoint by AWQ or rounding, calibrated on the training documents."""

from pathlib import Path

from ..training.documents import documents_fingerprint, documents_of
from ..training.processes import print_once
from ..training.stages import STAGE_FILE, run_stage, stage_fingerprint
from ..training.tokenizer import load_tokenizer


def quantize(spec, announce=print_once):
    """Run a `QuantizeSpec`; finished work is not done again.

    Returns:
        dict: method, bits, group_size, bytes (of the weights), source_bytes, quantized_modules, unquantized_modules,
        warnings.
    """
    _check_output(spec)
    texts = documents_of(spec.data, "train") if spec.method == "awq" else []
    return run_stage(
        "quantize",
        spec.output_dir,
        _stage_settings(spec, texts),
        lambda: _quantize(spec, texts, announce),
        overwrite=spec.overwrite,
        announce=announce,
    )


def calibration_ids(texts, tokenizer, rows, length):
    """Up to `rows` rows of `length` ids (int64 [rows, length]), spread evenly over the documents.

    Raises:
        ValueError: when the documents do not fill one row.
    """
    import torch

    from ..training.packing import encode_documents, pack

    packed = [row["input_ids"] for row in pack(encode_documents(texts, tokenizer), length)]
    chosen = [packed[index * len(packed) // rows] for index in range(min(rows, len(packed)))]
    return torch.stack([torch.as_tensor(row, dtype=torch.long) for row in chosen])


def _check_output(spec):
    """Refuse a directory with files that no quantization wrote, since the checkpoint replaces the directory whole."""
    directory = Path(spec.output_dir)
    ours = any((directory / name).is_file() for name in (STAGE_FILE, "quantization_report.json"))
    if not spec.overwrite and directory.is_dir() and any(directory.iterdir()) and not ours:
        raise ValueError(f"output_dir={spec.output_dir!r} is not empty; name another one, or overwrite=true")


def _stage_settings(spec, texts):
    names = ("model_path", "method", "bits", "group_size", "calibration_rows", "calibration_length")
    settings = {name: getattr(spec, name) for name in names}
    length = spec.calibration_length or spec.data.sequence_length
    inputs = {"texts": documents_fingerprint(texts), "model_path_fingerprint": stage_fingerprint(spec.model_path)}
    return {**settings, "calibration_length": length, **inputs}


def _quantize(spec, texts, announce):
    from ..quantize.checkpoint import quantize_checkpoint

    options = {}
    if spec.method == "awq":
        length = spec.calibration_length or spec.data.sequence_length
        ids = calibration_ids(texts, load_tokenizer(spec.model_path), spec.calibration_rows, length)
        announce(f"quantize: awq, calibrated on {len(ids)} rows of {length} tokens")
        options = {"calibration": ids, "calibration_length": length}
    # The stage made the directory to claim it, or a killed run left it; `_check_output` kept foreign ones out.
    report = quantize_checkpoint(
        spec.model_path,
        spec.output_dir,
        method=spec.method,
        bits=spec.bits,
        group_size=spec.group_size,
        overwrite=True,
        progress=lambda done, total, name: announce(f"quantize: {name} ({done} of {total})"),
        **options,
    )
    names = ("method", "bits", "group_size", "quantized_modules", "unquantized_modules", "warnings", "source_bytes")
    return {name: report.get(name) for name in (*names, "bytes")}
