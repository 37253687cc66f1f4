"""The phases of a training step or of generating, and the bytes of each part in them.

Notable here: an encoder-decoder is one walk: the decoder's layers are differentiated first, with everything that the encoder
keeps still there, then the encoder's. Under checkpointing its states stay, since every layer of the decoder reads them anew.
"""

from dataclasses import dataclass

from ..modeling.parallel_plans import splits_attention
from .activations import layer_memory, outer_memory
from .cache_size import kv_cache_size
from .memory_batch import Batch
from .parameter_shares import vocabulary_divisor

# bytes of one chunk of logits of the fused loss, by the kind of device (`modeling/linear_cross_entropy.py`)
LOGIT_CHUNKS = {"cpu": 1 << 26, "cuda": 1 << 28}


@dataclass(frozen=True)
class Stack:
    """One stack of a model on one device: what runs in it, what each layer keeps, what is kept before and after them."""

    config: object
    batch: Batch
    units: list
    layers: list
    before: float
    after: float
    name: str = ""


def _stacks(config, settings, layout):
    """The `Stack`s of a model, in the order of the forward pass; of a decoder that reads another model's states, it alone."""
    tensor, expert = settings["tensor_parallel"], settings["expert_parallel"]
    shared = (settings["dtype"], tensor, expert if expert == tensor else 1)
    batch, states = (
        Batch(settings["rows"], settings[name], *shared) if settings[name] else None for name in ("length", "encoder_length")
    )
    found = []
    for stack, units in zip(config.stacks, layout.stacks, strict=True):
        last = stack is config.stacks[-1]
        own = batch if last else states
        layers = [layer_memory(stack, plan, own, states if last else None) for plan in stack.layer_plan()]
        name = "" if len(config.stacks) == 1 else "decoder " if last else "encoder "
        before, after = outer_memory(stack, own, headless=not last)
        if len(config.stacks) == 1 and states is not None:
            before += stack.cross_attention_hidden_size * states.tokens * states.stream_bytes
        found.append(Stack(stack, own, units, layers, before, after, name))
    return found


def training(config, settings, layout):
    """(phase, bytes by part) of one step in the steady state."""
    stacks = _stacks(config, settings, layout)
    checkpointing, accumulates = settings["checkpointing"], settings["accumulation"] > 1
    held = [[layer.entry if checkpointing else layer.total for layer in stack.layers] for stack in stacks]
    casts = [[layout.cast_of(unit) for unit in stack.units] for stack in stacks]
    always = {"weights": layout.weights, "optimizer": layout.optimizer, "communication": layout.communication()}
    lying = layout.gradients if accumulates else 0
    head, head_gradient, chunk = _head(stacks[-1], settings, layout)

    everything = sum(stack.before + sum(kept) + stack.after for stack, kept in zip(stacks, held, strict=True))
    loss = {"activations": everything, "casts": sum(map(sum, casts)), "head": head + chunk, "gradients": lying}
    yield "loss", {**always, **loss}

    gradients = lying if accumulates else head_gradient
    for place in reversed(range(len(stacks))):
        stack = stacks[place]
        # what the stacks before this one keep waits, the states that this one reads among it
        waiting = sum(stacks[i].before + sum(held[i]) + stacks[i].after for i in range(place))
        waiting_casts = sum(sum(casts[i]) for i in range(place))
        for index in reversed(range(len(stack.layers))):
            layer, unit = stack.layers[index], stack.units[index]
            kept = waiting + stack.before + sum(held[place][: index + 1]) + (layer.total if checkpointing else 0)
            cast = casts[place][index] if checkpointing else sum(casts[place][: index + 1])
            # the gradient of the states grows while the decoder is differentiated
            states = _gradient_of_states(stacks, place)
            stages = _stages(stack, index, kept, gradients, layout)
            stage = max(stages, key=lambda parts: sum(parts.values()))
            stage["workspace"] += states
            yield f"backward, {stack.name}layer {index}", {**always, **stage, "casts": waiting_casts + cast}
            gradients += 0 if accumulates else layout.gradients_of(unit)
        if place:
            last = {"activations": waiting + stack.before, "casts": waiting_casts}
            last["workspace"] = _wide(stack) + _gradient_of_states(stacks, place)
            last["gradients"] = gradients + _table_gradient(stack, layout)
            yield f"backward, {stack.name}embedding", {**always, **last}
            gradients += 0 if accumulates or stack.config.tie_word_embeddings else _table_gradient(stack, layout)

    last = {"activations": stacks[0].before, "workspace": _wide(stacks[0])}
    # a matrix that is used twice gathers the gradients of both uses before they are one
    twice = stacks[0].config.tie_word_embeddings if len(stacks) == 1 else config.share_embeddings
    last["gradients"] = layout.gradients + (_table_gradient(stacks[0], layout) if twice or accumulates else 0)
    yield f"backward, {stacks[0].name}embedding", {**always, **last}
    yield "optimizer", {**always, "gradients": layout.gradients, "workspace": _optimizer_workspace(layout, settings)}


def _stages(stack, index, kept, gradients, layout):
    """Bytes by part while the feed-forward, the cross-attention and the attention of a layer are differentiated."""
    layer, unit = stack.layers[index], stack.units[index]
    yield {
        "activations": kept,
        "workspace": layer.workspace["mlp"],
        "gradients": gradients + _first(stack.config, layout, unit, index),
    }
    kept -= layer.kept["mlp"]
    if "cross_attention" in layer.kept:
        gradients_there = gradients + _made(layout, unit, ("mlp", "cross_attention"))
        yield {"activations": kept, "workspace": layer.workspace["cross_attention"], "gradients": gradients_there}
        kept -= layer.kept["cross_attention"]
    whole = 0 if layout.reduces() else layout.whole_gradients_of(unit)
    yield {"activations": kept, "workspace": layer.workspace["attention"], "gradients": gradients + whole}


def _made(layout, unit, parts):
    if layout.reduces():
        return 0
    return layout.whole_gradients_of([share for share in unit if share.part in parts])


def _first(config, layout, unit, index):
    """Gradients that a feed-forward has made when it needs the most: of its last product, or of all fused experts."""
    made = _made(layout, unit, ("mlp",))
    if config.layer_plan()[index].mlp == "sparse":
        return made
    return made / (3 if config.mlp_type == "gated" else 2)


def _gradient_of_states(stacks, place):
    """Bytes of the gradient of the encoder's states, which waits while the decoder is differentiated."""
    return _wide(stacks[place - 1]) if place else 0


def _wide(stack):
    return stack.config.hidden_size * stack.batch.tokens * stack.batch.stream_bytes


def _table_gradient(stack, layout):
    vocabulary = stack.config.vocab_size / vocabulary_divisor(stack.config, stack.batch.tensor_parallel)
    return vocabulary * stack.config.embedding_size * layout.stream


def _head(stack, settings, layout):
    """Bytes of the gradients that the fused loss makes (of states and head), of the head's alone, and of a chunk of logits."""
    config, batch = stack.config, stack.batch
    size = batch.product_bytes
    vocabulary = config.vocab_size / vocabulary_divisor(config, settings["tensor_parallel"])
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


def generating(config, settings, layout):
    """(phase, bytes by part) of the encoder's pass where there is one, a prefill of all rows, and decoding behind it."""
    stacks = _stacks(config, settings, layout)
    decoder, size = stacks[-1], stacks[-1].batch.product_bytes
    own = kv_cache_size(
        decoder.config, settings["length"], settings["rows"], size, 0 if decoder.config.add_cross_attention else None
    ).bytes
    across = kv_cache_size(decoder.config, settings["length"], settings["rows"], size, settings["encoder_length"]).bytes - own
    split = settings["tensor_parallel"] if splits_attention(decoder.config) else 1
    own, across = own / split, across / split
    logits = settings["rows"] * decoder.config.vocab_size * size
    # what a layer would keep lives while it runs
    widest = [max(layer.total for layer in stack.layers) + 2 * _wide(stack) for stack in stacks]
    fixed = {"weights": layout.weights, "communication": layout.communication()}
    states = sum(_wide(stack) for stack in stacks[:-1])
    if len(stacks) > 1:
        yield "encoding", {**fixed, "workspace": widest[0]}
    yield "prefill", {**fixed, "cache": own + across, "workspace": widest[-1] + states, "head": logits}
    step = widest[-1] / settings["length"] + states
    yield "decoding", {**fixed, "cache": own * 9 / 8 + across, "head": logits, "workspace": step}
