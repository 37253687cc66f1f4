"""`finetune`: examples and base -> trainer -> adapter or weights -> merged weights -> what changed on held-out examples.

    output_dir/base         the converted or toggled base, where model_path could not be loaded as it is
              /checkpoint-N where a killed run goes on from
              /             the trained weights, or the adapter; tokenizer, card, stage.json
              /merged       base and adapter in one, for the methods with an adapter

Notable here: everything that can be refused is refused before the first step; a finished run is recognised and skipped.
"""

from pathlib import Path

from ..training.processes import in_turn, is_writer, print_once, together
from ..training.run_settings import run_settings
from ..training.sharding import check_distributed, check_launch, load_sharded, remove_start
from ..training.stages import run_stage, write_json
from .adapters import adapter_config, keep_differentiable, make_reachable, quantization, trainable_share
from .base import base_fingerprint, check_base, prepare_base
from .card import write_cards
from .classification import class_names
from .examples import Examples, is_chat, read_examples
from .merging import CLASSES_FILE, label_keys, merge_adapter
from .specs import check_keys
from .tokenizers import check_vocabulary, keep_short, open_tokenizer, token_counts
from .trainers import arguments_of, check_batches, make_trainer

# What a run that goes on with changed settings keeps: its checkpoints depend on it.
FIXED = ("task", "method", "adapter", "toggles", "data", "examples", "base", "chat_template", "loss_on", "seed", "dtype")
FIXED += ("rows_per_step", "distributed")


def finetune(spec, announce=print_once):
    """Run a `FinetuneSpec`; finished work is not done again.

    Returns:
        dict: task, method, before and after (what was measured on the held-out examples), steps, seconds, parameters,
        trainable, examples, longer (examples over the length), and where there are any: classes, samples, merged.

    Raises:
        ValueError: for a spec that cannot be run, before any training; or when output_dir holds a run of other settings.
    """
    with together():
        check_keys(spec)
        arguments = arguments_of(spec)
        config = check_base(spec)
        check_distributed(spec, config)
        check_launch(spec, arguments)
        quantization(spec)
    if spec.task == "continued":
        from .continued import continued

        return continued(spec, config, announce)
    with together():
        examples, names, longer = _read(spec, config)
        check_batches(arguments, len(examples.train))
    return run_stage(
        "finetune",
        spec.output_dir,
        stage_settings(spec, arguments, examples.fingerprint),
        lambda: _finetune(spec, arguments, config, examples, names, longer, announce),
        overwrite=spec.overwrite,
        announce=announce,
        arguments=arguments,
        allow_changes=spec.allow_changes,
        fixed=FIXED,
    )


def stage_settings(spec, arguments, fingerprint):
    """What decides the result of a run: the spec and the content of its inputs, not the places where they lie."""
    settings = run_settings(spec, arguments)
    for key in ("source", "eval_source"):
        del settings["data"][key]
    template = None if spec.chat_template is None else Path(spec.chat_template).read_text(encoding="utf-8")
    return {**settings, "chat_template": template, "examples": fingerprint, "base": base_fingerprint(spec)}


def _read(spec, config):
    """(examples within the length, names of their classes, numbers of longer ones)."""
    tokenizer = open_tokenizer(spec, spec.model_path)
    check_vocabulary(tokenizer, config)
    _check_length(spec, config)
    examples = read_examples(spec.data, spec.task)
    if spec.chat_template is not None and not is_chat(examples.train[0]):
        raise ValueError(f"chat_template={spec.chat_template!r} has no effect: the examples are texts, not messages")
    names = class_names(examples, spec) if spec.task == "classification" else []
    examples, longer = _within_length(examples, tokenizer, spec)
    return examples, names, longer


def _check_length(spec, config):
    from ..training.models import check_length

    check_length(config, spec.data.sequence_length)


def _within_length(examples, tokenizer, spec):
    parts, longer = [], {}
    for name in ("train", "eval"):
        records = getattr(examples, name)
        kept, longer[name] = keep_short(records, token_counts(records, tokenizer, spec), spec, name)
        parts.append(kept)
    return Examples(*parts, examples.fingerprint), longer


def _finetune(spec, arguments, config, examples, names, longer, announce):
    from ..training.progress import shorten_progress

    with in_turn(arguments):
        base = prepare_base(spec, config, announce)
        if names and is_writer():
            write_json(Path(spec.output_dir) / CLASSES_FILE, names)
    tokenizer = open_tokenizer(spec, base)
    model = load_base(spec, base, names, tokenizer, arguments)
    apart = make_reachable(model, spec)
    reference = None
    if spec.distributed and spec.task == "preference":
        reference = load_base(spec, base, names, tokenizer, arguments)
    trainer = make_trainer(spec, arguments, model, tokenizer, examples, adapter_config(spec), names, reference)
    shorten_progress(trainer)
    shown = describe_start(spec, trainer, longer, apart)
    for line in shown["lines"]:
        announce(line)
    result = train(trainer, spec, announce)
    if spec.task == "supervised" and spec.samples:
        from .samples import answer

        result["samples"] = answer(trainer.model, tokenizer, examples.eval, spec, announce)
    if spec.method != "full" and spec.adapter.merge:
        result["merged"] = merge(trainer.model, trainer.eval_dataset, spec, base, announce)
    counts = {"train": len(examples.train), "eval": len(examples.eval)}
    known = {"task": spec.task, "method": spec.method, "examples": counts, "longer": longer}
    result = {**known, **shown["facts"], **result, **({"classes": names} if names else {})}
    remove_start(spec.output_dir)
    with together():
        if is_writer():
            write_cards(spec.output_dir, spec, arguments, result, trainer.state.log_history)
    return result


def load_base(spec, base, names, tokenizer, arguments=None):
    """The model to train: for causal language modeling or with a fresh head of so many classes, in 4 bits for QLoRA; sharded
    over the processes of `arguments` where spec.distributed says so.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, set_seed

    from ..training.models import load_model

    options = {"dtype": getattr(torch, spec.dtype), **quantization(spec)}
    set_seed(spec.seed)
    if names:
        # the head reads the last token that is no pad
        options.update(label_keys(names), pad_token_id=tokenizer.pad_token_id)
        auto = AutoModelForSequenceClassification
        build = lambda: auto.from_pretrained(base, **options)  # noqa: E731
        model = load_sharded(spec, arguments, build, auto, options["dtype"]) if spec.distributed else build()
    else:
        model = load_model(base, distributed=spec.distributed, **options)
    keep_differentiable(model)
    return model


def describe_start(spec, trainer, longer, apart):
    """What is about to be trained, as {"lines": texts to print, "facts": numbers of the result}."""
    trainable, total = trainable_share(trainer.model)
    facts = {"parameters": total, "trainable": trainable}
    lines = [f"{spec.task}, {spec.method}: {trainable:,} of {total:,} parameters are trained"]
    if apart:
        lines.append("experts are taken apart into one matrix each, so that the adapter reaches them")
    if any(longer.values()):
        what = {"drop": "left out", "truncate": "cut"}[spec.data.over_long]
        lines.append(
            f"longer than {spec.data.sequence_length} tokens and {what}: {longer['train']} training, {longer['eval']} held-out"
        )
    if spec.task == "supervised":
        tokens, learned = learned_tokens(trainer.train_dataset)
        facts.update(tokens=tokens, learned_tokens=learned)
        lines.append(f"{learned:,} of {tokens:,} training tokens are learned ({learned / tokens:.0%}: loss_on={spec.loss_on})")
    return {"lines": lines, "facts": facts}


def learned_tokens(rows):
    """(tokens, tokens with a label) of a prepared data set."""
    labels = rows.with_format("numpy")["labels"]
    return sum(map(len, labels)), int(sum((row != -100).sum() for row in labels))


def train(trainer, spec, announce=print_once):
    """Train from the last good checkpoint, save in output_dir itself, and measure: {before, after, steps, seconds}."""
    from ..training.whole_run import save_finished, train_on

    seconds = train_on(trainer, announce)
    after = measures(trainer.evaluate())
    save_finished(trainer, trainer.processing_class)
    first = next((line for line in trainer.state.log_history if "eval_loss" in line and line["step"] == 0), {})
    result = {"before": measures(first), "after": after, "steps": trainer.state.global_step, "seconds": seconds}
    for name, value in after.items():
        announce(f"held-out {name.replace('_', ' ')}: {result['before'].get(name, float('nan')):.4f} -> {value:.4f}")
    return result


_NOT_SHOWN = ("runtime", "samples_per_second", "steps_per_second", "num_tokens", "epoch")


def measures(line):
    """The numbers of an evaluation, without the prefix `eval_` and without speeds."""
    named = {name.removeprefix("eval_"): value for name, value in line.items() if name.startswith("eval_")}
    return {name: value for name, value in named.items() if name not in _NOT_SHOWN}


def merge(model, rows, spec, base, announce, logits_of=None):
    """Write output_dir/merged and compare its logits with those of the trained model on held-out rows.

    Args:
        logits_of: function of a model and rows; None takes `logits_of_ids`.

    Returns:
        dict {path, max_difference, mean_difference}; None on processes that do not write.

    Raises:
        RuntimeError: where a merge of float32 weights changes the logits by more than rounding.
    """
    with together():
        return _merge(model, rows, spec, base, announce, logits_of or logits_of_ids) if is_writer() else None


def _merge(model, rows, spec, base, announce, logits_of):
    target = Path(spec.output_dir) / "merged"
    trained = logits_of(model, rows)
    merged = logits_of(merge_adapter(spec.output_dir, target, base, spec.dtype).to(trained.device), rows)
    difference, scale = (merged - trained).abs(), max(trained.abs().max().item(), 1.0)
    result = {"path": str(target), "max_difference": difference.max().item(), "mean_difference": difference.mean().item()}
    why = "; the trained one stands on 4-bit weights, the merged one on float ones" if spec.method == "qlora" else ""
    announce(f"merged: {target}; logits differ by {result['max_difference']:.2g} at most, of {scale:.3g}{why}")
    if spec.method != "qlora" and spec.dtype == "float32" and not result["max_difference"] <= 1e-3 * scale:
        raise RuntimeError(f"the merged model in {target} differs from the trained one by {result['max_difference']:.3g}")
    return result


def logits_of_ids(model, rows, count=2):
    """Logits (fp32) of a model on the first held-out rows, cut to one length, in eval mode."""
    import torch

    first = [rows[index] for index in range(min(count, len(rows)))]
    name = next(name for name in ("input_ids", "prompt_ids", "prompt_input_ids") if name in first[0])
    width = min(len(row[name]) for row in first)
    ids = torch.stack([torch.as_tensor(row[name])[:width] for row in first]).long().to(model.device)
    return logits_in_eval(model, {"input_ids": ids})


def logits_in_eval(model, inputs):
    """Logits (fp32) of a model on `inputs` in eval mode; its own mode is kept."""
    import torch

    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(**inputs).logits.float()
    model.train(was_training)
    return logits
