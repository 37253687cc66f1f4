"""The page and the model card of a seq2seq run, all of it read from the run."""

from pathlib import Path

from ..finetune.card import adapter_words
from ..hub.run_section import markdown_table, write_run_section
from ..report import Cards, Paragraph, Samples, Section, Table, facts_table, line_figure, write_report
from ..training.card import CURVE, loss_curve, place_name, save_curve, start_name

MEASURES = {"exact_match": "exact match", "bleu": "BLEU", "chrf": "chrF"}


def write_outcome(spec, arguments, result, log):
    """Write report.html, the curve of the losses and the section of the model card; returns the path of the page."""
    folder, curve = Path(spec.output_dir), loss_curve(log)
    write_run_section(folder, card_section(spec, arguments, result, save_curve(folder, curve)))
    if result.get("merged"):
        write_run_section(folder / "merged", card_section(spec, arguments, result, has_curve=False))
    page = folder / "report.html"
    return write_report(page, sections(spec, arguments, result, log, curve), "Sequence to sequence", subtitle=_title(spec))


def sections(spec, arguments, result, log, curve):
    """The `Section`s of the page."""
    held_out = result["held_out"]
    how = f"the final model wrote all {held_out['examples']:,} held-out targets; {_how_written(spec)}"
    cards = [
        ("exact match, held out", f"{held_out['exact_match']:.1%}", f"training pairs {result['training']['exact_match']:.1%}"),
        ("BLEU", f"{held_out['bleu']:.2f}", held_out["bleu_signature"]),
        ("chrF", f"{held_out['chrf']:.2f}", held_out["chrf_signature"]),
        ("training", f"{result['seconds']:,.0f} s", f"{result['steps']:,} steps, {result['parameters']:,} parameters"),
    ]
    blocks = [Cards(cards, how), _measures(result)]
    if result["repeated"]:
        blocks.append(Paragraph(f"{result['repeated']} held-out sources also stand in the training pairs."))
    page = [Section("Measured", blocks)]
    if result["by_group"]:
        rows = [[name, 100 * share, count] for name, (share, count) in result["by_group"].items()]
        table = Table(["kind of pair", "exact match (%)", "held-out pairs"], rows, how=how)
        page.append(Section("By kind of pair", [table]))
    curves = [curve] if curve is not None else []
    series = {
        name: [
            (line["step"], line[f"eval_{key}"] * (100 if key == "exact_match" else 1)) for line in log if f"eval_{key}" in line
        ]
        for key, name in MEASURES.items()
    }
    if any(series.values()):
        how = f"the first {min(spec.generated, held_out['examples'])} held-out pairs, written at every evaluation"
        curves.append(line_figure(series, "What was written", "optimizer step", "per cent, or score", how))
    if curves:
        page.append(Section("During training", curves))
    items = [
        {"source": "right" if row["written"].strip() == row["target"].strip() else f"wrong, should be: {row['target']}",
         "prompt": f"{row['source']} → ", "text": row["written"]}
        for row in result["samples"]
    ]  # fmt: skip
    if items:
        page.append(Section("Samples", [Samples(items, "the first held-out pairs")]))
    page.append(Section("Run", [facts_table(dict(_facts(spec, arguments, result)))]))
    return page


def card_section(spec, arguments, result, has_curve):
    """The markdown of a run."""
    rows = [(MEASURES[key], result["training"][key], result["held_out"][key]) for key in MEASURES]
    count = result["held_out"]["examples"]
    parts = ["## Training pairs", markdown_table(_facts(spec, arguments, result)), f"### Measured on {count:,} held-out pairs"]
    parts.append(markdown_table(rows, ("", "training pairs", "held-out pairs")))
    parts.append(f"BLEU `{result['held_out']['bleu_signature']}`, chrF `{result['held_out']['chrf_signature']}`.")
    if has_curve:
        parts.append(f"![Loss over optimizer steps]({CURVE})")
    return "\n\n".join(parts)


def _measures(result):
    rows = [
        [name.replace("_", "-") + " pairs", 100 * part["exact_match"], part["bleu"], part["chrf"], part["examples"]]
        for name, part in (("held_out", result["held_out"]), ("training", result["training"]))
    ]
    return Table(["pairs", "exact match (%)", "BLEU", "chrF", "written"], rows)


def _facts(spec, arguments, result):
    data = spec.data
    rows_per_step = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    schedule = getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type)
    facts = [
        ("started from", start_name(spec)),
        ("data", place_name(data.source)),
        ("training pairs", result["pairs"]["training"]),
        ("parameters", result["parameters"]),
        *_adapter_facts(spec, result),
        ("optimizer steps", result["steps"]),
        ("optimizer", {"muon": "Muon, AdamW for the rest", "adamw": "AdamW"}[spec.optimizer]),
        ("learning rate", f"{arguments.learning_rate:g}, {schedule}, warmup {arguments.warmup_steps:g}"),
        ("pairs per optimizer step", rows_per_step),
        ("tokens read and written, at most", f"{data.max_source_length} and {data.max_target_length}"),
        ("held-out loss", result["eval_loss"]),
        ("seed", spec.seed),
    ]
    longer = sum(sum(part.values()) for part in result["longer"].values())
    return facts + ([(f"sources and targets that were too long, {data.over_long}", longer)] if longer else [])


def _adapter_facts(spec, result):
    if spec.method == "full":
        return []
    facts = [("method", spec.method), ("trained parameters", result["trainable"]), ("adapter", adapter_words(spec.adapter))]
    merged = result.get("merged")
    return facts + ([("merged logits differ at most by", merged["max_difference"])] if merged else [])


def _how_written(spec):
    from .run import generation_options

    return "generation: " + ", ".join(f"{name}={value}" for name, value in generation_options(spec).items())


def _title(spec):
    return f"{Path(spec.data.source).name}: {spec.data.source_key} to {spec.data.target_key}"
