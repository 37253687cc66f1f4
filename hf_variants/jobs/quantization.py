"""`hf-variants quantize`: a checkpoint in 4 bits by AWQ or rounding, or in 8, calibrated on documents or pairs of texts.

Notable here: what is wrong whatever the model is, is said before a text or a weight is read; calibration and evaluation never
share a document.
"""

from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path

from ..seq2seq.specs import PairsSpec
from ..training.bounds import check_numbers
from ..training.documents import documents_fingerprint, documents_of, train_and_eval_documents
from ..training.errors import RunStopped
from ..training.processes import print_once, refuse_several_processes
from ..training.saves import is_write_error
from ..training.specs import DataSpec
from ..training.stages import STAGE_FILE, run_stage, stage_fingerprint
from ..training.tokenizer import load_tokenizer

_SEARCHES = ("clip", "compensate")
_DECIDING = (
    *("model_path", "method", "bits", "group_size", "symmetric", *_SEARCHES, "leave_unquantized", "max_bytes", "to"),
    *("calibration_rows", "calibration_length", "eval_rows"),
)


def quantize(spec, announce=print_once):
    """Run a `QuantizeSpec`; finished work is not done again, and interrupted work continues with the layer it had reached.

    Returns:
        dict: method, bits, group_size, bytes (of the weights), source_bytes, quantized_modules, unquantized_modules,
        perplexity, divergence, starved_experts, warnings.

    Raises:
        ValueError: for a spec that cannot be run, before any work.
    """
    check_quantization(spec)
    pairs = _pairs(spec)
    calibration, held_out = _documents(spec) if pairs is None else (pairs.train, pairs.eval)
    return run_stage(
        "quantize",
        spec.output_dir,
        _stage_settings(spec, calibration, held_out, pairs),
        lambda: _quantize(spec, calibration, held_out, announce),
        overwrite=spec.overwrite,
        announce=announce,
    )


def calibration_ids(texts, tokenizer, rows, length):
    """Up to `rows` rows of `length` ids (int64 [rows, length]), spread evenly over the documents.

    Raises:
        ValueError: when the documents do not fill one row; for rows below 1 or a length below 2.
    """
    import torch

    from ..training.packing import encode_documents, pack

    for name, value, least in (("rows", rows, 1), ("length", length, 2)):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    try:
        packed = [row["input_ids"] for row in pack(encode_documents(texts, tokenizer), length)]
    except ValueError as error:
        raise ValueError(str(error).replace("data.sequence_length=", "length=")) from None
    if not packed:
        raise ValueError(f"the text does not fill one row of length={length} tokens; give more of it, or shorter rows")
    chosen = [packed[index] for index in spread(len(packed), rows)]
    return torch.stack([torch.as_tensor(row, dtype=torch.long) for row in chosen])


def spread(there, wanted):
    """Indices of `wanted` of `there` things, evenly spread; of all of them, each once, where there are no more."""
    count = min(there, wanted)
    return [index * there // count for index in range(count)]


def check_quantization(spec):
    """Refuse what is wrong whatever the checkpoint is, before anything is read. Raises ValueError."""
    from ..quantize.checkpoint import check_arguments

    check_numbers(spec)
    refuse_several_processes("quantize")
    check_arguments(spec.method, spec.bits, spec.group_size, spec.to, spec.method == "awq" or None, (), spec.max_bytes)
    _check_producer(spec)
    if spec.method != "awq" and (given := [name for name, usual in _awq_only(spec).items() if getattr(spec, name) != usual]):
        raise ValueError(f"{' and '.join(given)} mean nothing to method={spec.method!r}; leave them out or use method='awq'")
    _check_texts(spec)
    _check_length(spec)
    _check_output(spec)


def _check_producer(spec):
    from ..quantize.producers import check_producer

    asked = {name: getattr(spec, name) for name in ("method", "group_size", "symmetric", "leave_unquantized", "max_bytes")}
    changed = [name for name in _SEARCHES if not getattr(spec, name)]
    if spec.pairs.source:
        changed.append("pairs")
    check_producer(spec.producer, spec.producer_python, **asked, options=changed)


def rounding_beside(spec, output_dir):
    """The `QuantizeSpec` of rounding to nearest that an AWQ run is compared with."""
    rounding = replace(spec, method="rtn", output_dir=output_dir, **_awq_only(spec))
    return rounding if spec.eval_rows else replace(rounding, calibration_length=None)


def _awq_only(spec):
    """{key that rounding to nearest does not read: its default}."""
    names = ("calibration", "calibration_rows", "producer", "producer_python", *_SEARCHES)
    return {field.name: field.default for field in fields(spec) if field.name in names}


def _check_length(spec):
    """Refuse a length of rows where no row of documents is made."""
    if spec.calibration_length is None:
        return
    if spec.pairs.source:
        raise ValueError(
            f"calibration_length={spec.calibration_length} is the length of rows of documents; pairs have "
            "pairs.max_source_length and pairs.max_target_length"
        )
    if spec.method != "awq" and not spec.eval_rows:
        raise ValueError(
            f"calibration_length={spec.calibration_length} means nothing to method={spec.method!r} without eval_rows; leave "
            "it out"
        )


def _check_texts(spec):
    """Refuse documents for a model that reads and writes, pairs for one that goes on, and AWQ without either."""
    if spec.pairs != PairsSpec() and not spec.pairs.source:
        keys = [name for name, value in asdict(spec.pairs).items() if value != getattr(PairsSpec(), name)]
        raise ValueError(f"pairs has {keys} but no pairs.source, so nothing would read them; give it, or leave them out")
    if _is_pair(spec.model_path):
        if spec.calibration or spec.data != DataSpec():
            raise ValueError(
                f"model_path={spec.model_path!r} is an encoder-decoder, which calibration and data say nothing of; "
                "give pairs.source, a file of pairs of texts"
            )
        if not spec.pairs.source and (spec.method == "awq" or spec.eval_rows):
            raise ValueError(
                f"model_path={spec.model_path!r} is an encoder-decoder: give pairs.source, a file of pairs of texts to "
                "calibrate on and to evaluate"
            )
        return
    if spec.pairs.source and (spec.calibration or spec.data != DataSpec()):
        raise ValueError(
            f"pairs.source={spec.pairs.source!r} beside calibration or data: pairs are for encoder-decoders, documents "
            "for other models; give one of them"
        )
    if spec.pairs.source and Path(spec.model_path).is_dir():
        raise ValueError(
            f"pairs.source={spec.pairs.source!r} is for encoder-decoders, which model_path={spec.model_path!r} is not; give "
            "calibration or data.source"
        )
    if spec.method == "awq" and not (spec.calibration or spec.data.source or spec.data.sources or spec.pairs.source):
        raise ValueError(
            "method='awq' needs text to calibrate on: give calibration=FILE (or a folder or dataset), or data.source"
        )


def _is_pair(path):
    """Whether the checkpoint in the folder `path` is an encoder-decoder; others are judged when they are loaded."""
    from transformers import AutoConfig

    if not Path(path).is_dir():
        return False
    try:
        return bool(AutoConfig.from_pretrained(path).is_encoder_decoder)
    except (OSError, ValueError):
        return False


def _pairs(spec):
    """The pairs of an encoder-decoder (`train`, `eval`, `fingerprint`), or None."""
    from ..finetune.examples import read_examples

    return read_examples(spec.pairs, "seq2seq") if spec.pairs.source else None


def pair_batches(records, tokenizer, config, spec, rows):
    """Up to `rows` pairs, evenly spread over the records, as batches of 8 that an encoder-decoder takes."""
    from ..seq2seq.pairs import PairCollator, decoder_start_of, encode_pairs

    chosen = [records[index] for index in spread(len(records), rows)]
    if not chosen:
        return []
    encoded = encode_pairs(chosen, tokenizer, spec.pairs, decoder_start_of(config, f"model_path={spec.model_path!r}"))
    collate = PairCollator(0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
    return [collate(encoded.rows[start : start + 8]) for start in range(0, len(encoded), 8)]


def _check_output(spec):
    """Refuse a directory with files that no quantization wrote, since the checkpoint replaces the directory whole."""
    from ..quantize.writer import refuse_inside_a_file, refuse_source_as_target

    if Path(spec.model_path).is_file():
        raise ValueError(f"model_path={spec.model_path!r} is a file; name the folder of a checkpoint, or a repository id")
    refuse_source_as_target(spec.model_path, spec.output_dir)
    refuse_inside_a_file(spec.output_dir)
    directory = Path(spec.output_dir)
    if directory.is_file():
        raise ValueError(f"output_dir={spec.output_dir!r} is a file; name a folder")
    ours = any((directory / name).is_file() for name in (STAGE_FILE, "quantization_report.json"))
    if not spec.overwrite and directory.is_dir() and any(directory.iterdir()) and not ours:
        raise ValueError(f"output_dir={spec.output_dir!r} is not empty; name another one, or overwrite=true")


def _documents(spec):
    """(documents of calibration, documents of evaluation), disjoint; empty lists where none are needed."""
    wants_calibration, wants_held_out = spec.method == "awq", spec.eval_rows > 0
    if spec.calibration is not None:
        own = replace(spec.data, source=spec.calibration, sources=DataSpec().sources, eval_source=None)
        held_out = documents_of(spec.data, "eval") if wants_held_out else []
        if set(held_out) & set(calibration := documents_of(own, "all")):
            raise ValueError(f"calibration={spec.calibration!r} holds documents that data holds out for evaluation")
        return calibration, held_out
    if wants_held_out:
        train, held_out = train_and_eval_documents(spec.data)
        return train if wants_calibration else [], held_out
    return documents_of(spec.data, "train") if wants_calibration else [], []


def _stage_settings(spec, calibration, held_out, pairs=None):
    from ..quantize.formats import width_of

    settings = {name: getattr(spec, name) for name in _DECIDING}
    if spec.producer != "own":
        settings["producer"] = spec.producer
    settings["bits"], settings["group_size"] = width_of(spec.method, spec.bits, spec.group_size)
    if pairs is not None:
        own = {key: value for key, value in asdict(spec.pairs).items() if key not in ("source", "eval_source")}
        inputs = {"pairs": own, "texts": pairs.fingerprint}
        return {**settings, **inputs, "model_path_fingerprint": stage_fingerprint(spec.model_path)}
    inputs = {"texts": documents_fingerprint(calibration), "model_path_fingerprint": stage_fingerprint(spec.model_path)}
    if held_out:
        inputs["held_out"] = documents_fingerprint(held_out)
    return {**settings, "calibration_length": _length(spec), **inputs}


def _length(spec):
    return spec.calibration_length or spec.data.sequence_length


def _options_of_documents(spec, calibration, held_out, tokenizer, announce):
    options, length = {}, _length(spec)
    if spec.method == "awq":
        ids = calibration_ids(calibration, tokenizer, spec.calibration_rows, length)
        announce(f"quantize: awq, calibrated on {len(ids)} rows of {length} tokens")
        options = {"calibration": ids, "calibration_length": length}
    if held_out:
        options["eval_ids"] = calibration_ids(held_out, tokenizer, spec.eval_rows, length)
    return options


def _options_of_pairs(spec, calibration, held_out, tokenizer, announce):
    from transformers import AutoConfig

    config, options = AutoConfig.from_pretrained(spec.model_path), {}
    if spec.method == "awq":
        batches = pair_batches(calibration, tokenizer, config, spec, spec.calibration_rows)
        announce(f"quantize: awq, calibrated on {sum(len(batch['labels']) for batch in batches)} pairs")
        options = {"calibration": batches}
    if batches := pair_batches(held_out, tokenizer, config, spec, spec.eval_rows):
        options["eval_ids"] = batches
    return options


@contextmanager
def _failing_in_words(spec):
    """Turn a full disk and a failed producer into a `RunStopped`, which is told without a traceback."""
    from ..quantize.producers import ProducerFailed

    try:
        yield
    except ProducerFailed as error:
        raise RunStopped(str(error)) from error
    except Exception as error:
        # a RuntimeError of our own says that what was written is not what was quantized
        if not is_write_error(error) or type(error) is RuntimeError:
            raise
        reason = " ".join(str(error).split())
        kept = "" if spec.producer == "autoawq" else "finished layers are kept beside it; "
        raise RunStopped(
            f"output_dir={spec.output_dir!r} could not be written ({reason}); {kept}make room and run the same command again"
        ) from error


def _quantize(spec, calibration, held_out, announce):
    from ..quantize.checkpoint import quantize_checkpoint

    options = {name: getattr(spec, name) for name in _SEARCHES} if spec.method == "awq" else {}
    if spec.producer == "autoawq":
        from ..quantize.autoawq import interpreter_facts
        from ..quantize.producers import find_interpreter

        # before a text is tokenized
        interpreter_facts(find_interpreter(spec.producer_python))
        del options["compensate"]
    tokenizer = load_tokenizer(spec.model_path) if calibration or held_out else None
    if spec.pairs.source:
        options |= _options_of_pairs(spec, calibration, held_out, tokenizer, announce)
    else:
        options |= _options_of_documents(spec, calibration, held_out, tokenizer, announce)
    # The stage made the directory to claim it, or a killed run left it; `_check_output` kept foreign ones out.
    with _failing_in_words(spec):
        report = quantize_checkpoint(
            spec.model_path,
            spec.output_dir,
            method=spec.method,
            bits=spec.bits,
            group_size=spec.group_size,
            symmetric=spec.symmetric,
            leave_unquantized=spec.leave_unquantized,
            max_bytes=spec.max_bytes,
            to=spec.to,
            producer=spec.producer,
            producer_python=spec.producer_python,
            overwrite=True,
            progress=lambda done, total, name: announce(f"quantize: {name} ({done} of {total})"),
            **options,
        )
    for text in report["warnings"]:
        announce(f"quantize: {text}")
    names = (
        *("method", "bits", "group_size", "quantized_modules", "unquantized_modules", "starved_experts", "tokens_per_expert"),
        *("perplexity", "divergence", "warnings", "source_bytes"),
    )
    told = {"producer": report["producer"]} if "producer" in report else {}
    return {**{name: report.get(name) for name in (*names, "bytes")}, **told}
