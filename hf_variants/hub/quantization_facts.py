"""What the card says of quantized weights: the method, from the config, and what was measured, from the report beside them.

Notable here: the section is empty where no report lies in the folder; nothing is measured again.
"""

import json
from pathlib import Path

import jinja2

TEMPLATE = Path(__file__).with_name("quantization.jinja")


def quantized_section(config, directory):
    """Markdown of what `quantization_report.json` in `directory` tells, or an empty string."""
    measured = quantization_measured(directory) if quantization_of(config) else None
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(measured=measured)


def quantization_of(config):
    """`awq, 4 bits` or the like, or None."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    given = given if isinstance(given, dict) else given.to_dict()
    method = str(getattr(given.get("quant_method"), "value", given.get("quant_method")))
    bits = given.get("bits") or (4 if given.get("load_in_4bit") else 8 if given.get("load_in_8bit") else None)
    groups = list((given.get("config_groups") or {}).values())
    if bits is None and len(groups) == 1:
        bits = groups[0]["weights"]["num_bits"]
    return f"{method}, {bits} bits" if bits else method


def quantization_measured(directory):
    """What `quantization_report.json` in `directory` says of the weights there, or None."""
    file = None if directory is None else Path(directory) / "quantization_report.json"
    if file is None or not file.is_file():
        return None
    report = json.loads(file.read_text(encoding="utf-8"))
    perplexity = dict(report.get("perplexity") or {})
    return {
        "method": f"{report['method']}, {report['bits']} bits, "
        + (f"groups of {report['group_size']}" if report["group_size"] > 0 else "one group per output")
        + (", symmetric" if report.get("symmetric") else "")
        + (f", by AutoAWQ {report['producer']['autoawq']}" if report.get("producer") else ""),
        "bits": report["bits"],
        "matrices": report["quantized_modules"],
        "bytes": report.get("bytes"),
        "source_bytes": report.get("source_bytes"),
        "calibration": report.get("calibration") or None,
        "how": perplexity.pop("how", None),
        "perplexity": perplexity,
        "divergence": report.get("divergence") or {},
        "starved": len(report.get("starved_experts") or ()),
    }
