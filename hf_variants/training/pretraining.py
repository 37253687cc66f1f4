"""Pretraining, from text to a checkpoint directory: tokenizer, packed rows, Trainer, held-out perplexity beside the
baseline.

    spec -> documents -> tokenizer/ -> data/{train,eval}-FINGERPRINT -> checkpoint-N ... -> model.safetensors +
    tokenizer + stage.json

Notable here: running it again continues where it stopped, and a finished run is recognised and skipped; every process
of `torchrun` or `accelerate launch` runs the same lines.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arguments import check_generation_section, training_arguments
from .bounds import check_numbers
from .documents import read_corpus
from .idle_keys import changed_keys, refuse_idle_tokenizer_keys
from .models import build_model, check_model_entry, check_rows, model_section
from .packing import short_row
from .processes import in_turn, print_once, together
from .row_files import packed_dataset, tokenizer_fingerprint
from .run_settings import rows_per_step, run_settings
from .saves import saving
from .sharding import check_launch, remove_start
from .span_corruption import add_sentinels
from .stages import run_stage, stage_fingerprint
from .tokenizer import is_tokenizer_directory, load_tokenizer, special_tokens, train_tokenizer

# What a run that goes on with changed settings keeps: the weights in its checkpoints and the rows it has read depend on it.
FIXED = (
    "model",
    "tokenizer",
    "data",
    "texts",
    "objective",
    "mask_share",
    "span_corruption",
    "optimizer",
    "muon",
    "seed",
    "dtype",
    "rows_per_step",
    "distributed",
)


@dataclass
class PreparedData:
    """Tokenizer and packed rows of a run, with the digests by which they are recognised."""

    tokenizer: Any
    train: Any
    eval: Any
    fingerprint: dict
    eval_texts: Any = ()


def pretrain(spec, announce=print_once):
    """Run a `TrainingSpec`; finished work is not done again.

    Returns:
        dict: eval_loss, eval_perplexity, unigram_perplexity, parameters, steps, tokens_per_second, mfu, seconds,
        failed_uploads, corrupt_records.

    Raises:
        ValueError: for a spec that cannot be run, before any work; or when output_dir holds a run of other settings.
    """
    with together():
        check_numbers(spec)
        arguments = training_arguments(spec)
        check_model_entry(spec)
        check_parts(spec)
        refuse_idle_tokenizer_keys(spec)
        check_launch(spec, arguments)
        corpus = read_corpus(spec.data)
    announce_corrupt(corpus.report, announce)
    return run_stage(
        "pretrain",
        spec.output_dir,
        stage_settings(spec, corpus.fingerprint),
        lambda: _pretrain(spec, corpus, announce),
        overwrite=spec.overwrite,
        announce=announce,
        arguments=arguments,
        allow_changes=spec.allow_changes,
        fixed=FIXED,
    )


def stage_settings(spec, texts):
    """What decides the result of a training run: the spec, its model keys, and the content of its inputs."""
    settings = run_settings(spec, training_arguments(spec), left_out=("peak_flops",))
    if spec.objective != "span_corruption":
        del settings["span_corruption"]
    # Places, not content: the digests of the texts below say what was read.
    for key in ("cache_dir", "source", "sources", "eval_source", "corrupt_limit"):
        del settings["data"][key]
    settings["model"] = None if spec.model is None else model_section(spec.model)
    settings["texts"] = texts
    if spec.model_path is not None:
        settings["model_path_fingerprint"] = stage_fingerprint(spec.model_path)
    return settings


def announce_corrupt(report, announce):
    """Say how many records were skipped and why, where any was."""
    if report.corrupt:
        total = report.corrupt + report.documents
        first = "; ".join(report.first_corrupt)
        announce(f"data: {report.corrupt:,} of {total:,} records are corrupt and were skipped; the first: {first}")


def check_parts(spec):
    """Refuse what no row, tokenizer or optimizer could be made of, before anything is read. Raises ValueError."""
    from .metrics_callback import check_metrics
    from .muon import check_optimizer
    from .objectives import sentinels_of_spec

    check_metrics(spec.metrics)
    if spec.data.sequence_length < 2:
        raise short_row(spec.data.sequence_length)
    check_generation_section(spec.samples.generation, "samples.generation")
    for name, value in changed_keys(spec.samples).items():
        if not spec.samples.prompts:
            raise ValueError(f"samples.{name}={value!r} has no effect without samples.prompts, the texts to continue")
    if spec.tokenizer.path is None and spec.model_path is None:
        special_tokens(spec.tokenizer, spec.objective, sentinels_of_spec(spec))
    check_optimizer(spec)


def _pretrain(spec, corpus, announce):
    data = prepare_data(spec, corpus.train, corpus.eval, corpus.fingerprint, announce)
    model = build_model(spec, data.tokenizer)
    return {**train(model, data, spec, announce), "corrupt_records": corpus.report.corrupt}


def prepare_data(spec, train_texts, eval_texts, texts, announce=print_once):
    """Tokenizer (loaded or trained) and packed data sets of a spec, made by the first process and read by the
    others.
    """
    with in_turn(training_arguments(spec)):
        tokenizer = _tokenizer(spec, train_texts, announce)
    return prepare_rows(spec, tokenizer, train_texts, eval_texts, texts, announce)


def prepare_rows(spec, tokenizer, train_texts, eval_texts, texts, announce=print_once):
    """Packed data sets of a spec for a tokenizer, made by the first process and read by the others."""
    from .objectives import row_length

    with in_turn(training_arguments(spec)):
        folder = spec.data.cache_dir or str(Path(spec.output_dir) / "data")
        options = {"packing": spec.data.packing, "long_documents": spec.data.long_documents}
        length = row_length(spec)
        train_rows = packed_dataset(train_texts, tokenizer, length, folder, texts["train"], "train", **options)
        eval_rows = packed_dataset(eval_texts, tokenizer, length, folder, texts["eval"], "eval", **options)
    _announce_rows(train_rows, eval_rows, length, announce)
    prints = {**texts, "tokenizer": tokenizer_fingerprint(tokenizer)}
    return PreparedData(tokenizer, train_rows, eval_rows, prints, eval_texts)


def train(model, data, spec, announce=print_once):
    """Train a model on `PreparedData` with Trainer, from the last good checkpoint in spec.output_dir where there is
    one.

    The final model and the tokenizer are saved in spec.output_dir itself.

    Returns:
        dict of the numbers that `pretrain` returns.
    """
    from .card import write_training_card
    from .objectives import row_length
    from .whole_run import save_finished, train_on

    check_rows(spec, model.config)
    trainer, throughput = make_trainer(model, data, spec, announce)
    baseline = baseline_perplexity(data, model.config.vocab_size, trainer.data_collator)
    _announce_start(trainer, data, baseline, spec, announce)
    seconds = train_on(trainer, announce, lambda checkpoint: check_steps_left(checkpoint, trainer.args))
    loss = trainer.evaluate()["eval_loss"]
    save_finished(trainer, data.tokenizer)
    announce(f"held-out perplexity {math.exp(loss):.2f}; unigram baseline {baseline:.2f}")
    result = {
        "eval_loss": loss,
        "eval_perplexity": math.exp(loss),
        "unigram_perplexity": baseline,
        "parameters": model.num_parameters(),
        "steps": trainer.state.global_step,
        "tokens_per_second": throughput.tokens_per_second(),
        "mfu": throughput.mfu(),
        "seconds": seconds,
        "failed_uploads": len(trainer.failed_uploads),
    }
    remove_start(spec.output_dir)
    sizes = rows_per_step(spec, trainer.args), row_length(spec)
    with together(), saving(f"the card of the final model in {spec.output_dir}", spec.output_dir):
        if trainer.is_world_process_zero():
            write_training_card(spec, trainer.args, data, result, trainer.state.log_history, *sizes)
    return result


def check_steps_left(checkpoint, arguments):
    """Refuse to continue beyond the last step. Raises ValueError."""
    done = int(Path(checkpoint).name.rsplit("-", 1)[1])
    if 0 < arguments.max_steps < done:
        raise ValueError(
            f"trainer.max_steps={arguments.max_steps} is less than the {done} steps of {checkpoint}; give at least {done}, "
            "another output_dir, or overwrite=true to start afresh"
        )


def make_trainer(model, data, spec, announce=print_once):
    """(VariantsTrainer, ThroughputCallback) of a run."""
    from transformers.trainer_callback import ProgressCallback

    from .callbacks import EpochCallback, PerplexityCallback, ThroughputCallback, add_callback_before_trackers
    from .objectives import collator_of, row_length
    from .progress import ShortProgressCallback
    from .trainer import VariantsTrainer

    arguments = training_arguments(spec)
    collator = collator_of(spec, data.tokenizer)
    flops, peak = flops_of_row_tokens(model.config, spec), device_peak(model, arguments, spec.peak_flops)[0]
    tokens = rows_per_step(spec, arguments) * row_length(spec)
    throughput = ThroughputCallback(tokens, flops, peak and peak * arguments.world_size)
    trainer = VariantsTrainer(
        model=model,
        args=arguments,
        train_dataset=data.train,
        eval_dataset=data.eval,
        data_collator=collator,
        processing_class=data.tokenizer,
        muon=spec.muon if spec.optimizer == "muon" else None,
    )
    for callback in (throughput, PerplexityCallback()):
        add_callback_before_trackers(trainer, callback)
    if hasattr(collator, "epoch"):
        trainer.add_callback(EpochCallback(collator))
    if spec.metrics:
        from .metrics_callback import MetricsCallback

        trainer.add_callback(MetricsCallback(trainer, spec.metrics, data.tokenizer, data.eval_texts))
    if spec.samples.prompts:
        from .sampling import SamplesCallback

        sampling = (spec.samples.prompts, data.tokenizer, spec.samples.steps, spec.samples.generation, spec.seed)
        trainer.add_callback(SamplesCallback(*sampling, announce))
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ShortProgressCallback)
    return trainer, throughput


def training_flops(config, length):
    """Forward and backward FLOPs of a token in rows of `length`, or None for a model that is not of the family."""
    from ..analysis.flops import flops_per_token

    return 3 * flops_per_token(config, length).total if hasattr(config, "layer_plan") else None


def flops_of_row_tokens(config, spec):
    """`training_flops` of a token of the rows that a `TrainingSpec` packs; with span corruption, of all that becomes of a row
    (every token of the encoder and of the decoder) over the tokens of the row.
    """
    if spec.objective != "span_corruption" or not hasattr(config, "stacks"):
        return training_flops(config, spec.data.sequence_length)
    from ..analysis.flops import flops_per_token
    from .objectives import corruption_of_spec

    lengths = corruption_of_spec(spec)
    written = flops_per_token(config, lengths.targets, encoder_length=lengths.inputs).total
    return 3 * written * lengths.targets / lengths.row


def device_peak(model, arguments, given):
    """(peak FLOP/s of one device, how it is known)."""
    import torch

    from .peak_flops import peak_flops

    return peak_flops(given, torch.bfloat16 if arguments.bf16 else model.dtype)


def baseline_perplexity(data, vocab_size, collator=None):
    """Perplexity of what is predicted in the held-out rows under its frequencies in the training rows.

    Args:
        collator: makes rows of its own length of the packed ones, such as those of span corruption; None otherwise.
    """
    from ..evaluation.baseline import token_counts, unigram_perplexity

    counts = [token_counts(_label_batches(rows, collator), vocab_size) for rows in (data.train, data.eval)]
    return unigram_perplexity(*counts)


def _label_batches(rows, collator):
    if not hasattr(collator, "corruption"):
        return (columns["labels"] for columns in rows.batches())
    batches = (rows.__getitems__(range(begin, min(begin + 1000, len(rows)))) for begin in range(0, len(rows), 1000))
    return (collator(batch)["labels"].numpy() for batch in batches)


def _announce_rows(train, held_out, length, announce):
    stats = train.stats
    announce(f"data: {len(train):,} training and {len(held_out):,} held-out rows of {length} tokens")
    parts = [f"{stats['documents']:,} training documents of {stats['tokens']:,} tokens"]
    if stats["documents_cut"]:
        parts.append(f"{stats['documents_cut']:,} longer than a row and cut")
    if stats["documents_skipped"]:
        parts.append(f"{stats['documents_skipped']:,} longer than a row and skipped")
    if stats["padding"]:
        parts.append(f"{stats['padding'] / (len(train) * length):.1%} padding")
    announce(f"data: {', '.join(parts)}")


def _tokenizer(spec, train_texts, announce):
    from .objectives import collator_of, sentinels_of_spec

    sentinels = sentinels_of_spec(spec)
    if spec.model_path is not None:
        tokenizer = load_tokenizer(spec.tokenizer.path or spec.model_path)
        collator_of(spec, tokenizer)  # refuses a tokenizer without the tokens of the objective, before any row is made
        return tokenizer
    if spec.tokenizer.path is not None:
        tokenizer = load_tokenizer(spec.tokenizer.path)
        if added := add_sentinels(tokenizer, sentinels):
            announce(f"tokenizer: {added} sentinels were added to those of {spec.tokenizer.path}")
        return tokenizer
    folder = Path(spec.output_dir) / "tokenizer"
    if not is_tokenizer_directory(folder):
        announce(f"tokenizer: training a byte-level BPE of {spec.tokenizer.vocab_size:,} tokens")
        partial = folder.with_name(f"tokenizer.partial-{os.getpid()}")
        train_tokenizer(train_texts, spec.tokenizer, spec.objective, sentinels).save_pretrained(partial)
        partial.rename(folder)
    return load_tokenizer(folder)


def _announce_start(trainer, data, baseline, spec, announce):
    model, arguments = trainer.model, trainer.args
    rows = rows_per_step(spec, arguments)
    announce(
        f"training: {model.num_parameters():,} parameters, vocabulary {len(data.tokenizer):,}, {rows} rows per step "
        f"on {arguments.world_size} process(es); unigram baseline perplexity {baseline:.2f}"
    )
