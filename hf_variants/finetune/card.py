"""What the model card says of a fine-tuning run, all of it read from the run.

Notable here: files are named without their folders, and a base without a place others could find is called local.
"""

from pathlib import Path

from ..hub.run_section import markdown_table, write_run_section
from ..training.card import CURVE, loss_curve, place_name, save_curve, settings, start_name


def write_cards(folder, spec, arguments, result, log):
    """Write the section, and the curve of the losses beside it, into `folder` and its `merged`."""
    folders = [Path(folder)] + ([Path(folder) / "merged"] if (Path(folder) / "merged" / "config.json").is_file() else [])
    curve = loss_curve(log)
    for place in folders:
        write_run_section(place, section(spec, arguments, result, save_curve(place, curve)))


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


def adapter_words(adapter):
    """An `AdapterSpec` in a line."""
    targets = adapter.target_modules if isinstance(adapter.target_modules, str) else ", ".join(adapter.target_modules)
    return f"rank {adapter.r}, alpha {adapter.alpha:g}, dropout {adapter.dropout:g}, on {targets}"


def _what(spec, result):
    examples = result["examples"]
    rows = [
        ("task", spec.task),
        ("method", spec.method),
        ("started from", start_name(spec)),
        ("data", place_name(spec.data.source)),
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
    rows = settings(spec, arguments, rows_per_step, spec.data.sequence_length)
    if spec.method != "full":
        adapter = spec.adapter
        rows.append(("adapter", adapter_words(adapter)))
    if hasattr(arguments, "beta"):
        rows.append(("beta of DPO", arguments.beta))
    return rows
