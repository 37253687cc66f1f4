"""What the machine can do: the limits that every measured row is compared with."""

import time

import torch


def best_seconds(function, repeats=5):
    """Fewest seconds of `repeats` calls, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def paired_seconds(first, second, repeats=5):
    """Fewest seconds of either function, called in turn so that both see the same machine."""
    first()
    second()
    times = ([], [])
    for _ in range(repeats):
        for function, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def gemm_gflops(rows, columns, inner, dtype=torch.float32):
    """GFLOP/s of one matrix product [rows, inner] x [inner, columns]."""
    left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
    return 2 * rows * columns * inner / best_seconds(lambda: left @ right) / 1e9


def memory_gigabytes_per_second(megabytes=256):
    """GB/s at which one thread pool reads weights: a sum over a large tensor."""
    weights = torch.ones(megabytes * 2**18)
    return weights.numel() * 4 / best_seconds(weights.sum) / 1e9
