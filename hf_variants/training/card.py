"""What the model card says of a training run, all of it read from the run: data, settings, what was measured, the curve.

Notable here: files are named without their folders, and a checkpoint without a place others could find is called local.
"""

import os
from pathlib import Path

from ..hub.run_section import markdown_table, write_run_section
from ..report import line_figure

CURVE = "loss.svg"


def write_training_card(spec, arguments, data, result, log, rows_per_step, row_length):
    """Write the section into spec.output_dir, and the curve of the losses beside it.

    Args:
        data: `PreparedData`. result: the numbers that `pretrain` returns. log: Trainer's log history.
    """
    has_curve = save_curve(spec.output_dir, loss_curve(log))
    parts = [
        "## Training",
        markdown_table(_what(spec, data, result, rows_per_step * row_length)),
        "### Settings",
        markdown_table([*settings(spec, arguments, rows_per_step, row_length), *_choices(spec, arguments)]),
        f"### Measured on {len(data.eval):,} held-out rows",
        markdown_table(_measured(result, log)),
    ]
    write_run_section(spec.output_dir, "\n\n".join(parts + ([f"![Loss over optimizer steps]({CURVE})"] if has_curve else [])))


def loss_curve(log):
    """The figure of training and held-out loss, or None where nothing was logged."""
    train = [(line["step"], line["loss"]) for line in log if "loss" in line]
    held_out = [(line["step"], line["eval_loss"]) for line in log if "eval_loss" in line]
    series = {name: points for name, points in (("training", train), ("held-out", held_out)) if points}
    return line_figure(series, "Loss", "optimizer step", "loss") if series else None


def save_curve(folder, curve):
    """Write the figure of a curve into a folder; returns whether there was one."""
    if curve is None:
        return False
    partial = Path(folder) / f"{CURVE}.partial-{os.getpid()}"
    partial.write_bytes(curve.image)
    os.replace(partial, Path(folder) / CURVE)
    return True


def settings(spec, arguments, rows_per_step, row_length):
    """(name, value) of the settings that every run has."""
    schedule = getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type)
    return [
        ("learning rate", f"{arguments.learning_rate:g}, {schedule}, warmup {arguments.warmup_steps:g}"),
        ("rows per optimizer step", rows_per_step),
        ("tokens per row, at most", row_length),
        ("weight decay", arguments.weight_decay),
        ("gradient clipping", arguments.max_grad_norm),
        ("dtype of the weights", spec.dtype),
        ("seed", spec.seed),
    ]


def place_name(source):
    """How a card names a file, folder or id: local ones without their folder, so that no card tells of a machine."""
    local = Path(source).exists() or "*" in source
    return f"`{Path(source).name}`" if local else f"`{source}`"


def start_name(spec):
    """How a card names what a run started from."""
    if spec.model_path is None:
        return "new weights"
    named = place_name(spec.model_path)
    return f"a local checkpoint, {named}" if Path(spec.model_path).exists() else named


def _what(spec, data, result, tokens_per_step):
    stats = data.train.stats
    sources = [(part.source, part.weight) for part in spec.data.sources] or [(spec.data.source, None)]
    named = [place_name(source) + (f" (weight {weight:g})" if weight else "") for source, weight in sources]
    return [
        ("started from", start_name(spec)),
        ("data", ", ".join(named)),
        ("training documents", stats["documents"]),
        ("tokens of an epoch", stats["tokens"]),
        ("tokens trained on, padding included", result["steps"] * tokens_per_step),
        ("vocabulary", f"{len(data.tokenizer):,} tokens"),
        ("parameters", result["parameters"]),
        ("optimizer steps", result["steps"]),
    ]


def _choices(spec, arguments):
    optimizer = "muon, AdamW for what is no hidden matrix" if spec.optimizer == "muon" else arguments.optim
    rows = [("objective", spec.objective), ("optimizer", str(getattr(optimizer, "value", optimizer)))]
    rows += [("betas", f"{arguments.adam_beta1:g}, {arguments.adam_beta2:g}"), ("packing", spec.data.packing)]
    rows.append(("precision of the products", "bfloat16" if arguments.bf16 else "float16" if arguments.fp16 else spec.dtype))
    if spec.distributed:
        rows.append(("sharded by", ", ".join(f"{key} {value}" for key, value in spec.distributed.items())))
    return rows


def _measured(result, log):
    rows = [("loss", result["eval_loss"]), ("perplexity", result["eval_perplexity"])]
    rows.append(("perplexity of the unigram baseline", result["unigram_perplexity"]))
    last = {key: value for line in log for key, value in line.items() if key.startswith("metric/")}
    return rows + [(key.removeprefix("metric/").replace("/", ", ").replace("_", " "), last[key]) for key in sorted(last)]
