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

from .activations import PRECISIONS, Batch, layer_memory, outer_memory
from .cache_size import kv_cache_bytes
from .counts import check_row, count_parameters
from .parameter_shares import layer_shares, outer_shares

PURPOSES = ("train", "generate")
SHARDINGS = {
    "none": "one copy",
    "ddp": "a copy of everything on each device",
    "zero1": "optimizer states divided (ZeRO-1)",
    "zero2": "optimizer states and gradients divided (ZeRO-2)",
    "fsdp": "weights too (ZeRO-3, FSDP2)",
}
OPTIMIZERS = ("adamw", "adamw_8bit", "muon", "sgd")
# bytes of one chunk of logits of the fused loss, by the kind of device (`modeling/linear_cross_entropy.py`)
LOGIT_CHUNKS = {"cpu": 1 << 26, "cuda": 1 << 28}
# Allocators and fragmentation take their part.
USABLE = 0.85
# bitsandbytes: two bytes and two fp32 scales per block of 256; tables and small tensors stay in fp32
_EIGHT_BIT = 2 * (1 + 4 / 256)


def plan_memory(
    source,
    *,
    purpose="train",
    length=None,
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
        dtype: `float32`, `bfloat16` (all of it), or `mixed` (fp32 weights, autocast to bfloat16), which is for training alone.
        optimizer: `adamw` (two moments in the dtype of the weights), `adamw_8bit` (bitsandbytes), `muon` (this package's, one
            momentum for hidden matrices, AdamW for the rest) or `sgd` without momentum.
        checkpointing: activation checkpointing of every layer.
        accumulation: micro-batches per optimizer step; from 2 on gradients lie there during the forward pass.
        devices: all of them. Data-parallel ranks are devices / tensor_parallel.
        sharding: a key of `SHARDINGS`; None is `none` where no data-parallel ranks are left, otherwise `fsdp` for training and
            `ddp` for generating, which has neither gradients nor optimizer to divide and takes `none`, `ddp` or `fsdp`.
        tensor_parallel, expert_parallel: devices that share a layer's heads and channels, or its routed experts. Experts are
            laid out over all devices, so expert_parallel must divide them and be a multiple of tensor_parallel.
        memory: bytes of a device, to be told whether it fits in `USABLE` of them.
        device: `cpu` or `cuda`, which decides the chunk of logits.

    Returns:
        dict of JSON types: `settings`, `parameters`, `held` (bytes by part between steps), `phases` (list of {"phase",
        "bytes", "parts"}), `peak` (the largest of them) and `fits` (None without `memory`).

    Raises:
        ValueError: as `convert.read_config`; for a number that is not positive and whole, an unknown choice, or sizes of
            parallelism that do not divide the devices or the model.
    """
    from hf_variants.convert.config_source import read_config

    config = read_config(source)
    length = config.max_position_embeddings if length is None else length
    sharding = _usual_sharding(purpose, devices, tensor_parallel) if sharding is None else sharding
    settings = {
        **{"purpose": purpose, "length": length, "rows": rows, "dtype": dtype, "optimizer": optimizer},
        **{"checkpointing": checkpointing, "accumulation": accumulation, "devices": devices, "sharding": sharding},
        **{"tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel, "memory": memory, "device": device},
    }
    _check(config, settings)
    check_row(config, length)
    layout = _Layout(config, settings)
    phases = (_training if purpose == "train" else _generating)(config, settings, layout)
    phases = [{"phase": name, "bytes": int(sum(parts.values())), "parts": _whole(parts)} for name, parts in phases]
    peak = max(phases, key=lambda phase: phase["bytes"])
    held = layout.states() if purpose == "train" else {"weights": layout.weights}
    return {
        "settings": settings,
        "parameters": count_parameters(config).total,
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
    """The plan on the smallest power of two of devices on which it fits, or None up to `limit`; `memory` must be given."""
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


def _check(config, settings):
    choices = {
        "purpose": PURPOSES,
        "dtype": PRECISIONS,
        "optimizer": OPTIMIZERS,
        "sharding": SHARDINGS,
        "device": LOGIT_CHUNKS,
    }
    for name, known in choices.items():
        if settings[name] not in known:
            raise ValueError(f"{name}={settings[name]!r} is unknown; choose from {list(known)}")
    for name in ("length", "rows", "accumulation", "devices", "tensor_parallel", "expert_parallel"):
        value = settings[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number, at least 1")
    if settings["memory"] is not None and not 0 < settings["memory"] < math.inf:
        raise ValueError(f"memory={settings['memory']!r} must be a positive number of bytes")
    if len(config.stacks) > 1 or config.add_cross_attention:
        raise ValueError("what cross-attention keeps of another stack is not planned: give an encoder or a decoder alone")
    if settings["purpose"] == "generate":
        _check_generating(config, settings)
    devices, sharding = settings["devices"], settings["sharding"]
    tensor, expert = settings["tensor_parallel"], settings["expert_parallel"]
    if sharding == "none" and devices > tensor:
        raise ValueError(f"sharding='none' has nothing to do on {devices} devices; choose from {list(SHARDINGS)[1:]}")
    if devices % tensor:
        raise ValueError(f"tensor_parallel={tensor} does not divide devices={devices}")
    if config.num_key_value_heads % tensor and config.attention_type == "gqa":
        raise ValueError(f"tensor_parallel={tensor} does not divide num_key_value_heads={config.num_key_value_heads}")
    if expert == 1:
        return
    if not config.has_experts:
        raise ValueError(f"expert_parallel={expert} needs routed experts, and num_experts={config.num_experts}")
    if config.num_experts % expert or devices % expert or expert % tensor:
        raise ValueError(
            f"expert_parallel={expert} must divide num_experts={config.num_experts} and devices={devices}, and be a multiple "
            f"of tensor_parallel={tensor}"
        )
    if settings["optimizer"] == "muon":
        raise ValueError("optimizer='muon' needs whole matrices, which expert parallelism divides; use optimizer='adamw'")


def _check_generating(config, settings):
    if not config.is_causal:
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


class _Layout:
    """Which bytes of weights, gradients and optimizer states lie on one device."""

    def __init__(self, config, settings):
        self.config, self.settings = config, settings
        self.stream, self.product, self.casts = PRECISIONS[settings["dtype"]]
        self.data = settings["devices"] // settings["tensor_parallel"]
        self.sharding = settings["sharding"]
        tensor, expert = settings["tensor_parallel"], settings["expert_parallel"]
        self.layers = [layer_shares(config, plan, tensor, expert) for plan in config.layer_plan()]
        self.outer = outer_shares(config, tensor)
        # ranks that hold the same share of the experts, and divide it under FSDP
        self.same_experts = settings["devices"] // expert if expert > 1 else self.data
        self.weights = self._bytes(lambda share: share.numbers * self.stream, self.sharding == "fsdp")
        if settings["purpose"] == "train":
            divided = self.sharding in ("zero1", "zero2", "fsdp")
            self.optimizer = self._bytes(self._moments, divided)
            self.gradients = self._bytes(lambda share: share.numbers * self.stream, self.sharding in ("zero2", "fsdp"))

    def _bytes(self, of, divided):
        return sum(self.of_unit(unit, of, divided) for unit in (*self.layers, self.outer))

    def of_unit(self, unit, of, divided):
        """Bytes of the parts of one layer, or of what is outside, each times `of(share)`, divided over ranks or not."""
        return sum(of(share) / (self._ranks(share) if divided else 1) for share in unit)

    def _ranks(self, share):
        return self.same_experts if share.routed else self.data

    def _moments(self, share):
        kind = self.settings["optimizer"]
        if kind == "sgd":
            return 0
        if kind == "adamw_8bit":
            return share.numbers * 8 if share.table or share.small else share.numbers * _EIGHT_BIT
        if kind == "muon" and share.hidden_matrix:
            return share.numbers * self.stream
        return share.numbers * 2 * self.stream

    def states(self):
        return {"weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer}

    def gradients_of(self, unit):
        return self.of_unit(unit, lambda share: share.numbers * self.stream, self.sharding in ("zero2", "fsdp"))

    def whole_gradients_of(self, unit):
        """As they are made, before ranks reduce and divide them."""
        return self.of_unit(unit, lambda share: share.numbers * self.stream, False)

    def cast_of(self, unit):
        """bf16 copies that autocast makes of the matrices, and that the backward pass reads; FSDP gathers bf16 instead."""
        if not self.casts or self.sharding == "fsdp":
            return 0
        return self.of_unit(unit, lambda share: share.products * self.product, False)

    def reduces(self):
        """Whether gradients are divided as soon as a layer has them."""
        return self.data > 1 and self.sharding in ("zero2", "fsdp")

    def communication(self):
        if self.data == 1 or self.sharding == "none":
            return 0
        if self.settings["purpose"] == "generate":
            return self._gathered() if self.sharding == "fsdp" else 0
        if self.sharding == "ddp":
            return self.gradients
        largest = max(self.whole_gradients_of(layer) for layer in self.layers)
        if self.sharding != "fsdp":
            return largest
        # a block that was gathered in the dtype of products has its gradient in it until the ranks divide it
        return largest * self.product / self.stream + self._gathered()

    def _gathered(self):
        """The block at work and the next one, and what stands outside the layers, whole in the dtype of products."""
        blocks = sorted((self._gathered_numbers(layer) for layer in self.layers), reverse=True)
        return (sum(blocks[:2]) + self._gathered_numbers(self.outer)) * self.product

    def _gathered_numbers(self, unit):
        # experts that no other rank shares are never gathered
        return sum(share.numbers for share in unit if self._ranks(share) > 1)


def _training(config, settings, layout):
    """(phase, bytes by part) of one step in the steady state."""
    batch = Batch(
        settings["rows"],
        settings["length"],
        settings["dtype"],
        settings["tensor_parallel"],
        settings["expert_parallel"] if settings["expert_parallel"] == settings["tensor_parallel"] else 1,
    )
    layers = [layer_memory(config, plan, batch) for plan in config.layer_plan()]
    before, after = outer_memory(config, batch)
    checkpointing, accumulates = settings["checkpointing"], settings["accumulation"] > 1
    held = [layer.entry if checkpointing else layer.total for layer in layers]
    casts = [layout.cast_of(unit) for unit in layout.layers]
    always = {"weights": layout.weights, "optimizer": layout.optimizer, "communication": layout.communication()}
    lying = layout.gradients if accumulates else 0
    head, head_gradient, chunk = _head(config, settings, layout, batch)

    loss = {"activations": before + sum(held) + after, "casts": sum(casts), "head": head + chunk, "gradients": lying}
    yield "loss", {**always, **loss}

    gradients = lying if accumulates else head_gradient
    for index in reversed(range(len(layers))):
        layer, unit = layers[index], layout.layers[index]
        kept = before + sum(held[: index + 1]) + (layer.total if checkpointing else 0)
        cast = casts[index] if checkpointing else sum(casts[: index + 1])
        made = 0 if layout.reduces() else layout.whole_gradients_of(unit)
        mlp, attention = (
            {"activations": kept, "workspace": layer.workspace["mlp"], "gradients": gradients + _first(config, layout, index)},
            {
                "activations": kept - layer.kept["mlp"],
                "workspace": layer.workspace["attention"],
                "gradients": gradients + made,
            },
        )
        stage = max(mlp, attention, key=lambda parts: sum(parts.values()))
        yield f"backward, layer {index}", {**always, **stage, "casts": cast}
        gradients += 0 if accumulates else layout.gradients_of(unit)

    table = config.vocab_size * config.embedding_size * layout.stream
    last = {"activations": before, "workspace": config.hidden_size * batch.tokens * batch.stream_bytes}
    # a tied matrix gathers the gradients of both its uses before they are one
    last["gradients"] = layout.gradients + (table if config.tie_word_embeddings or accumulates else 0)
    yield "backward, embedding", {**always, **last}
    yield "optimizer", {**always, "gradients": layout.gradients, "workspace": _optimizer_workspace(layout, settings)}


def _first(config, layout, index):
    """Gradients that a feed-forward has made when it needs the most: of its last product, or of all fused experts."""
    if layout.reduces():
        return 0
    made = layout.whole_gradients_of([share for share in layout.layers[index] if share.part == "mlp"])
    if config.layer_plan()[index].mlp == "sparse":
        return made
    return made / (3 if config.mlp_type == "gated" else 2)


def _head(config, settings, layout, batch):
    """Bytes of the gradients that the fused loss makes (of states and head), of the head's alone, and of a chunk of logits."""
    size, vocabulary = batch.product_bytes, config.vocab_size / settings["tensor_parallel"]
    logits = vocabulary * batch.tokens * size
    chunk = min(logits, max(LOGIT_CHUNKS[settings["device"]], vocabulary * size))
    several = logits > chunk
    matrix = vocabulary * config.lm_head_width
    gradient = matrix * (4 if several else size)
    rows = config.lm_head_width * batch.tokens * size
    return rows + gradient, matrix * layout.stream, chunk


def _optimizer_workspace(layout, settings):
    if settings["optimizer"] != "muon":
        return 0  # fused kernels write in place
    # the update, and the matrix, its square and their product in bf16, of the largest hidden matrix
    largest = max((share.largest for unit in layout.layers for share in unit if share.hidden_matrix), default=0)
    return largest * (layout.stream + 3 * 2)


def _generating(config, settings, layout):
    """(phase, bytes by part) of a prefill of all rows, and of decoding behind it."""
    batch = Batch(settings["rows"], settings["length"], settings["dtype"], settings["tensor_parallel"], 1)
    size, tokens = batch.product_bytes, batch.tokens
    cache = kv_cache_bytes(config, settings["length"], settings["rows"], size)
    if config.attention_type == "gqa":
        cache /= settings["tensor_parallel"]
    logits = settings["rows"] * config.vocab_size * size
    layers = [layer_memory(config, plan, batch) for plan in config.layer_plan()]
    # what a layer would keep lives while it runs
    widest = max(layer.total for layer in layers) + 2 * config.hidden_size * tokens * size
    fixed = {"weights": layout.weights, "communication": layout.communication()}
    yield "prefill", {**fixed, "cache": cache, "workspace": widest, "head": logits}
    yield "decoding", {**fixed, "cache": cache * 9 / 8, "head": logits, "workspace": widest / settings["length"]}
