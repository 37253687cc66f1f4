"""`hf-variants extend`: `context.extend_context`, and a page and figures of what it measured.

output_dir/extension.json   the numbers          output_dir/extension.html   tables and figures on one page
          /perplexity_by_position.svg   /passkey.svg
"""

import os
from pathlib import Path

from ..context.extend import extend_context
from ..hub import markdown_table, write_run_section
from ..report import Figure, Section, Table, extension_table, facts_table, line_figure, position_figure, write_report
from ..training.card import start_name
from ..training.processes import is_writer, print_once


def extend(spec, announce=print_once):
    """Run an `ExtendSpec`; returns the dict of `extend_context`."""
    result = extend_context(spec, announce)
    if is_writer():
        write_extension_report(spec, result)
        announce(f"context: the report is {Path(spec.output_dir) / 'extension.html'}")
    return result


def write_extension_report(spec, result):
    """Write the figures and the page of an extension into spec.output_dir."""
    folder = Path(spec.output_dir)
    blocks = extension_blocks(spec, result)
    for name, block in blocks.items():
        if isinstance(block, Figure):
            _write_bytes(folder / f"{name}.svg", block.image)
    lead = f"From {result['context_before']:,} to {result['context_after']:,} tokens with {result['method']}."
    sections = [Section("Context extension", list(blocks.values()), lead)]
    write_report(folder / "extension.html", sections, "Context extension", str(spec.model_path))
    write_run_section(folder, card_section(spec, result), name="context")


def card_section(spec, result):
    """The markdown of an extension for the model card."""
    facts = [
        ("started from", start_name(spec)),
        ("method", result["method"]),
        ("factor", result["factor"]),
        ("context before and after", f"{result['context_before']:,} and {result['context_after']:,} tokens"),
        (
            "steps of fine-tuning",
            sum(stage["steps"] for stage in result["stages"]) or (result["training"] or {}).get("steps", 0),
        ),
    ]
    groups = dict(result["before"])
    if result["training"]:
        groups[f"{result['method']}, fine-tuned"] = result["after"]
    buckets = next(iter(groups.values()))
    head = ("perplexity at tokens", *(f"{bucket['start'] + 1:,}–{bucket['end']:,}" for bucket in buckets))
    rows = [(name, *(bucket["perplexity"] for bucket in measured)) for name, measured in groups.items()]
    parts = ["## Longer context", markdown_table(facts), f"### Measured on {result['eval_rows']} held-out rows"]
    parts.append(markdown_table(rows, head))
    if result["passkey_after"]:
        found = [(f"{row['length']:,} tokens", f"{row['accuracy']:.0%}") for row in result["passkey_after"]]
        parts.append(markdown_table(found, ("pass keys found in texts of", "")))
    return "\n\n".join(parts)


def extension_blocks(spec, result):
    """{name: block} of the figures and tables of an extension, for a page."""
    method, original = result["method"], result["context_before"]
    after = {method: result["after"]} if result["training"] else None
    how = f"{result['eval_rows']} held-out rows; the same weights under each rule"
    how += f", then {method} after tuning" if after else ", without training"
    blocks = {
        "perplexity_by_position": position_figure(result["before"], after, original, how=how),
        "perplexity_table": extension_table(result["before"], after, "Perplexity by position", how),
    }
    if result["passkey_after"]:
        blocks.update(_passkey_blocks(spec, result, after is not None))
    if result["stages"]:
        columns = ["row length", "optimizer steps", "held-out loss", "tokens/s"]
        rows = [
            [stage["length"], stage["steps"], stage["eval_loss"], stage["tokens_per_second"]] for stage in result["stages"]
        ]
        blocks["stages"] = Table(columns, rows, "Stages", "held-out loss on rows of the stage's own length")
    blocks["proof"] = facts_table(_proof(result), "Proof that the scaling took effect", "read back from the model's rotations")
    return blocks


def _passkey_blocks(spec, result, trained):
    groups = dict(result["passkey_before"])
    if trained:
        groups[f"{result['method']}, fine-tuned"] = result["passkey_after"]
    texts = result["passkey_after"][0]["texts"]
    how = f"{texts} texts per length, a key of five digits at the depths {spec.passkey.depths}; found: greedy decoding says it"
    series = {name: [(row["length"], row["key_loss"]) for row in rows] for name, rows in groups.items()}
    columns = ["method", *(f"{row['length']:,} tokens" for row in result["passkey_after"])]
    rows = [[name, *(f"{row['accuracy']:.0%} (loss {row['key_loss']:.2f})" for row in rows)] for name, rows in groups.items()]
    marks = {"original length": result["context_before"]}
    title, axis = "Loss of the pass key", "tokens of the text"
    return {
        "passkey": line_figure(series, title, axis, "nats per token of the key", how, marks=marks, x_log2=True),
        "passkey_table": Table(columns, rows, "Pass keys found", how),
    }


def _proof(result):
    rows = {}
    for row in result["verification"]["rotary"]:
        rows[f"{row['key']}: rule"] = row["rope_type"]
        rows[f"{row['key']}: frequencies changed"] = f"{row['changed']} of {row['frequencies']}"
        rows[f"{row['key']}: longest wavelength stretched"] = row["largest_stretch"]
        rows[f"{row['key']}: attention factor"] = row["attention_factor"]
        rows[f"{row['key']}: relative error against the formula"] = row["relative_error"]
    return rows


def _write_bytes(path, content):
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.write_bytes(content)
    os.replace(partial, path)
