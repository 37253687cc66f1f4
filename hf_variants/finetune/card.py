"""What the model card says of a fine-tuning run, all of it read from the run.

Notable here: files are named without their folders, and a base without a place others could find is called local.
"""

import os
from pathlib import Path

from ..hub.run_section import markdown_table, write_run_section
from ..report import line_figure

CURVE = "loss.svg"


def write_cards(folder, spec, arguments, result, log):
    """Write the section, and the curve of the losses beside it, into `folder` and its `merged`."""
    folders = [Path(folder)] + ([Path(folder) / "merged"] if (Path(folder) / "merged" / "config.json").is_file() else [])
    curve = loss_curve(log)
    for place in folders:
        if curve is not None:
            partial = place / f"{CURVE}.partial-{os.getpid()}"
            partial.write_bytes(curve.image)
            os.replace(partial, place / CURVE)
        write_run_section(place, section(spec, arguments, result, curve is not None))


def section(spec, arguments, result, has_curve=True):
    """The markdown of a run."""
    parts = ["## Fine-tuning", markdown_table(_what(spec, result)), "### Settings", markdown_table(_settings(spec, arguments))]
    names = sorted(set(result["before"]) | set(result["after"]))
    rows = [(name.replace("_", " "), result["before"].get(name), result["after"].get(name)) for name in names]
    held_out = result["examples"]["eval"]
    parts += [f"### Measured on {held_out:,} held-out examples", markdown_table(rows, ("", "before", "after"))]
    if has_curve:
        parts.append(f"![Loss over optimizer steps]({CURVE})")
    return "\n\n".join(parts)


def loss_curve(log):
    """The figure of training and held-out loss, or None where nothing was logged."""
    train = [(line["step"], line["loss"]) for line in log if "loss" in line]
    held_out = [(line["step"], line["eval_loss"]) for line in log if "eval_loss" in line]
    series = {name: points for name, points in (("training", train), ("held-out", held_out)) if points}
    return line_figure(series, "Loss", "optimizer step", "loss") if series else None


def _what(spec, result):
    base, source = spec.model_path, spec.data.source
    examples = result["examples"]
    rows = [
        ("task", spec.task),
        ("method", spec.method),
        ("started from", f"a local checkpoint, `{Path(base).name}`" if Path(base).exists() else f"`{base}`"),
        ("data", f"`{Path(source).name}`" if Path(source).exists() or "*" in source else f"`{source}`"),
        ("training examples", examples["train"]),
        ("trainable parameters", f"{result['trainable']:,} of {result['parameters']:,}"),
        ("optimizer steps", result["steps"]),
    ]
    if "learned_tokens" in result:
        learned = f"{result['learned_tokens']:,} of {result['tokens']:,}, loss on {spec.loss_on}"
        rows.append(("tokens learned per epoch", learned))
    if any(result.get("longer", {}).values()):
        rows.append((f"examples over {spec.data.sequence_length} tokens, {spec.data.over_long}", result["longer"]["train"]))
    if result.get("classes"):
        rows.append(("classes", ", ".join(result["classes"])))
    if result.get("merged"):
        rows.append(("merged logits differ at most by", result["merged"]["max_difference"]))
    return rows


def _settings(spec, arguments):
    rows_per_step = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    schedule = getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type)
    rows = [
        ("learning rate", f"{arguments.learning_rate:g}, {schedule}, warmup {arguments.warmup_steps:g}"),
        ("rows per optimizer step", rows_per_step),
        ("tokens per row, at most", spec.data.sequence_length),
        ("weight decay", arguments.weight_decay),
        ("gradient clipping", arguments.max_grad_norm),
        ("dtype of the weights", spec.dtype),
        ("seed", spec.seed),
    ]
    if spec.method != "full":
        adapter = spec.adapter
        targets = adapter.target_modules if isinstance(adapter.target_modules, str) else ", ".join(adapter.target_modules)
        rows.append(("adapter", f"rank {adapter.r}, alpha {adapter.alpha:g}, dropout {adapter.dropout:g}, on {targets}"))
    if hasattr(arguments, "beta"):
        rows.append(("beta of DPO", arguments.beta))
    return rows
