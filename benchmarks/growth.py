"""`python -m benchmarks.growth [AXIS ...]`: how the cost of a forward grows with length, width, layers, experts, batch.

Each axis is a handful of small models (or inputs) run beside native in turn, and the matrix FLOPs that the family's own
counters give for them; all are divided by their first point, so that lines on each other grow alike. One JSON file and one
plot per axis. The axis `window` is a prefill through a window of 512, whose FLOPs grow with the length alone.
"""

import argparse
import json
import statistics
from pathlib import Path

from transformers import LlamaConfig, MistralConfig, MixtralConfig

from benchmarks import machine
from benchmarks.case import OURS, REFERENCE, alternate
from benchmarks.files import write_atomically
from benchmarks.generation import prefill_of
from benchmarks.pairs import models, random_ids
from hf_variants.analysis import flops_per_token
from hf_variants.report.plots import line_figure

BASE = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _llama(**keys):
    return LlamaConfig(**{**BASE, **keys})


def _wide(width):
    return _llama(
        hidden_size=width, intermediate_size=11 * width // 4, num_attention_heads=width // 64, num_key_value_heads=width // 128
    )


def _mixture(experts):
    return MixtralConfig(
        **{**BASE, "intermediate_size": 256}, num_local_experts=experts, num_experts_per_tok=2, sliding_window=None
    )


def _window(length):
    return MistralConfig(**BASE, sliding_window=512)


# axis -> (values, value -> native config, value -> (batch, tokens), label of the axis)
AXES = {
    "length": ((256, 512, 1024, 2048), lambda n: _llama(), lambda n: (1, n), "tokens of the row"),
    "width": ((128, 256, 512, 1024), _wide, lambda n: (1, 256), "hidden size"),
    "layers": ((1, 2, 4, 8), lambda n: _llama(num_hidden_layers=n), lambda n: (1, 256), "layers"),
    "experts": ((2, 4, 8, 16), _mixture, lambda n: (1, 512), "experts, 2 of them chosen per token"),
    "batch": ((1, 2, 4, 8), lambda n: _llama(), lambda n: (n, 256), "rows of 256 tokens"),
    "window": ((2048, 4096, 8192, 16384), _window, lambda n: (1, n), "tokens of the row, window of 512"),
}


def point(config, batch, length, seconds):
    """{side: seconds} of one forward, and its matrix FLOPs (head on the last token alone)."""
    pair = models(config)
    ids = random_ids(config, batch, length)
    taken, _ = alternate({side: prefill_of(model, ids) for side, model in pair.items()}, 5, seconds)
    counts = flops_per_token(pair[OURS].config, length)
    flops = (counts.total - counts.parts["lm_head"]) * batch * length + counts.parts["lm_head"] * batch
    return {**{side: statistics.median(wall for wall, _ in times) for side, times in taken.items()}, "flops": flops}


def grown(name, seconds=3.0):
    """The points of one axis: {"axis", "label", "machine", "points": {value: numbers}}."""
    values, make, shape, label = AXES[name]
    points = {value: point(make(value), *shape(value), seconds) for value in values}
    return {"axis": name, "label": label, "machine": machine.describe(), "points": points}


def figure_of(result):
    """Lines over the axis, each divided by its first point."""
    points = {int(value): numbers for value, numbers in result["points"].items()}
    first = next(iter(points.values()))
    names = {OURS: "ours", REFERENCE: "native", "flops": "counted FLOPs"}
    series = {shown: [(value, numbers[key] / first[key]) for value, numbers in points.items()] for key, shown in names.items()}
    how = f"Median seconds of one forward, sides in turn in one process; {result['machine']}."
    return line_figure(
        series, f"Growth with {result['axis']}", result["label"], "times the first point", how, log_y=True, x_log2=True
    )


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"of {', '.join(AXES)}; all when none is named")
    parser.add_argument("--results", type=Path, default=Path("runs/benchmarks"))
    options = parser.parse_args(argv)
    unknown = [name for name in options.axes if name not in AXES]
    if unknown:
        raise SystemExit(f"unknown axis {unknown[0]!r}; choose from {list(AXES)}")
    for name in options.axes or AXES:
        target = options.results / f"growth_{name}.json"
        if target.is_file() and not options.axes:
            print(f"{name}: has a result ({target}), kept")
            continue
        result = grown(name)
        write_atomically(json.dumps(result, indent=2), target)
        write_atomically(figure_of(result).image.decode(), target.with_suffix(".svg"))
        print(f"{name}: {target.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
