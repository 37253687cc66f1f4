"""Memory and time of training a config, before any machine is rented: estimates from the counts alone.

    states       16 bytes per parameter: fp32 weights, gradients and two Adam moments; sharded over all devices
    gathered      2 bytes per parameter of the two largest blocks, which FSDP gathers in bf16 while it computes
    activations   one input per block (activation checkpointing) and the working set of one block, in bf16

Notable here: states are counted as by Rajbhandari et al. 2020 (arXiv:1910.02054 §3), with everything in fp32; activations
after Korthikanti et al. 2022 (arXiv:2205.05198), without tensor parallelism.
"""

import math
from dataclasses import dataclass

from .counts import count_parameters
from .flops import flops_per_token

_STATE_BYTES, _COMPUTE_BYTES = 16, 2
# Allocators, communication buffers and fragmentation take their part.
_USABLE = 0.85


@dataclass(frozen=True)
class TrainingPlan:
    """What one device holds (bytes) and how long a run takes.

    Attributes:
        devices: over which the states are sharded.
        states, gathered, activations: bytes on one device. total: their sum.
        fits: whether the total is at most 85% of the device's memory.
        seconds: of the whole run; None where no tokens were given.
    """

    devices: int
    states: float
    gathered: float
    activations: float
    total: float
    fits: bool
    seconds: float | None


def training_plan(config, devices, memory=80e9, length=None, rows=1, tokens=None, peak_flops=9.89e14, mfu=0.4):
    """The `TrainingPlan` of fully sharded training (FSDP2, ZeRO-3) in bf16 with fp32 states.

    Args:
        devices: number of them. memory: bytes of each.
        length: tokens per row (None: max_position_embeddings). rows: per device and micro-batch.
        tokens: of the whole run. peak_flops: FLOP/s of a device. mfu: the share of it that is reached; an assumption.

    Raises:
        ValueError: for numbers that are not positive.
    """
    length = config.max_position_embeddings if length is None else length
    given = {"devices": devices, "memory": memory, "length": length, "rows": rows, "peak_flops": peak_flops, "mfu": mfu}
    for name, value in given.items():
        if not value > 0:
            raise ValueError(f"{name}={value} must be positive")
    counts = count_parameters(config)
    states = counts.total * _STATE_BYTES / devices
    gathered = 2 * _COMPUTE_BYTES * counts.total / config.num_hidden_layers if devices > 1 else 0.0
    activations = _activation_bytes(config, length, rows)
    total = states + gathered + activations
    seconds = None
    if tokens is not None:
        seconds = 3 * flops_per_token(config, length).total * tokens / (devices * peak_flops * mfu)
    return TrainingPlan(devices, states, gathered, activations, total, total <= _USABLE * memory, seconds)


def fewest_devices(config, limit=1 << 14, **options):
    """The smallest power of two of devices on which the plan fits, or None up to `limit`."""
    for exponent in range(int(math.log2(limit)) + 1):
        plan = training_plan(config, 1 << exponent, **options)
        if plan.fits:
            return plan
    return None


def _activation_bytes(config, length, rows):
    width = config.intermediate_size or 0
    if config.has_experts:
        active = config.num_experts_per_tok + (config.num_shared_experts or 0)
        width = max(width, active * config.moe_intermediate_size)
    heads = config.num_attention_heads * (config.query_head_dim + config.value_head_dim) * 2
    inputs = config.num_hidden_layers * config.hidden_size
    block = 8 * config.hidden_size + heads + 4 * width
    return _COMPUTE_BYTES * rows * length * (inputs + block)
