"""`hf-variants quality-of-quantization`: text to token ids, and the errors of a quantized checkpoint on them."""


def measure_quality(source, quantized, calibration=None, window=512, max_tokens=8192, progress=None):
    """`quantize.quality.quantization_quality` on text.

    Args:
        source, quantized, progress: as there.
        calibration: text, JSON lines or parquet, as a recipe's `data.source`; None gives plain errors alone.
        window, max_tokens: tokens per row and in all.

    Raises:
        ValueError: as there, and for text that does not fill one row.
    """
    from ..quantize.quality import quantization_quality

    if calibration is None:
        return quantization_quality(source, quantized, progress=progress)
    from ..training.documents import read_documents
    from ..training.specs import DataSpec
    from ..training.tokenizer import load_tokenizer
    from .quantization import calibration_ids

    texts = list(read_documents(DataSpec(source=calibration)))
    ids = calibration_ids(texts, load_tokenizer(source), max(1, max_tokens // window), window)
    return quantization_quality(source, quantized, ids, length=window, progress=progress)
