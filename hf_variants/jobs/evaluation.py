"""`hf-variants evaluate`: perplexity, bits per byte and perplexity by position of a checkpoint."""

from pathlib import Path

from ..training.bounds import check_numbers
from ..training.documents import documents_of
from ..training.models import check_device, open_checkpoint
from ..training.processes import print_once, refuse_several_processes


def evaluate(spec, announce=print_once):
    """Measure a checkpoint (`EvaluateSpec`).

    Returns:
        dict: perplexity, loss, bits_per_byte, tokens, num_bytes, window, stride, by_position, model_path.
    """
    from ..evaluation.perplexity import corpus_perplexity, position_edges

    check_evaluation(spec)
    texts = documents_of(spec.data, spec.part)
    model, tokenizer = open_checkpoint(spec.model_path, spec.dtype, spec.device)
    measured = corpus_perplexity(
        model, tokenizer, texts, spec.window, spec.stride, batch_size=spec.batch_size, max_tokens=spec.max_tokens
    )
    result = {
        "model_path": str(spec.model_path),
        **measured.to_dict(),
        "by_position": measured.by_position(position_edges(measured.window, spec.position_buckets)),
    }
    announce(
        f"{spec.model_path}: perplexity {measured.perplexity:.3f}, {_bits(measured)} on {measured.tokens:,} tokens "
        f"in windows of {measured.window}"
    )
    if spec.output is not None:
        _write(spec.output, result)
    return result


def check_evaluation(spec):
    """Refuse what no checkpoint could be measured with, before anything is read. Raises ValueError."""
    check_numbers(spec)
    refuse_several_processes("evaluate")
    check_device(spec.device)
    if spec.window is not None and spec.stride is not None and spec.stride >= spec.window:
        raise ValueError(f"stride={spec.stride} must lie in [1, {spec.window - 1}]: windows of {spec.window} share a token")


def _bits(measured):
    return "no bytes" if measured.bits_per_byte is None else f"{measured.bits_per_byte:.4f} bits per byte"


def _write(path, result):
    from ..training.stages import write_json

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
