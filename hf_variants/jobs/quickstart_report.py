"""The report of the quickstart: what each stage measured, as plots and tables with how they were obtained."""

import math

from ..report import (
    Cards,
    Paragraph,
    Samples,
    Section,
    bar_figure,
    facts_table,
    line_figure,
    loss_figure,
    quantization_table,
    write_report,
)
from .extension import extension_blocks


def write_quickstart_report(path, specs, results):
    """Write the page; returns its path."""
    sections = [
        _overview(results),
        _training(specs["pretrain"], results),
        _context(specs["extend"], results["extend"]),
        _formats(results),
        _samples(specs["generate"], results),
        _reload(),
    ]
    return write_report(path, sections, "Quickstart", "a small model, from text to 4 bits")


def _overview(results):
    trained, extended = results["pretrain"], results["extend"]
    awq = results["comparison"][-1]
    items = [
        ("held-out perplexity", trained["eval_perplexity"], f"unigram baseline {trained['unigram_perplexity']:.1f}"),
        ("bits per byte", results["evaluate"]["bits_per_byte"], "held-out, short context"),
        ("context", extended["context_after"], f"from {extended['context_before']} tokens"),
        ("4-bit perplexity", awq["perplexity"], f"bf16 {results['comparison'][0]['perplexity']:.2f}"),
    ]
    return Section("Overview", [Cards(items)], "One run of the whole job on one text.")


def _training(spec, results):
    trained, log = results["pretrain"], results["training_log"] or []
    train = [(line["step"], line["loss"]) for line in log if "loss" in line]
    held_out = [(line["step"], line["eval_loss"]) for line in log if "eval_loss" in line]
    blocks = []
    if train:
        baseline = {"unigram": math.log(trained["unigram_perplexity"])}
        how = "training: mean of each logged span; held-out: whole documents"
        blocks.append(loss_figure(train, held_out, baseline, how=how))
    loads = [line for line in log if "expert_load_max" in line]
    if loads:
        series = {
            "most used expert": [(line["step"], line["expert_load_max"]) for line in loads],
            "least used expert": [(line["step"], line["expert_load_min"]) for line in loads],
        }
        how = "tokens of the most and least used expert of any layer, relative to even use, over each logged span"
        figure = line_figure(series, "Expert load", "optimizer step", "relative load", how, levels={"even": 1.0})
        blocks.append(figure)
    facts = {
        "parameters": trained["parameters"],
        "optimizer steps": trained["steps"],
        "tokens per second (training steps alone)": trained["tokens_per_second"],
        "held-out perplexity": trained["eval_perplexity"],
        "unigram perplexity (add-one smoothed)": trained["unigram_perplexity"],
        "held-out perplexity, windows by document": results["evaluate"]["perplexity"],
        "bits per byte": results["evaluate"]["bits_per_byte"],
    }
    blocks.append(facts_table(facts, "Pretraining", "held-out documents are whole documents that training never saw"))
    return Section("Pretraining", blocks, f"From new weights on {spec.data.sequence_length}-token rows.")


def _context(spec, extended):
    lead = f"From {extended['context_before']} to {extended['context_after']} tokens with {spec.method}."
    return Section("Context extension", list(extension_blocks(spec, extended).values()), lead)


def _formats(results):
    records, group_size = results["comparison"], results["quantize"]["awq"]["group_size"]
    how = (
        f"the extended model, reloaded with from_pretrained; {records[0]['tokens']:,} held-out tokens, greedy "
        f"decoding of one row, group size {group_size}; bytes are those of the safetensors files, embeddings included"
    )
    perplexities = {record["name"]: record["perplexity"] for record in records}
    blocks = [
        quantization_table(records, "bf16, rounding and AWQ", how),
        bar_figure(perplexities, "Held-out perplexity by format", "perplexity"),
    ]
    warnings = results["quantize"]["awq"].get("warnings") or []
    return Section("Quantization", blocks + [Paragraph(text) for text in warnings], "4 bits per weight of the layers.")


def _samples(spec, results):
    options = ", ".join(f"{name}={value}" for name, value in spec.generation.items())
    samples = Samples(results["samples"], f"seed {spec.seed}; {options}")
    return Section("Samples", [samples], "Continuations by each checkpoint.")


def _reload():
    lines = (
        "import hf_variants",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        'model = AutoModelForCausalLM.from_pretrained("runs/quickstart/awq")',
    )
    lead = "pretrained, extended, bf16, rtn and awq are directories beside this page."
    return Section("Loading the checkpoints", [Paragraph(line) for line in lines], lead)
