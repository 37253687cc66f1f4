"""`seq2seq`: pairs -> tokenizer -> encoder-decoder -> trainer -> BLEU, chrF and exact match on held-out pairs -> report.

    output_dir/tokenizer       trained on the training pairs, unless a path or a checkpoint brings one
              /base            the converted checkpoint, where model_path is native
              /checkpoint-N    where a killed run goes on from
              /                the trained weights or the adapter, tokenizer, card, stage.json
              /merged          base and adapter in one, for the methods with an adapter
              /report.html     curves, measures by kind, samples
              /written.jsonl   every held-out source with what was written and what is right

Notable here: whatever can be refused is refused before the first step; a finished run is recognised and skipped.
"""

import json
import os
from pathlib import Path

from ..finetune.adapters import adapter_config, keep_differentiable, make_reachable, quantization, trainable_share
from ..finetune.base import base_fingerprint, check_source, converted, is_native, written_once
from ..finetune.examples import read_examples
from ..finetune.specs import ADAPTERS
from ..training.arguments import NO_LABELS_LEFT, check_generation_section, refuse_smoothing, training_arguments
from ..training.bounds import check_numbers
from ..training.idle_keys import refuse_idle_keys, refuse_idle_tokenizer_keys
from ..training.models import build_config, check_pair_lengths, draft_config, is_pair, load_model, model_section, read_config
from ..training.processes import in_turn, is_writer, print_once, together
from ..training.run_settings import run_settings
from ..training.sharding import check_distributed, check_launch, load_sharded, remove_start
from ..training.stages import run_stage
from ..training.tokenizer import is_tokenizer_directory, load_tokenizer, special_tokens, train_tokenizer
from .pairs import PairCollator, decoder_start_of, encode_pairs
from .writing import exact_by_group, measured, write_texts

# What a run that goes on with changed settings keeps: its checkpoints depend on it.
FIXED = (
    *("model", "method", "adapter", "tokenizer", "data", "pairs", "base", "optimizer", "muon", "seed", "dtype"),
    *("rows_per_step", "distributed"),
)


def seq2seq(spec, announce=print_once):
    """Run a `Seq2SeqSpec`; finished work is not done again.

    Returns:
        dict: held_out and training ({exact_match, bleu, chrf, ...}; of training pairs as many as are held out, at most 500),
        by_group, eval_loss, parameters, trainable, pairs, longer, steps, seconds, report, and merged where there is one.

    Raises:
        ValueError: for a spec that cannot be run, before any training; or when output_dir holds a run of other settings.
    """
    with together():
        arguments = training_arguments(spec)
        check_spec(spec)
        check_launch(spec, arguments)
        pairs = read_examples(spec.data, "seq2seq")
    repeated = len({record[spec.data.source_key] for record in pairs.train} & {r[spec.data.source_key] for r in pairs.eval})
    if repeated:
        announce(f"data: {repeated} of {len(pairs.eval)} held-out sources also stand in the training pairs")
    return run_stage(
        "seq2seq",
        spec.output_dir,
        stage_settings(spec, arguments, pairs.fingerprint),
        lambda: _seq2seq(spec, arguments, pairs, repeated, announce),
        overwrite=spec.overwrite,
        announce=announce,
        arguments=arguments,
        allow_changes=spec.allow_changes,
        fixed=FIXED,
    )


def check_spec(spec):
    """Refuse a `Seq2SeqSpec` that cannot be run, before anything is read. Raises ValueError."""
    from ..training.muon import check_optimizer

    check_numbers(spec)
    refuse_idle_tokenizer_keys(spec)
    refuse_idle_keys(spec, "objective", {"tokenizer.mask_token": ("mlm",)})
    check_generation_section(spec.generation)
    refuse_smoothing(spec.trainer, NO_LABELS_LEFT)
    check_optimizer(spec)
    refuse_idle_keys(spec, "method", {"adapter": ADAPTERS})
    if spec.optimizer == "muon" and spec.method in ADAPTERS:
        raise ValueError(
            f"optimizer='muon' is for whole weight matrices, and method={spec.method!r} trains factors of their change; use "
            "optimizer='adamw'"
        )
    quantization(spec)
    check_distributed(spec)
    if (spec.model is None) == (spec.model_path is None):
        given = f"model={spec.model!r}, model_path={spec.model_path!r}"
        raise ValueError(f"give either model (new weights) or model_path (a checkpoint to start from); got {given}")
    if spec.distributed and spec.method in ADAPTERS:
        raise ValueError(
            f"method={spec.method!r} does not go with distributed={spec.distributed!r}: adapters are not sharded; leave "
            "distributed out, or use method='full'"
        )
    if spec.model is not None and spec.method in ADAPTERS:
        raise ValueError(
            f"method={spec.method!r} trains an adapter on the weights of a checkpoint, and those of model are new; give "
            "model_path, or method='full'"
        )
    if spec.model is not None and not is_pair(model_section(spec.model)):
        raise ValueError(
            "model must be an encoder-decoder, with the sections model.encoder and model.decoder; one stack alone is trained "
            "by the pretrain and finetune recipes"
        )
    config = draft_config(spec.model) if spec.model is not None else read_config(spec.model_path)
    if not getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"model_path={spec.model_path!r} is of the type {config.model_type!r}, which is no encoder-decoder; fine-tune it "
            "by the finetune recipe"
        )
    if spec.model_path is not None:
        check_source(config, spec.model_path)
        decoder_start_of(config, f"model_path={spec.model_path!r}")
    elif spec.tokenizer.path is None:
        special_tokens(spec.tokenizer, "seq2seq")
    check_distributed(spec, config)
    check_pair_lengths(config, spec.data.max_source_length, spec.data.max_target_length)


def stage_settings(spec, arguments, fingerprint):
    """What decides the result of a run: the spec and the content of its inputs, not the places where they lie."""
    settings = run_settings(spec, arguments)
    for key in ("source", "eval_source"):
        del settings["data"][key]
    settings["model"] = None if spec.model is None else model_section(spec.model)
    return {**settings, "pairs": fingerprint, "base": None if spec.model_path is None else base_fingerprint(spec)}


def _seq2seq(spec, arguments, pairs, repeated, announce):
    with in_turn(arguments):
        tokenizer = _tokenizer(spec, pairs.train, announce)
        base = prepare_base(spec, tokenizer, announce)
    model, apart = build_model(spec, arguments, tokenizer, base)
    start = decoder_start_of(model.config, "the model")
    train = encode_pairs(pairs.train, tokenizer, spec.data, start, "training")
    held_out = encode_pairs(pairs.eval, tokenizer, spec.data, start, "held-out")
    for name, part in (("training", train), ("held-out", held_out)):
        if any(part.longer.values()):
            what = {"drop": "left out with their pair", "truncate": "cut"}[spec.data.over_long]
            announce(
                f"data: {part.longer['source']} {name} sources and {part.longer['target']} targets are too long and {what}"
            )
    trainer = make_trainer(spec, arguments, model, tokenizer, train, held_out)
    trainable, total = trainable_share(model)
    share = "" if spec.method == "full" else f", {trainable:,} of them trained ({spec.method})"
    announce(
        f"training: {total:,} parameters{share}, vocabulary {len(tokenizer):,}, {len(train):,} training and "
        f"{len(held_out):,} held-out pairs"
    )
    if apart:
        announce("experts are taken apart into one matrix each, so that the adapter reaches them")
    result = {
        "parameters": total,
        "trainable": trainable,
        "pairs": {"training": len(train), "held_out": len(held_out)},
        "longer": {"training": train.longer, "held_out": held_out.longer},
        "repeated": repeated,
        **fit(trainer, announce),
    }
    result.update(measure(trainer, spec, train, held_out, announce))
    remove_start(spec.output_dir)
    # the samples stand in the report and in written.jsonl
    samples = result.pop("samples")
    if spec.method != "full" and spec.adapter.merge:
        from ..finetune.run import merge

        result["merged"] = merge(trainer.model, held_out, spec, base, announce, logits_of_pairs(tokenizer))
    with together():
        if is_writer():
            from .report import write_outcome

            write_outcome(spec, arguments, {**result, "samples": samples}, trainer.state.log_history)
    return {**result, "report": str(Path(spec.output_dir) / "report.html")}


def _tokenizer(spec, records, announce):
    if spec.model_path is not None or spec.tokenizer.path is not None:
        tokenizer = load_tokenizer(spec.tokenizer.path or spec.model_path)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer
    folder = Path(spec.output_dir) / "tokenizer"
    if not is_tokenizer_directory(folder):
        announce(f"tokenizer: training a byte-level BPE of {spec.tokenizer.vocab_size:,} tokens")
        texts = (
            text
            for record in records
            for text in (f"{spec.data.prefix}{record[spec.data.source_key]}", record[spec.data.target_key])
        )
        partial = folder.with_name(f"tokenizer.partial-{os.getpid()}")
        train_tokenizer(texts, spec.tokenizer, "seq2seq").save_pretrained(partial)
        partial.rename(folder)
    return load_tokenizer(folder)


def prepare_base(spec, tokenizer, announce):
    """Path (str) of the checkpoint of the family that a run starts from, None for new weights; output_dir/base where
    model_path is native. Raises ValueError for a native checkpoint that does not convert.
    """
    if spec.model_path is None or not is_native(read_config(spec.model_path)):
        return spec.model_path

    def write(folder):
        converted(spec, announce).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return written_once(spec, write)


def build_model(spec, arguments, tokenizer, base=None):
    """(model of a `Seq2SeqSpec` in spec.dtype, whether its experts were taken apart).

    It is drawn with spec.seed, or read from `base`, with an adapter as spec.method says, or sharded over the processes as
    spec.distributed says.

    Raises:
        ValueError: where the vocabulary does not hold the tokens, or the checkpoint no encoder-decoder.
    """
    import torch
    from transformers import AutoModelForSeq2SeqLM, set_seed

    import hf_variants  # noqa: F401 - registers the family with the Auto classes

    from ..finetune.trainers import adapted

    dtype = getattr(torch, spec.dtype)
    set_seed(spec.seed)
    if base is None:
        config = build_config(spec.model, tokenizer)
        build = lambda: AutoModelForSeq2SeqLM.from_config(config, dtype=dtype)  # noqa: E731
        return (load_sharded(spec, arguments, build, AutoModelForSeq2SeqLM, dtype) if spec.distributed else build()), False
    model = load_model(base, AutoModelForSeq2SeqLM, spec.distributed, dtype=dtype, **quantization(spec))
    rows = model.get_input_embeddings().num_embeddings
    if rows < len(tokenizer):
        raise ValueError(
            f"model_path={spec.model_path!r} has {rows} embeddings, less than the {len(tokenizer)} tokens of the tokenizer; "
            "use the one it was trained with"
        )
    keep_differentiable(model)
    apart = make_reachable(model, spec)
    return adapted(model, adapter_config(spec)), apart


def logits_of_pairs(tokenizer):
    """The function of a model and rows that gives its logits (fp32) on the first two of them, in eval mode."""
    from ..finetune.run import logits_in_eval

    def logits_of(model, rows):
        batch = PairCollator(tokenizer.pad_token_id)([rows[index] for index in range(min(2, len(rows)))])
        return logits_in_eval(model, {name: part.to(model.device) for name, part in batch.items()})

    return logits_of


def make_trainer(spec, arguments, model, tokenizer, train, held_out):
    """The `PairsTrainer` of a run, ready to train."""
    from transformers.trainer_callback import ProgressCallback

    from ..training.progress import ShortProgressCallback
    from .trainer import PairsTrainer

    shown = held_out.records[: spec.generated]
    trainer = PairsTrainer(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=PairCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        sources=[f"{spec.data.prefix}{record[spec.data.source_key]}" for record in shown],
        targets=[record[spec.data.target_key] for record in shown],
        options=generation_options(spec),
        muon=spec.muon if spec.optimizer == "muon" else None,
    )
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ShortProgressCallback)
    return trainer


def generation_options(spec):
    """`GenerationConfig` keys: those of the recipe over as many new tokens as targets may have."""
    own = {} if "max_length" in spec.generation else {"max_new_tokens": spec.data.max_target_length}
    return {**own, **spec.generation}


def fit(trainer, announce):
    """Train from the last good checkpoint and save in output_dir itself: {steps, seconds}."""
    from ..training.whole_run import save_finished, train_on

    seconds = train_on(trainer, announce)
    save_finished(trainer, trainer.processing_class)
    return {"steps": trainer.state.global_step, "seconds": seconds}


def measure(trainer, spec, train, held_out, announce):
    """What the trained model writes for all held-out sources and for as many training ones, and how right it is."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    data, found = spec.data, {}
    for name, part in (("held_out", held_out), ("training", train)):
        records = part.records[: min(len(held_out), 500) if name == "training" else None]
        sources = [f"{data.prefix}{record[data.source_key]}" for record in records]
        size = trainer.args.per_device_eval_batch_size
        texts = write_texts(model, trainer.processing_class, sources, generation_options(spec), size)
        found[name] = measured(texts, [record[data.target_key] for record in records])
        if name == "held_out":
            found["by_group"] = exact_by_group(texts, records, data)
            rows = [
                {"source": source, "written": text, "target": record[data.target_key]}
                for source, text, record in zip(sources, texts, records, strict=True)
            ]
            _write_lines(Path(spec.output_dir) / "written.jsonl", rows)
            found["samples"] = rows[: spec.samples]
    trainer.sources = []
    found["eval_loss"] = trainer.evaluate()["eval_loss"]
    values = found["held_out"]
    announce(
        f"held-out: exact match {values['exact_match']:.1%}, BLEU {values['bleu']:.2f}, chrF {values['chrf']:.2f} on "
        f"{values['examples']:,} pairs; training pairs: exact match {found['training']['exact_match']:.1%}"
    )
    return found


def _write_lines(path, rows):
    if not is_writer():
        return
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    os.replace(partial, path)
