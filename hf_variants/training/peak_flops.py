"""What a machine could compute at most, to hold the speed of training against.

Notable here: accelerators by their data sheets (dense matrix products, no sparsity); a CPU by a product that is measured.
"""

import time

import torch

# bf16 / fp16 tensor-core FLOP/s without sparsity, from the makers' data sheets; the first name found in the device's wins, so
# narrower ones stand first. A slice of a card (MIG) has none.
_DATA_SHEETS = (
    ("MIG", None),
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H200 NVL", 8.355e14),
    ("H200", 9.89e14),
    ("H100 NVL", 8.355e14),
    ("H100 PCIe", 7.56e14),
    ("H100", 9.89e14),
    ("A100", 3.12e14),
    ("A10", 1.25e14),
    ("L40S", 3.62e14),
    ("L4", 1.21e14),
    ("MI300X", 1.307e15),
    ("MI250X", 3.83e14),
    ("4090", 1.65e14),
    ("3090", 7.1e13),
    ("V100", 1.25e14),
    ("T4", 6.5e13),
)


def data_sheet(name):
    """(part of the name of an accelerator that is known, its FLOP/s in bf16); FLOP/s are None where none are known."""
    return next(((part, value) for part, value in _DATA_SHEETS if part in name), (None, None))


def peak_flops(given=None, dtype=torch.float32):
    """(FLOP/s of one process's device, how it is known), or (None, reason).

    Args:
        given: a number the user names, which wins.
        dtype: of the product that is measured on a CPU.
    """
    if given is not None:
        return given, "as given"
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        part, value = data_sheet(name)
        if value is not None:
            return value, f"data sheet of {part}, bf16"
        return None, f"unknown for {name}; set peak_flops"
    return measured_flops(
        dtype
    ), f"a {str(dtype).removeprefix('torch.')} matrix product measured on {torch.get_num_threads()} thread(s)"


def measured_flops(dtype=torch.float32, size=768, repeats=20):
    """FLOP/s of the fastest of a few square matrix products on the CPU."""
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    left @ right
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
