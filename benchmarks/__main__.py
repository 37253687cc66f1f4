"""`python -m benchmarks [CASE ...]`: measure the family against native Llama on the same weights, and print a table.

The shape is that of SmolLM2-135M with 12 of its 30 layers. Times are the best of several, taken in turn; ratios are native
time divided by ours, so that more is better.
"""

import json
import platform
import sys
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import gemm_gflops, memory_gigabytes_per_second, paired_seconds
from hf_variants import VariantsConfig, VariantsForCausalLM

SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def build_pair():
    """Native Llama and the family's model with the same weights."""
    native = LlamaForCausalLM(LlamaConfig(**SHAPE))
    ours = VariantsForCausalLM(VariantsConfig(**SHAPE))
    ours.load_state_dict(native.state_dict())
    return native, ours


def prefill(pair, batch=2, length=512):
    """One forward over a prompt; tokens per second."""
    ids = torch.randint(0, SHAPE["vocab_size"], (batch, length))
    calls = [lambda model=model: torch.no_grad()(model.eval())(ids, logits_to_keep=1) for model in pair]
    return batch * length, paired_seconds(*calls)


def decode(pair, prompt=32, tokens=32):
    """Greedy generation of one row with a DynamicCache; tokens per second."""
    ids = torch.randint(0, SHAPE["vocab_size"], (1, prompt))
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    calls = [lambda model=model: model.eval().generate(ids, **options) for model in pair]
    return tokens, paired_seconds(*calls, repeats=3)


def train(pair, batch=2, length=512):
    """Forward and backward of a training step; tokens per second."""
    ids = torch.randint(0, SHAPE["vocab_size"], (batch, length))

    def step(model):
        model.train().zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    calls = [lambda model=model: step(model) for model in pair]
    return batch * length, paired_seconds(*calls, repeats=3)


CASES = {"prefill": prefill, "decode": decode, "train": train}


def main(names):
    """Run the named cases (all when none is named), print the table, and write runs/benchmarks.json."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"unknown case {unknown[0]!r}; choose from {list(CASES)}")
    pair, rows = build_pair(), {}
    limits = {"fp32 GEMM GFLOP/s": gemm_gflops(1024, 1536, 576), "memory GB/s": memory_gigabytes_per_second()}
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, {date.today()}"
    table = Table("case", "native tokens/s", "ours tokens/s", "ratio", title=f"Llama shape, fp32 ({machine})")
    for name in names or CASES:
        tokens, (native, ours) = CASES[name](pair)
        rows[name] = {"native": tokens / native, "ours": tokens / ours, "ratio": native / ours}
        table.add_row(name, f"{tokens / native:.1f}", f"{tokens / ours:.1f}", f"{native / ours:.2f}")
    console = Console()
    console.print(table)
    console.print(", ".join(f"{name}: {value:.1f}" for name, value in limits.items()))
    target = Path("runs/benchmarks.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"machine": machine, "limits": limits, "cases": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
