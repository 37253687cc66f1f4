"""What came out of an extrapolation: a row per variant and reading, with mean and interval over seeds, and the files.

Notable here: means are of losses, and perplexities their exponentials; a length that a model refused says so in its cell.
"""

import csv
import json
import math
import os
from pathlib import Path

from ..ablation.statistics import interval
from ..report import Cards, Figure, Paragraph, Section, Table, write_report
from .extrapolation_plot import plot_extrapolation

COLUMNS = ("name", "table", "length", "start", "end", "seeds", "loss", "half_width", "perplexity", "refused")


def collect(spec, measured, trained_length):
    """dict of plain values: `rows` (one per variant and reading), `trained_length`, `lengths`, `confidence`, `seeds`.

    Args:
        measured: {(variant, seed): {reading: `measure_lengths`}}.

    A row holds `name`, `variant`, `reading`, `seeds` (how many), and `by_length` and `by_position`, whose entries have `loss`,
    `half_width` (of the loss, over seeds; None for one), `perplexity`, and `refused`.
    """
    rows, groups = [], {}
    for (variant, _), readings in measured.items():
        for reading, numbers in readings.items():
            groups.setdefault((variant, reading), []).append(numbers)
    order = [spec.base_name, *spec.variants]
    for (variant, reading), found in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
        rows.append(
            {
                "name": variant if reading == "as trained" else f"{variant}, {reading}",
                "variant": variant,
                "reading": reading,
                "seeds": len(found),
                "by_length": [_mean(entries, ("length",), spec.confidence) for entries in _across(found, "by_length")],
                "by_position": [
                    _mean(entries, ("start", "end"), spec.confidence) for entries in _across(found, "by_position")
                ],
            }
        )
    facts = {"lengths": spec.lengths, "methods": spec.methods, "rows_measured": spec.rows, "confidence": spec.confidence}
    return {"rows": rows, "trained_length": trained_length, "factor": spec.lengths[-1] / trained_length, **facts}


def _across(found, table):
    return list(zip(*(numbers[table] for numbers in found), strict=True))


def _mean(entries, keys, confidence):
    kept = {key: entries[0][key] for key in keys}
    losses = [entry["loss"] for entry in entries]
    if any(loss is None for loss in losses):
        refused = next(entry["refused"] for entry in entries if entry["loss"] is None)
        return {**kept, "loss": None, "half_width": None, "perplexity": None, "refused": refused}
    own = interval(losses, confidence)
    return {
        **kept,
        "loss": own.mean,
        "half_width": own.half_width,
        "perplexity": math.exp(min(own.mean, 100.0)),
        "refused": None,
    }


def cell(entry):
    """Perplexity of an entry as text, with the interval that its loss has over seeds."""
    if entry["perplexity"] is None:
        return "refused"
    if entry["half_width"] is None:
        return f"{entry['perplexity']:.4g}"
    low, high = (math.exp(min(entry["loss"] + sign * entry["half_width"], 100.0)) for sign in (-1, 1))
    return f"{entry['perplexity']:.4g} ({low:.4g} to {high:.4g})"


def in_words(results):
    """A line per row, and the first reason of each that refuses lengths."""
    reasons = {}
    for row in results["rows"]:
        cells = ", ".join(f"{cell(entry)} at {entry['length']:,}" for entry in row["by_length"])
        yield f"{row['name']}: perplexity {cells} ({row['seeds']} seed{'s' if row['seeds'] != 1 else ''})"
        for entry in row["by_length"]:
            if entry["refused"]:
                reasons.setdefault(row["name"], []).append((entry["length"], entry["refused"]))
    for name, refused in reasons.items():
        yield f"{name} refuses {', '.join(f'{length:,}' for length, _ in refused)} tokens: {refused[0][1]}"


def write_results(results, folder):
    """Write extrapolation.json, .csv and .png, and report.html; returns the path of the report."""
    folder = Path(folder)
    _write(folder / "extrapolation.json", lambda stream: json.dump(results, stream, indent=2))
    _write(folder / "extrapolation.csv", lambda stream: _write_csv(results, stream))
    picture = plot_extrapolation(results, folder / "extrapolation.png")
    return write_report(folder / "report.html", sections(results, picture), "Extrapolation", folder.name)


def _write(path, write):
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    with partial.open("w", encoding="utf-8", newline="") as stream:
        write(stream)
    os.replace(partial, path)


def _write_csv(results, stream):
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in results["rows"]:
        for table in ("by_length", "by_position"):
            for entry in row[table]:
                writer.writerow({"name": row["name"], "table": table, "seeds": row["seeds"], **entry})


def sections(results, picture):
    """The sections of the report."""
    rows, trained = results["rows"], results["trained_length"]
    how = (
        f"every length reads and predicts the same held-out tokens; trained on rows of {trained:,}; intervals at "
        f"{results['confidence']:.0%} over seeds, where there are several; rescaled by {results['factor']:g} at test time"
    )
    table = [[row["name"], row["seeds"], *(cell(entry) for entry in row["by_length"])] for row in rows]
    columns = ["positions", "seeds", *(f"{length:,} tokens" for length in results["lengths"])]
    longest = max(rows, key=lambda row: len(row["by_position"]))["by_position"]
    ranges = [f"{entry['start'] + 1:,}-{entry['end']:,}" for entry in longest]
    by_position = [
        [row["name"], *(cell(entry) for entry in row["by_position"]), *[""] * (len(ranges) - len(row["by_position"]))]
        for row in rows
    ]
    best = min((row for row in rows if row["by_length"][-1]["loss"] is not None), key=lambda row: row["by_length"][-1]["loss"],
               default=None)  # fmt: skip
    cards = [("trained at", trained, "tokens"), ("measured to", results["lengths"][-1], "tokens")]
    if best is not None:
        cards.append((f"best at {results['lengths'][-1]:,}", best["by_length"][-1]["perplexity"], best["name"]))
    told = [Cards(cards), *(Paragraph(line) for line in in_words(results)), Table(columns, table, "Perplexity by length", how)]
    figure = Figure(picture.read_bytes(), "Beyond the trained length", how, "perplexity by length, loss by position")
    position = Table(
        ["positions", *ranges], by_position, "Perplexity by position", "at the longest length that each one takes"
    )
    return [
        Section("What happens beyond the trained length", [*told, figure], "Perplexity on held-out text."),
        Section("By position", [position], "A row per way of telling positions."),
    ]
