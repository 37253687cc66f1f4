"""Extending the context of a checkpoint, from measuring the methods to the saved model.

    checkpoint -> perplexity by position and pass keys under each method -> chosen rule in the config -> proof that it took
    effect -> brief fine-tuning on long rows -> the same measurements again -> checkpoint + extension.json

Notable here: held-out rows are the same before and after; running it again continues where it stopped.
"""

from pathlib import Path

from ..training.arguments import training_arguments
from ..training.bounds import check_numbers
from ..training.documents import read_corpus
from ..training.idle_keys import changed_keys, refuse_idle_keys
from ..training.pretraining import announce_corrupt, stage_settings
from ..training.processes import is_writer, print_once, together
from ..training.sharding import check_distributed, check_launch
from ..training.stages import run_stage, stage_fingerprint, write_json
from .extend_spec import ExtendSpec
from .fine_tuning import check_lengths_of_training, fine_tune, unused_with_stages
from .measuring import held_out_rows, measure, measure_methods
from .scaling import check_options, original_length, scale_rope
from .starting_point import starting_config, starting_model

__all__ = ["ExtendSpec", "extend_context"]

RESULT_FILE = "extension.json"
# What a run that goes on with changed settings keeps; only the trainer's numbers may change.
_FIXED = ("model_path", "gguf_file", "rows", "factor", "method", "options", "layers", "force", "compare", "passkey", "stages")
_FIXED += ("position_buckets", "max_tokens", "seed", "dtype", "training.texts", "training.rows_per_step", "training.data")
_FIXED += ("training.distributed",)


def extend_context(spec, announce=print_once):
    """Run an `ExtendSpec`; finished work is not done again.

    Returns:
        dict: method, factor, context_before, context_after, before {method: buckets}, after (buckets), passkey_before {method:
        rows}, passkey_after (rows), verification, training (numbers of the fine-tuning, or None), stages (those of every
        length), eval_rows. Also written to output_dir/extension.json.

    Raises:
        ValueError: for a spec that cannot be run, before any work; where the scaling did not take effect; or when
            output_dir holds a run of other settings.
    """
    with together():
        arguments = check_request(spec)
        _check_plan(spec)
        corpus = read_corpus(spec.data)
    announce_corrupt(corpus.report, announce)
    for name, value in unused_with_stages(spec).items():
        announce(f"{name}={value!r} is unused, since stages say how long rows and training are")
    return run_stage(
        "extend",
        spec.output_dir,
        _stage_settings(spec, corpus.fingerprint),
        lambda: _extend(spec, corpus, announce),
        overwrite=spec.overwrite,
        announce=announce,
        arguments=arguments,
        allow_changes=spec.allow_changes,
        fixed=_FIXED,
    )


def check_request(spec):
    """The arguments of the fine-tuning. Raises ValueError for what is wrong whatever the checkpoint is."""
    check_numbers(spec)
    refuse_idle_keys(spec, "rows", {"data.packing": ("packed",)})
    for name, value in changed_keys(spec.passkey).items():
        if not spec.passkey.trials and name != "trials":
            raise ValueError(f"passkey.{name}={value!r} has no effect with passkey.trials=0, which measures none")
    check_options(spec.method, spec.options)
    arguments = training_arguments(spec.training())
    check_launch(spec, arguments)
    return arguments


def _stage_settings(spec, texts):
    left_out = ("output_dir", "overwrite", "allow_changes", "data", "trainer", "distributed")
    own = {name: value for name, value in spec.to_dict().items() if name not in left_out}
    return {**own, "training": stage_settings(spec.training(), texts)}


def _extend(spec, corpus, announce):
    from .rope_swap import with_config
    from .verify import verify_scaling

    model, tokenizer = starting_model(spec, announce)
    before, texts = model.config, corpus.fingerprint
    original = original_length(before)
    config = scale_rope(before, spec.method, spec.factor, spec.layers, spec.force, **spec.options)
    ids = held_out_rows(corpus.eval, tokenizer, config.max_position_embeddings, spec.max_tokens)
    announce(f"context: measuring {', '.join(spec.compare)} on {len(ids)} held-out rows of {ids.shape[1]:,} tokens")
    measured = _measure_once(spec, model, tokenizer, ids, original, texts, announce)
    model = with_config(model, config)
    report = verify_scaling(model, before)
    if not report.ok:
        raise ValueError(f"method={spec.method!r} did not take effect: {'; '.join(report.failures)}")
    _announce_verification(report, announce)
    model, trained, stages = fine_tune(spec, model, tokenizer, corpus.train, corpus.eval, texts, announce)
    after = measure(spec, model, tokenizer, ids, original)
    _check_saved(spec.output_dir, config)
    result = {
        "method": spec.method,
        "factor": spec.factor,
        "context_before": original,
        "context_after": config.max_position_embeddings,
        "before": {method: values["perplexity"] for method, values in measured.items()},
        "after": after["perplexity"],
        "passkey_before": {method: values["passkey"] for method, values in measured.items()},
        "passkey_after": after["passkey"],
        "verification": report.to_dict(),
        "training": trained,
        "stages": stages,
        "eval_rows": len(ids),
    }
    announce(f"context: perplexity of the last bucket {after['perplexity'][-1]['perplexity']:.2f} after fine-tuning")
    if is_writer():
        write_json(Path(spec.output_dir) / RESULT_FILE, result)
    return result


def _check_plan(spec):
    """Raise a ValueError for what the config alone shows to be impossible, before the output directory is claimed."""
    before = starting_config(spec)
    config = scale_rope(before, spec.method, spec.factor, spec.layers, spec.force, **spec.options)
    for method in spec.compare:
        options = spec.options if method == spec.method else {}
        scale_rope(before, method, spec.factor, spec.layers, spec.force, **options)
    check_distributed(spec.training(), before)
    check_lengths_of_training(spec, before.max_position_embeddings, config.max_position_embeddings)
    if spec.passkey.trials < 0:
        raise ValueError(f"passkey.trials={spec.passkey.trials} must be 0 (no measurement) or more")
    for length in spec.passkey.lengths or ():
        if length > config.max_position_embeddings:
            raise ValueError(f"passkey.lengths holds {length}, beyond the {config.max_position_embeddings} of the new context")


def _measure_once(spec, model, tokenizer, ids, original, texts, announce):
    """The comparison of the methods, recorded so that an interrupted run need not repeat it."""
    names = ("model_path", "gguf_file", "factor", "options", "method", "layers", "force", "compare", "position_buckets")
    names += ("dtype", "passkey", "seed")
    settings = {name: spec.to_dict()[name] for name in names}
    inputs = {"texts": texts["eval"], "rows": list(ids.shape), "model_path_fingerprint": stage_fingerprint(spec.model_path)}
    where = Path(spec.output_dir) / "comparison"
    work = lambda: measure_methods(spec, model, tokenizer, ids, original, announce)  # noqa: E731
    return run_stage("compare", where, {**settings, **inputs}, work, overwrite=True, announce=announce)


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
