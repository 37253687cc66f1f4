"""What a conversion leaves beside the weights: `conversion_report.json`, and a section of the model card."""

import json
import os
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from hf_variants.convert.registry import find_family

REPORT = "conversion_report.json"
BEGIN, END = "<!-- hf_variants conversion: begin -->", "<!-- hf_variants conversion: end -->"
_VERSIONS = ("hf-variants", "transformers", "torch", "safetensors")


def make_report(source, target, proof, **facts):
    """The report as a dict; "untrained" are the settings that act in native training alone.

    Args:
        source, target: `sides.Side`.
        proof: `proof.Proof`.
        facts: what else is worth knowing (`source`, `kept`, `left`, ...).
    """
    ours, native = (source, target) if source.is_ours else (target, source)
    return {
        "to": "variants" if target.is_ours else "native",
        "family": native.config.model_type,
        "classes": [source.cls.__name__, target.cls.__name__],
        "dtype": str(target.dtype).removeprefix("torch."),
        "parameters": sum(tensor.numel() for tensor in ours.weights.meta.values()),
        "untrained": find_family(native.config.model_type).untrained(native.config),
        **facts,
        "proof": proof.to_dict(),
        "versions": {name: version(name) for name in _VERSIONS},
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_report(folder, report):
    """Write `conversion_report.json`, whole or not at all."""
    target = Path(folder) / REPORT
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, target)


def read_report(folder):
    """The report of a converted folder. Raises ValueError where there is none."""
    path = Path(folder) / REPORT
    if not path.is_file():
        raise ValueError(f"{str(folder)!r} holds no {REPORT}; give the source that it was converted from")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    kept = report.get("kept", []) if isinstance(report, dict) else None
    named = isinstance(kept, list) and all(isinstance(name, str) and Path(name).name == name for name in kept)
    if not named or not isinstance(report.get("source"), dict):
        raise ValueError(
            f"{path} is no report of a conversion; remove it, and give the source that the folder was converted from"
        )
    return report


def worst_layer(report):
    """(index, max |difference|) of the layer that differs most."""
    gaps = [layer["difference"] for layer in report["proof"]["layers"]]
    return max(enumerate(gaps), key=lambda pair: pair[1])


def card_section(report):
    """The report in markdown, between markers."""
    proof, (worst, gap) = report["proof"], worst_layer(report)
    rows, tokens = proof["tokens"]
    gradients = (
        f"loss {proof['loss']:.2g}, gradients {proof['gradients']:.2g} relative to the largest of their tensor"
        if proof["gradients"] is not None
        else f"not compared: {proof['gradients_left_out']}"
    )
    layers = ", ".join(f"{layer['difference']:.1e}" for layer in proof["layers"])
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    lines = [
        BEGIN,
        "## Conversion",
        "",
        f"`{report['classes'][0]}` ({report['source']['name']}) to `{report['classes'][1]}`, {report['dtype']}; proven "
        "equal before it was written:",
        "",
        "| compared | result |",
        "|---|---|",
        f"| weights, through the rules both ways | all {proof['weights']} tensors bitwise equal |",
        f"| logits, {rows} rows of {tokens} tokens in {proof['compared_in']} | max difference "
        f"{proof['logits']['difference']:.2g}, values up to {proof['logits']['largest']:.3g} |",
        f"| hidden states | max difference {gap:.2g}, after layer {worst} |",
        f"| loss and gradients | {gradients} |",
        *(f"| not compared: training | {text} |" for text in report["untrained"]),
        "",
        f"Max difference after each layer: {layers}. Random token ids; {versions}. Details: `{REPORT}`.",
        END,
    ]
    return "\n".join(lines)


def write_card_section(path, report):
    """Put the section at the end of a model card, or in the place of an older one."""
    path, section = Path(path), card_section(report)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if BEGIN in text and END in text:
        text = text[: text.index(BEGIN)] + section + text[text.index(END) + len(END) :]
    else:
        text = f"{text.rstrip()}\n\n{section}\n".lstrip()
    path.write_text(text, encoding="utf-8")
