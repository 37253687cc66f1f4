"""Extending the context of a checkpoint, from measuring the methods to the saved model.

    checkpoint -> perplexity by position of each method -> chosen rule in the config -> proof that it took effect
               -> brief fine-tuning on long rows -> perplexity by position again -> checkpoint + extension.json

Notable here: held-out rows are the same before and after; running it again continues where it stopped.
"""

from itertools import islice
from pathlib import Path

from ..training.arguments import training_arguments
from ..training.documents import documents_fingerprint, train_and_eval_documents
from ..training.stages import run_stage, write_json
from .extend_spec import ExtendSpec
from .scaling import original_length, scale_rope

__all__ = ["ExtendSpec", "extend_context"]

RESULT_FILE = "extension.json"


def extend_context(spec, announce=print):
    """Run an `ExtendSpec`; finished work is not done again.

    Returns:
        dict: method, factor, context_before, context_after, before {method: buckets}, after (buckets), verification,
        training (numbers of the fine-tuning, or None), eval_rows. Also written to output_dir/extension.json.

    Raises:
        ValueError: for a spec that cannot be run, before any work; where the scaling did not take effect; or when
            output_dir holds a run of other settings.
    """
    arguments = training_arguments(spec.training())
    _check_plan(spec)
    train_texts, eval_texts = train_and_eval_documents(spec.data)
    texts = {"train": documents_fingerprint(train_texts), "eval": documents_fingerprint(eval_texts)}
    return run_stage(
        "extend",
        spec.output_dir,
        _stage_settings(spec, texts),
        lambda: _extend(spec, train_texts, eval_texts, texts, announce),
        overwrite=spec.overwrite,
        announce=announce,
        in_turn=arguments.main_process_first,
    )


def _stage_settings(spec, texts):
    from ..training.pretraining import stage_settings

    own = {name: value for name, value in spec.to_dict().items() if name not in ("output_dir", "overwrite", "data")}
    return {**own, "training": stage_settings(spec.training(), texts)}


def _extend(spec, train_texts, eval_texts, texts, announce):
    from ..training.models import open_checkpoint
    from .compare import perplexity_by_position
    from .rope_swap import with_config
    from .verify import verify_scaling

    model, tokenizer = open_checkpoint(spec.model_path, spec.dtype)
    before = model.config
    config = scale_rope(before, spec.method, spec.factor, spec.layers, spec.force, **spec.options)
    ids = held_out_rows(eval_texts, tokenizer, config.max_position_embeddings, spec.max_tokens)
    announce(f"context: measuring {', '.join(spec.compare)} on {len(ids)} held-out rows of {ids.shape[1]:,} tokens")
    measured = _measure_once(spec, model, ids, texts, announce)
    model = with_config(model, config)
    report = verify_scaling(model, before)
    if not report.ok:
        raise ValueError(f"method={spec.method!r} did not take effect: {'; '.join(report.failures)}")
    _announce_verification(report, announce)
    trained = _train_or_save(spec, model, tokenizer, train_texts, eval_texts, texts, announce)
    after = perplexity_by_position(model, ids, _bucket_ends(spec, ids.shape[1]))
    _check_saved(spec.output_dir, config)
    result = {
        "method": spec.method,
        "factor": spec.factor,
        "context_before": original_length(before),
        "context_after": config.max_position_embeddings,
        "before": measured,
        "after": after,
        "verification": report.to_dict(),
        "training": trained,
        "eval_rows": len(ids),
    }
    announce(f"context: perplexity of the last bucket {after[-1]['perplexity']:.2f} after fine-tuning")
    return _write_result(spec.output_dir, result)


def held_out_rows(texts, tokenizer, length, max_tokens=None):
    """Rows of `length` ids, each a continuous part of one document with its bos token first: int64 [rows, length].

    Raises:
        ValueError: where no document is that long.
    """
    import torch

    from ..training.packing import encode_documents

    limit = None if max_tokens is None else max(1, max_tokens // length)
    rows = islice(_full_rows(encode_documents(texts, tokenizer), length), limit)
    rows = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    if not rows:
        raise ValueError(
            f"no held-out document has {length} tokens, so the extended context cannot be measured; hold out longer "
            "documents (data.eval_fraction, data.eval_source) or lower factor"
        )
    return torch.stack(rows)


def _full_rows(documents, length):
    for ids in documents:
        for begin in range(0, len(ids) - length + 1, length):
            yield ids[begin : begin + length]


def _check_plan(spec):
    """Raise a ValueError for what the config alone shows to be impossible, before the output directory is claimed."""
    from transformers import AutoConfig

    from ..training.models import no_model

    try:
        before = AutoConfig.from_pretrained(spec.model_path)
    except (OSError, ValueError) as error:
        raise no_model(spec.model_path, error) from None
    config = scale_rope(before, spec.method, spec.factor, spec.layers, spec.force, **spec.options)
    for method in spec.compare:
        options = spec.options if method == spec.method else {}
        scale_rope(before, method, spec.factor, spec.layers, spec.force, **options)
    length, original = spec.data.sequence_length, before.max_position_embeddings
    limit = config.max_position_embeddings
    if spec.training().trainer.get("max_steps") != 0 and not original < length <= limit:
        raise ValueError(
            f"data.sequence_length={length} must lie in ({original}, {limit}]: longer than the old context, so that "
            "fine-tuning meets new distances, and within the new one"
        )


def _measure_once(spec, model, ids, texts, announce):
    """Perplexity by position of the methods to compare, recorded so that an interrupted run need not repeat it."""
    from .compare import compare_scalings

    names = ("model_path", "factor", "options", "method", "layers", "force", "compare", "position_buckets", "dtype")
    settings = {name: spec.to_dict()[name] for name in names}

    def measure():
        return compare_scalings(
            model,
            ids,
            spec.compare,
            spec.factor,
            _bucket_ends(spec, ids.shape[1]),
            options={spec.method: spec.options},
            layers=spec.layers,
            force=spec.force,
        )

    where = Path(spec.output_dir) / "comparison"
    settings = {**settings, "texts": texts["eval"], "rows": list(ids.shape)}
    return run_stage("compare", where, settings, measure, overwrite=True, announce=announce)


def _bucket_ends(spec, length):
    from .compare import bucket_ends

    if spec.position_buckets is None:
        return bucket_ends(length)
    return sorted({max(2, round(length * i / spec.position_buckets)) for i in range(1, spec.position_buckets + 1)})


def _train_or_save(spec, model, tokenizer, train_texts, eval_texts, texts, announce):
    from ..training.pretraining import prepare_data, train

    training = spec.training()
    if training.trainer.get("max_steps") == 0:
        model.save_pretrained(spec.output_dir)
        tokenizer.save_pretrained(spec.output_dir)
        return None
    data = prepare_data(training, train_texts, eval_texts, texts, announce)
    return train(model, data, training, announce)


def _check_saved(output_dir, config):
    from transformers import AutoConfig

    saved = AutoConfig.from_pretrained(output_dir)
    for name in ("rope_parameters", "max_position_embeddings"):
        if getattr(saved, name) != getattr(config, name):
            raise ValueError(f"{output_dir} was saved with {name}={getattr(saved, name)} instead of {getattr(config, name)}")


def _announce_verification(report, announce):
    for row in report.rows:
        announce(
            f"context: {report.context_before:,} -> {report.context_after:,} tokens; {row['key']} rotation "
            f"{row['rope_type']}: {row['changed']} of {row['frequencies']} frequencies changed, longest wavelength "
            f"stretched {row['largest_stretch']:.3g} times, attention factor {row['attention_factor']:.4f}; equal to "
            f"the formula within {row['relative_error']:.1e}"
        )


def _write_result(output_dir, result):
    from accelerate import PartialState

    if PartialState().is_main_process:
        write_json(Path(output_dir) / RESULT_FILE, result)
    return result
