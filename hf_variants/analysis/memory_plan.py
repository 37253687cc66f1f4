"""Memory of training or serving a config on each device, phase by phase of a step, before any machine is rented.

    weights, gradients, optimizer    bytes per parameter, as DDP, ZeRO 1-3 (FSDP), tensor and expert parallelism divide them
    activations      what each layer keeps for its backward pass (`activations.py`), or its input alone
    head             one chunk of logits, and the gradients that the fused loss makes in the forward pass
    workspace        what the layer that is being differentiated needs for a moment
    communication    buckets of DDP; what FSDP gathers; gradients on their way

Notable here: a peak is not the sum of all parts, for gradients grow while activations go: the phases (loss, each layer's
backward pass, the embedding's, the optimizer's step) are walked through, and the largest is the peak. States after Rajbhandari
et al. 2020 (arXiv:1910.02054 §3, §5); activations after Korthikanti et al. 2022 (arXiv:2205.05198), less what is recomputed.
"""

import math

from ..modeling.logit_chunks import CHUNK_BYTES
from ..modeling.parallel_plans import splits_attention, splits_experts
from .counts import check_row
from .joined import is_pair, joined_parameters, sees_images, text_of
from .memory_batch import PRECISIONS
from .memory_phases import generating, layout_of, training

PURPOSES = ("train", "generate")
SHARDINGS = {
    "none": "one copy",
    "ddp": "a copy of everything on each device",
    "zero1": "optimizer states divided (ZeRO-1)",
    "zero2": "optimizer states and gradients divided (ZeRO-2)",
    "fsdp": "weights too (ZeRO-3, FSDP2)",
}
OPTIMIZERS = ("adamw", "adamw_8bit", "muon", "sgd")
# parts of a vision-language model, as its recipe trains them
IMAGE_PARTS = ("tower", "bridge", "text")
# Allocators and fragmentation take their part.
USABLE = 0.85


def plan_memory(
    source,
    *,
    purpose="train",
    length=None,
    encoder_length=None,
    images=None,
    trains=None,
    rows=1,
    dtype="mixed",
    optimizer="adamw",
    checkpointing=False,
    accumulation=1,
    devices=1,
    sharding=None,
    tensor_parallel=1,
    expert_parallel=1,
    memory=None,
    device="cuda",
):
    """Bytes on each device, by part, at the height of each phase.

    Args:
        source: what `convert.read_config` reads: a config, ours or native, a preset's name, a .json, a folder or a Hub id.
        purpose: `train`, or `generate` (weights, cache and one prefill).
        length, rows: tokens per row (None: `max_position_embeddings`), and rows per micro-batch of one data-parallel rank.
        encoder_length: tokens that the encoder of an encoder-decoder reads for a row, or states that the cross-attention of a
            decoder alone reads; None: as many as the row has.
        images: images in a row of a vision-language model, of the tower's own size; None: one.
        trains: parts of a vision-language model that are trained, of `IMAGE_PARTS`, as a phase of its recipe names them (gated
            cross-attentions belong to the bridge); None: all of them.
        dtype: `float32`, `bfloat16` (all of it), or `mixed` (fp32 weights, autocast to bfloat16), which is for training alone.
        optimizer: `adamw` (two moments in the dtype of the weights), `adamw_8bit` (bitsandbytes), `muon` (this package's, one
            momentum for hidden matrices, AdamW for the rest) or `sgd` without momentum.
        checkpointing: activation checkpointing of every layer.
        accumulation: micro-batches per optimizer step; from 2 on gradients lie there during the forward pass.
        devices: all of them. Data-parallel ranks are devices / tensor_parallel.
        sharding: a key of `SHARDINGS`; None is `none` where no data-parallel ranks are left, otherwise `fsdp` for training and
            `ddp` for generating, which has neither gradients nor optimizer to divide and takes `none`, `ddp` or `fsdp`.
        tensor_parallel, expert_parallel: devices that share a layer's heads and channels, or its routed experts.
            tensor_parallel must divide what it splits, but for the vocabulary, of which the largest share is counted. Experts
            are laid out over all devices, so expert_parallel must divide them and be a multiple of tensor_parallel.
        memory: bytes of a device, to be told whether it fits in `USABLE` of them.
        device: `cpu` or `cuda`, which decides the chunk of logits.

    Returns:
        dict of JSON types: `settings`, `parameters`, `held` (bytes by part between steps), `phases` (list of {"phase",
        "bytes", "parts"}), `peak` (the largest of them) and `fits` (None without `memory`).

    Raises:
        ValueError: as `convert.read_config`; for a number that is not positive and whole, an unknown choice, or sizes of
            parallelism that do not divide the devices or the model.
    """
    from hf_variants.convert.config_source import read_any_config

    config = read_any_config(source)
    text, seeing = text_of(config), sees_images(config)
    length = text.max_position_embeddings if length is None else length
    encoder_length = length if encoder_length is None and _reads_states(config) else encoder_length
    images = 1 if images is None and seeing else images
    trains = list(IMAGE_PARTS) if trains is None and seeing and purpose == "train" else trains
    sharding = _usual_sharding(purpose, devices, tensor_parallel) if sharding is None else sharding
    settings = {
        **{"purpose": purpose, "length": length, "encoder_length": encoder_length, "images": images, "trains": trains},
        **{"rows": rows, "dtype": dtype, "optimizer": optimizer},
        **{"checkpointing": checkpointing, "accumulation": accumulation, "devices": devices, "sharding": sharding},
        **{"tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel, "memory": memory, "device": device},
    }
    _check(config, settings)
    check_row(text, length)
    if is_pair(config):
        check_row(config.encoder, encoder_length, "encoder_length")
    layout, stacks = layout_of(config, settings)
    phases = (training if purpose == "train" else generating)(config, settings, layout, stacks)
    phases = [{"phase": name, "bytes": int(sum(parts.values())), "parts": _whole(parts)} for name, parts in phases]
    peak = max(phases, key=lambda phase: phase["bytes"])
    held = layout.states() if purpose == "train" else {"weights": layout.weights}
    return {
        "settings": settings,
        "parameters": joined_parameters(config).total,
        "held": _whole({part: value for part, value in held.items() if part != "gradients"}),
        "phases": phases,
        "peak": peak,
        "fits": None if memory is None else peak["bytes"] <= USABLE * memory,
    }


def _usual_sharding(purpose, devices, tensor_parallel):
    if devices in (1, tensor_parallel):
        return "none"
    return "fsdp" if purpose == "train" else "ddp"


def fewest_devices(source, limit=1 << 14, **options):
    """The plan on the smallest power of two of devices on which it fits, or None up to `limit`; `memory` must be given.

    Raises:
        ValueError: without `memory`.
    """
    if options.get("memory") is None:
        raise ValueError("memory=None: give the bytes of one device, such as 80e9")
    fixed = max(options.get("tensor_parallel", 1), options.get("expert_parallel", 1))
    for exponent in range(int(math.log2(limit)) + 1):
        if 1 << exponent < fixed:
            continue
        plan = plan_memory(source, devices=1 << exponent, **options)
        if plan["fits"]:
            return plan
    return None


def _whole(parts):
    return {part: int(value) for part, value in parts.items() if value}


def _reads_states(config):
    """Whether a decoder reads the states of an encoder, whether it comes with one or not."""
    return is_pair(config) or getattr(config, "add_cross_attention", False)


def _stacks_of(config):
    return (config.text_config,) if sees_images(config) else config.stacks


def _check_images(config, settings):
    images, trains = settings["images"], settings["trains"]
    if not sees_images(config):
        for name in ("images", "trains"):
            if settings[name] is not None:
                raise ValueError(
                    f"{name}={settings[name]!r} needs a vision-language config, and this one reads text alone; leave it out"
                )
        return
    if isinstance(images, bool) or not isinstance(images, int) or images < 0:
        raise ValueError(f"images={images!r} must be a whole number, at least 0")
    needed = images * config.tokens_of_image()
    if settings["length"] <= needed:
        raise ValueError(
            f"length={settings['length']} has no room for text behind images={images} of {config.tokens_of_image()} tokens "
            "each; plan a longer row"
        )
    if settings["purpose"] != "train":
        if trains is not None:
            raise ValueError(f"trains={trains!r} means nothing to purpose={settings['purpose']!r}; leave it out")
        return
    if not isinstance(trains, (list, tuple)) or not trains or [part for part in trains if part not in IMAGE_PARTS]:
        raise ValueError(f"trains={trains!r} must be a list of some of {list(IMAGE_PARTS)}")
    if not images and "text" not in trains:
        raise ValueError(f"trains={list(trains)} reads no text alone: with images=0 nothing would be trained; give images")


def _check(config, settings):
    choices = {
        "purpose": PURPOSES,
        "dtype": PRECISIONS,
        "optimizer": OPTIMIZERS,
        "sharding": SHARDINGS,
        "device": CHUNK_BYTES,
    }
    for name, known in choices.items():
        if settings[name] not in known:
            raise ValueError(f"{name}={settings[name]!r} is unknown; choose from {list(known)}")
    reads = _reads_states(config)
    if not reads and settings["encoder_length"] is not None:
        raise ValueError(
            f"encoder_length={settings['encoder_length']} is what an encoder reads for a decoder, and there is none; leave it "
            "out"
        )
    numbers = ("length", "rows", "accumulation", "devices", "tensor_parallel", "expert_parallel")
    for name in (*numbers, *(("encoder_length",) if reads else ())):
        value = settings[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number, at least 1")
    _check_images(config, settings)
    if settings["memory"] is not None and not 0 < settings["memory"] < math.inf:
        raise ValueError(f"memory={settings['memory']!r} must be a positive number of bytes")
    if settings["purpose"] == "generate":
        _check_generating(config, settings)
    devices, sharding = settings["devices"], settings["sharding"]
    tensor, expert = settings["tensor_parallel"], settings["expert_parallel"]
    if sharding == "none" and devices > tensor:
        raise ValueError(f"sharding='none' has nothing to do on {devices} devices; choose from {list(SHARDINGS)[1:]}")
    if devices % tensor:
        raise ValueError(f"tensor_parallel={tensor} does not divide devices={devices}")
    _check_tensor_parallel(config, tensor, expert)
    if expert == 1:
        return
    if not any(stack.has_experts for stack in _stacks_of(config)):
        raise ValueError(f"expert_parallel={expert} needs routed experts, and num_experts={text_of(config).num_experts}")
    for stack in _stacks_of(config):
        if stack.has_experts and (stack.num_experts % expert or devices % expert or expert % tensor):
            raise ValueError(
                f"expert_parallel={expert} must divide num_experts={stack.num_experts} and devices={devices}, and be a "
                f"multiple of tensor_parallel={tensor}"
            )
    if settings["optimizer"] == "muon":
        raise ValueError("optimizer='muon' needs whole matrices, which expert parallelism divides; use optimizer='adamw'")


def divided_widths(config, expert_parallel=1):
    """{name: number} of the heads and channels of one stack that tensor parallelism divides."""
    plans = config.layer_plan()
    found = {}
    if splits_attention(config):
        found |= {name: getattr(config, name) for name in ("num_key_value_heads", "num_attention_heads")}
    if any(plan.mlp == "dense" for plan in plans):
        found["intermediate_size"] = config.intermediate_size
    if any(plan.mlp == "sparse" for plan in plans):
        if splits_experts(config) and expert_parallel == 1:
            found["moe_intermediate_size"] = config.moe_intermediate_size
        if config.num_shared_experts:
            found["shared_expert_intermediate_size"] = config.shared_expert_intermediate_size
    return found


def _check_tensor_parallel(config, size, expert):
    stacks = _stacks_of(config)
    for place, stack in enumerate(stacks):
        widths = divided_widths(stack, expert)
        cut = {name: number for name, number in widths.items() if number % size}
        if not cut:
            continue
        every = [number for one in stacks for number in divided_widths(one, expert).values()]
        common = math.gcd(*every)
        divisors = [n for n in range(1, common + 1) if common % n == 0]
        where = ("encoder.", "decoder.")[place] if len(stacks) > 1 else ""
        words = " and ".join(f"{where}{name}={number}" for name, number in cut.items())
        raise ValueError(f"tensor_parallel={size} does not divide {words}; sizes that divide this model are {divisors}")


def _check_generating(config, settings):
    if not text_of(config).is_causal:
        raise ValueError("purpose='generate' needs a decoder, and is_causal=False; plan an encoder with purpose='train'")
    if settings["dtype"] == "mixed":
        raise ValueError("dtype='mixed' is a way of training; purpose='generate' takes 'float32' or 'bfloat16'")
    if settings["sharding"] in ("zero1", "zero2"):
        raise ValueError(
            f"sharding={settings['sharding']!r} divides gradients and optimizer states, which purpose='generate' has none of; "
            "choose 'none', 'ddp' or 'fsdp'"
        )
    for name, usual in (("checkpointing", False), ("accumulation", 1), ("optimizer", "adamw")):
        if settings[name] != usual:
            raise ValueError(f"{name}={settings[name]!r} means nothing to purpose='generate'; leave it out")
