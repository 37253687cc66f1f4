"""Continued pretraining: `training.pretraining` on another base, with an adapter where one is asked for.

Notable here: rows are packed as in pretraining, so no token sees another document.
"""

from pathlib import Path

from ..training.arguments import training_arguments
from ..training.documents import read_corpus
from ..training.models import check_length
from ..training.pretraining import announce_corrupt, prepare_data
from ..training.pretraining import train as train_rows
from ..training.processes import in_turn, is_writer, print_once, together
from ..training.specs import DataSpec, TokenizerSpec, TrainingSpec
from ..training.stages import read_json, run_stage
from .adapters import adapter_config, make_reachable, trainable_share
from .base import prepare_base
from .card import write_cards
from .tokenizers import check_vocabulary, open_tokenizer


def continued(spec, config, announce=print_once):
    """Run a `FinetuneSpec` with task="continued"; see `run.finetune`."""
    from .run import FIXED, stage_settings

    training = training_spec(spec)
    arguments = training_arguments(training)
    with together():
        check_length(config, spec.data.sequence_length)
        check_vocabulary(open_tokenizer(spec, spec.model_path), config)
        corpus = read_corpus(training.data)
    announce_corrupt(corpus.report, announce)
    return run_stage(
        "finetune",
        spec.output_dir,
        stage_settings(spec, arguments, corpus.fingerprint),
        lambda: _continued(spec, training, arguments, config, (corpus.train, corpus.eval, corpus.fingerprint), announce),
        overwrite=spec.overwrite,
        announce=announce,
        arguments=arguments,
        allow_changes=spec.allow_changes,
        fixed=FIXED,
    )


def training_spec(spec):
    """The `TrainingSpec` that means the same run."""
    data = spec.data
    documents = DataSpec(
        source=data.source,
        subset=data.subset,
        split=data.split,
        text_key=data.text_key,
        max_documents=data.max_examples,
        sequence_length=data.sequence_length,
        eval_fraction=data.eval_fraction,
        eval_source=data.eval_source,
        split_seed=data.split_seed,
    )
    trainer = {"eval_on_start": True, **spec.trainer}
    return TrainingSpec(
        output_dir=spec.output_dir,
        data=documents,
        model_path=spec.model_path,
        trainer=trainer,
        distributed=dict(spec.distributed),
        seed=spec.seed,
        dtype=spec.dtype,
    )


def _continued(spec, training, arguments, config, texts, announce):
    from .run import load_base, measures, merge
    from .trainers import adapted

    with in_turn(arguments):
        base = prepare_base(spec, config, announce)
    tokenizer = open_tokenizer(spec, base)
    training.tokenizer = TokenizerSpec(path=base)
    data = prepare_data(training, *texts, announce)
    model = load_base(spec, base, [], tokenizer, arguments)
    apart = make_reachable(model, spec)
    model = adapted(model, adapter_config(spec))
    trainable, total = trainable_share(model)
    announce(f"continued, {spec.method}: {trainable:,} of {total:,} parameters are trained")
    if apart:
        announce("experts are taken apart into one matrix each, so that the adapter reaches them")
    trained = train_rows(model, data, training, announce)
    log = read_json(Path(spec.output_dir) / "training_log.json") or []
    first = next((line for line in log if "eval_loss" in line and line["step"] == 0), {})
    result = {
        **{"task": spec.task, "method": spec.method, "parameters": total, "trainable": trainable},
        "examples": {"train": len(data.train), "eval": len(data.eval)},
        "before": measures(first),
        "after": {"loss": trained["eval_loss"], "perplexity": trained["eval_perplexity"]},
        **{name: trained[name] for name in ("steps", "seconds", "tokens_per_second", "unigram_perplexity")},
    }
    if spec.method != "full" and spec.adapter.merge:
        result["merged"] = merge(model, data.eval, spec, base, announce)
    with together():
        if is_writer():
            write_cards(spec.output_dir, spec, arguments, result, log)
    return result
