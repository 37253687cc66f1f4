"""The report of an ablation: what the seeds tell, the table, the plots, and what was equal."""

from pathlib import Path

from ..report import Cards, Figure, Paragraph, Section, Table, write_report
from .plots import plot_curves, plot_differences
from .results import statements

_BUDGETS = {
    "none": "Nothing was matched: every variant was trained for the steps of its recipe.",
    "parameters": "Every variant has as many parameters as the base: a width was adjusted.",
    "active_parameters": "Every variant has as many active parameters per token as the base: a width was adjusted.",
    "flops": "Every variant was trained with as many FLOPs as the base: the number of steps was adjusted.",
    "kv_bytes": "Every variant caches as many bytes per token as the base: a width of its attention was adjusted.",
}


def write_ablation_report(results, spec):
    """Write plots/*.png and report.html; returns the path of the report."""
    root = Path(spec.output_dir)
    (root / "plots").mkdir(parents=True, exist_ok=True)
    differences = plot_differences(results["rows"], root / "plots" / "differences.png", results["confidence"])
    curves = plot_curves(results["curves"], root / "plots" / "held_out_loss.png")
    sections = [_told(results, differences, spec), _equal(results), _trained(results, curves), _runs(results)]
    return write_report(root / "report.html", sections, "Ablation", Path(spec.output_dir).name)


def _told(results, picture, spec):
    rows = results["rows"]
    measured = [row for row in rows if row["mean_loss"] is not None]
    waiting = sum(run["status"] == "waiting" for run in results["runs"])
    blocks = []
    if measured:
        best = min(measured, key=lambda row: row["mean_loss"])
        items = [
            ("lowest mean loss", best["mean_loss"], best["variant"]),
            ("variants", len(rows), f"{len(spec.seeds)} seeds each"),
            ("runs", sum(run["status"] == "finished" for run in results["runs"]), f"of {len(results['runs'])} finished"),
            (
                "beyond noise",
                sum(row["verdict"] in ("better", "worse") for row in rows),
                f"of {results['comparisons']} compared",
            ),
        ]
        blocks.append(Cards(items))
    blocks += [Paragraph(line) for line in statements(results)]
    if waiting:
        blocks.append(Paragraph(f"{waiting} runs are not finished; the same command goes on with them."))
    confidence = f"{results['confidence']:.0%}"
    how = (
        f"held-out loss in nats per token; {confidence} intervals by Student's t over seeds; differences paired by seed; each "
        f"interval is of one comparison alone, verdicts and p are at {confidence} over all {results['comparisons']} "
        "comparisons together (Holm)"
    )
    columns = ["variant", "against", "seeds", "diverged", "mean loss", "±", "difference", "± ", "p (Holm)", "verdict"]
    names = ("variant", "against", "seeds", "diverged", "mean_loss", "half_width", "difference", "difference_half_width")
    table = [[_cell(name, row[name]) for name in (*names, "corrected_p_value", "verdict")] for row in rows]
    blocks.append(Table(columns, table, "Variants", how))
    loads = [[row["variant"], row["expert_load_min"], row["expert_load_max"]] for row in rows if row["expert_load_max"]]
    if loads:
        even = "tokens of the least and of the most used expert of any layer, relative to even use, at the end of training"
        blocks.append(Table(["variant", "least used", "most used"], loads, "Load of the experts", even))
    if picture is not None:
        blocks.append(_figure(picture, "Differences from what each is compared with", how))
    return Section("What the seeds tell", blocks, "A difference is one only where it stands out of the noise of the seeds.")


def _equal(results):
    columns = [
        *("variant", "changes", "adjusted to match", "parameters", "active", "forward FLOPs / token", "KV bytes / token"),
        *("steps", "training FLOPs", "budget off by (%)"),
    ]
    rows = []
    for row in results["rows"]:
        off = row["budget_difference"]
        costs = [row[name] for name in ("parameters", "active_parameters", "flops_per_token", "kv_bytes_per_token", "steps")]
        said = [row["variant"], _words(row["changes"]) or "the base", _words(row["matched"]) or "nothing"]
        rows.append([*said, *costs, row["training_flops"], None if off is None else 100 * off])
    how = "counted from the configs; KV bytes in 16-bit numbers, mean over a row; training FLOPs = 3 x forward x tokens"
    return Section("What was equal", [Table(columns, rows, "Budgets", how)], _BUDGETS[results["budget"]])


def _trained(results, picture):
    blocks = [] if picture is None else [_figure(picture, "Held-out loss", "mean over seeds; the band is their range")]
    return Section("Training", blocks or [Paragraph("No run has logged a held-out loss yet.")])


def _runs(results):
    names = (
        "variant",
        "seed",
        "status",
        "eval_loss",
        "eval_perplexity",
        "unigram_perplexity",
        "steps",
        "tokens_per_second",
        "seconds",
    )
    rows = [[_cell(name, run.get(name)) for name in names] for run in results["runs"]]
    reasons = [f"{run['variant']}, seed {run['seed']}: {run['reason']}" for run in results["runs"] if run.get("reason")]
    return Section("Runs", [Table([name.replace("_", " ") for name in names], rows), *map(Paragraph, reasons)])


def _cell(name, value):
    """Losses with the digits in which variants differ; three significant ones, as tables show numbers, would hide them."""
    losses = ("mean_loss", "half_width", "difference", "difference_half_width", "eval_loss")
    return f"{value:.4f}" if name in losses and value is not None else value


def _figure(path, title, how):
    return Figure(path.read_bytes(), title, how, title)


def _words(mapping):
    return ", ".join(f"{key}={value}" for key, value in mapping.items())
