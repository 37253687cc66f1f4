"""`hf-variants quality-of-quantization`: text to token ids, and the errors of a quantized checkpoint on them."""


def measure_quality(source, quantized, calibration=None, window=None, max_tokens=None, progress=None):
    """`quantize.quality.quantization_quality` on text.

    Args:
        source, quantized, progress: as there.
        calibration: text, JSON lines or parquet, as a recipe's `data.source`; None gives plain errors alone.
        window, max_tokens: tokens per row and in all of the text; None: 512 and 8192.

    Raises:
        ValueError: as there, for text that does not fill one row, for a `max_tokens` that is no row, and for either number
            without a text.
    """
    from ..quantize.quality import quantization_quality

    if calibration is None:
        for name, value in (("window", window), ("max_tokens", max_tokens)):
            if value is not None:
                raise ValueError(f"{name}={value} is of the text, and calibration=None has none; give a text or leave it out")
        return quantization_quality(source, quantized, progress=progress)
    window = 512 if window is None else window
    max_tokens = max(8192, window) if max_tokens is None else max_tokens
    if window < 1 or max_tokens < window:
        raise ValueError(f"max_tokens={max_tokens} must hold a row of window={window} tokens, at least 1; give more or less")
    from ..training.tokenizer import load_tokenizer
    from .quantization import calibration_ids
    from .texts import documents

    texts = documents(calibration, "--calibration")
    ids = calibration_ids(texts, load_tokenizer(source), max_tokens // window, window)
    return quantization_quality(source, quantized, ids, length=window, progress=progress)
