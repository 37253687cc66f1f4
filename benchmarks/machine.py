"""What the machine can do: the limits that every measured row is compared with.

Notable here: the limits are taken in the same process and minutes as the rows, at the shapes of the models, because a share of
a limit that was measured on another day says nothing on a shared machine.
"""

import os
import platform
import time
from datetime import date

import torch
import transformers


def best_seconds(function, repeats=5):
    """Fewest seconds of `repeats` calls, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def gemm_gflops(rows, columns, inner, dtype=torch.float32):
    """GFLOP/s of one matrix product [rows, inner] x [inner, columns]."""
    left, right = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    return 2 * rows * columns * inner / best_seconds(lambda: left @ right) / 1e9


def streaming_gigabytes_per_second(rows, columns, dtype=torch.float32, megabytes=256):
    """GB/s at which weights [rows, columns] are read by products with one vector, over more of them than a cache holds."""
    weights = torch.randn(rows, columns).to(dtype)
    size = weights.numel() * weights.element_size()
    copies = [weights.clone() for _ in range(max(2, megabytes * 2**20 // size))]
    vector = torch.randn(1, columns).to(dtype)

    def stream():
        for matrix in copies:
            torch.nn.functional.linear(vector, matrix)

    return len(copies) * size / best_seconds(stream, repeats=3) / 1e9


def limits(hidden=576, width=1536, tokens=1024):
    """{name: value}: matrix products at the shape of SmolLM2-135M's feed-forward, and the streaming of its weights."""
    found = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        found[f"{name} GEMM GFLOP/s"] = gemm_gflops(tokens, width, hidden, dtype)
        found[f"{name} weights GB/s"] = streaming_gigabytes_per_second(width, hidden, dtype)
    return found


def describe():
    """One line: kind of machine, versions, date. No names."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, {date.today()}"
    )
