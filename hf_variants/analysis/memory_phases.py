"""The phases of a training step or of generating, and the bytes of each part in them.

Notable here: an encoder-decoder is one walk: the decoder's layers are differentiated first, with everything that the encoder
keeps still there, then the encoder's. Under checkpointing its states stay, since every layer of the decoder reads them anew.
"""

from dataclasses import dataclass, replace

from ..modeling.logit_chunks import chunk_rows
from ..modeling.parallel_plans import splits_attention
from .activations import LayerMemory, layer_memory, outer_memory
from .cache_size import kv_cache_size
from .joined import cross_blocks, image_cache_bytes, states_of_image
from .memory_batch import Batch
from .memory_layout import Layout
from .parameter_shares import layer_shares, outer_shares, vocabulary_divisor


@dataclass(frozen=True)
class Stack:
    """One stack of a model on one device: what runs in it, what each layer keeps, what is kept before and after them.

    wide: bytes of the states at its end. titles: names of the layers. sparse: which of them have experts. passed: how many
    of the first ones no gradient reaches. reads: whether the gradient of the states before it grows while it is
    differentiated. frozen: whether its own weights want no gradient. labelled: tokens that are targets.
    """

    config: object
    batch: Batch
    units: list
    layers: list
    before: float
    after: float
    wide: float
    titles: list
    sparse: list
    name: str = ""
    passed: int = 0
    reads: bool = True
    frozen: bool = False
    labelled: int | None = None


def layout_of(config, settings):
    """The `Layout` of a config, and the `Stack`s of its model in the order of the forward pass."""
    if hasattr(config, "vision_config"):
        return _seeing_stacks(config, settings)
    layout = Layout(config, settings)
    return layout, _stacks(config, settings, layout)


def _titles(stack):
    return [f"layer {plan.index}" for plan in stack.layer_plan()], [plan.mlp == "sparse" for plan in stack.layer_plan()]


def _seeing_stacks(config, settings):
    """The same of a vision-language model: tower with bridge, and text with its gated cross-attentions."""
    from .image_memory import cross_memory, image_side, module_shares

    trains, rows = settings["trains"] or (), settings["rows"]
    tensor, expert = settings["tensor_parallel"], settings["expert_parallel"]
    text, images = config.text_config, settings["images"]
    side = image_side(config, rows * images, settings, trains)
    frozen = "text" not in trains
    seen = settings["dtype"], tensor, expert if expert == tensor else 1
    masked, gathered = config.image_attention != "causal" and bool(images), settings["sharding"] == "fsdp"
    batch = Batch(rows, settings["length"], *seen, frozen=frozen, masked=masked, gathered=gathered)
    gated = config.bridge == "gated_cross_attention"
    chosen = config.cross_attention_layers or []
    # cross-attentions stay whole under tensor parallelism, and learn with the bridge
    asking = Batch(rows, settings["length"], settings["dtype"], frozen="bridge" not in trains)
    states = Batch(rows, max(images, 1) * states_of_image(config), settings["dtype"])
    blocks = cross_blocks(config)
    units, layers, titles, sparse = [], [], [], []
    for plan in text.layer_plan():
        if plan.index in chosen:
            units.append(module_shares("cross", blocks[plan.index], frozen="bridge" not in trains))
            layers.append(cross_memory(config, plan.index, asking, states) if images else _no_memory())
            titles.append(f"cross-attention {plan.index}")
            sparse.append(False)
        units.append(tuple(replace(share, frozen=frozen) for share in layer_shares(text, plan, tensor, expert)))
        layers.append(layer_memory(text, plan, batch))
        titles.append(f"layer {plan.index}")
        sparse.append(plan.mlp == "sparse")
    outer = tuple(replace(share, frozen=frozen) for share in outer_shares(text, tensor))
    layout = Layout(config, settings, [side.units, units], (*side.outer, *outer))
    before, after = outer_memory(text, batch)
    if gated and images and "bridge" in trains:
        before += text.hidden_size * states.tokens * states.stream_bytes  # of all rows side by side
    passed = titles.index(f"cross-attention {chosen[0]}") if frozen and gated and chosen else 0
    # image tokens are no targets, and on a CPU a tenth of such rows is left out of the head
    targets = settings["length"] - images * config.tokens_of_image()
    few = settings["device"] == "cpu" and targets < 0.9 * settings["length"]
    stack = Stack(text, batch, units, layers, before, after, _stream(text, batch), titles, sparse, "text ", passed)
    stack = replace(stack, reads=gated, frozen=frozen, labelled=rows * targets if few else None)
    count = len(side.layers) - 1
    tower = Stack(
        *(config, Batch(rows * images, 1, settings["dtype"]), side.units, side.layers, side.before, side.after, side.wide),
        *([*(f"layer {index}" for index in range(count)), "bridge"], [False] * (count + 1), "image "),
    )
    learns = "bridge" in trains or "tower" in trains
    tower = replace(tower, passed=0 if "tower" in trains else count if learns else count + 1, frozen=True)
    return layout, [tower, stack]


def _no_memory():
    return LayerMemory({"attention": 0, "mlp": 0}, 0, {"attention": 0, "mlp": 0})


def _stream(config, batch):
    return config.hidden_size * batch.tokens * batch.stream_bytes


def _stacks(config, settings, layout):
    """The `Stack`s of a model, in the order of the forward pass; of a decoder that reads another model's states, it alone."""
    tensor, expert = settings["tensor_parallel"], settings["expert_parallel"]
    shared, gathered = (settings["dtype"], tensor, expert if expert == tensor else 1), settings["sharding"] == "fsdp"
    lengths = (settings["length"], settings["encoder_length"])
    batch, states = (Batch(settings["rows"], length, *shared, gathered=gathered) if length else None for length in lengths)
    found = []
    for stack, units in zip(config.stacks, layout.stacks, strict=True):
        last = stack is config.stacks[-1]
        own = batch if last else states
        layers = [layer_memory(stack, plan, own, states if last else None) for plan in stack.layer_plan()]
        name = "" if len(config.stacks) == 1 else "decoder " if last else "encoder "
        before, after = outer_memory(stack, own, headless=not last)
        if len(config.stacks) == 1 and states is not None:
            before += stack.cross_attention_hidden_size * states.tokens * states.stream_bytes
        found.append(Stack(stack, own, units, layers, before, after, _stream(stack, own), *_titles(stack), name))
    return found


def training(config, settings, layout, stacks):
    """(phase, bytes by part) of one step in the steady state."""
    checkpointing, accumulates = settings["checkpointing"], settings["accumulation"] > 1
    held = [_reached(stack, [layer.entry if checkpointing else layer.total for layer in stack.layers]) for stack in stacks]
    casts = [_reached(stack, [layout.cast_of(unit) for unit in stack.units]) for stack in stacks]
    always = {"weights": layout.weights, "optimizer": layout.optimizer, "communication": layout.communication()}
    lying = layout.gradients if accumulates else 0
    head, head_gradient, chunk = _head(stacks[-1], settings, layout)

    everything = sum(stack.before + sum(kept) + stack.after for stack, kept in zip(stacks, held, strict=True))
    loss = {"activations": everything, "casts": sum(map(sum, casts)), "head": head + chunk, "gradients": lying}
    if stacks[0].passed:
        # a part without gradients keeps nothing, and what it would keep lives while it runs
        widest = max(layer.total for layer in stacks[0].layers[: stacks[0].passed])
        yield "images", {**always, "gradients": lying, "activations": stacks[0].before, "workspace": widest}
    yield "loss", {**always, **loss}

    gradients = lying if accumulates else head_gradient
    for place in reversed(range(len(stacks))):
        stack = stacks[place]
        # what the stacks before this one keep waits, the states that this one reads among it
        waiting = sum(stacks[i].before + sum(held[i]) + stacks[i].after for i in range(place))
        waiting_casts = sum(sum(casts[i]) for i in range(place))
        for index in reversed(range(stack.passed, len(stack.layers))):
            layer, unit = stack.layers[index], stack.units[index]
            kept = waiting + stack.before + sum(held[place][: index + 1]) + (layer.total if checkpointing else 0)
            cast = casts[place][index] if checkpointing else sum(casts[place][: index + 1])
            # the gradient of the states grows while the decoder is differentiated
            states = _gradient_of_states(stacks, place) if stack.reads else 0
            stages = _stages(stack, index, kept, gradients, layout)
            stage = max(stages, key=lambda parts: sum(parts.values()))
            stage["workspace"] += states
            yield f"backward, {stack.name}{stack.titles[index]}", {**always, **stage, "casts": waiting_casts + cast}
            gradients += 0 if accumulates else layout.gradients_of(unit)
        if place:
            last = {"activations": waiting + stack.before, "casts": waiting_casts}
            last["workspace"] = stack.wide + _gradient_of_states(stacks, place)
            last["gradients"] = gradients + _table_gradient(stack, layout)
            yield f"backward, {stack.name}embedding", {**always, **last}
            gradients += 0 if accumulates or stack.config.tie_word_embeddings else _table_gradient(stack, layout)

    if not stacks[0].passed:
        last = {"activations": stacks[0].before, "workspace": stacks[0].wide}
        # a matrix that is used twice gathers the gradients of both uses before they are one
        twice = stacks[0].config.tie_word_embeddings if len(stacks) == 1 else getattr(config, "share_embeddings", False)
        last["gradients"] = layout.gradients + (_table_gradient(stacks[0], layout) if twice or accumulates else 0)
        yield f"backward, {stacks[0].name}embedding", {**always, **last}
    yield "optimizer", {**always, "gradients": layout.gradients, "workspace": _optimizer_workspace(layout, settings)}


def _stages(stack, index, kept, gradients, layout):
    """Bytes by part while the feed-forward, the cross-attention and the attention of a layer are differentiated."""
    layer, unit = stack.layers[index], stack.units[index]
    yield {
        "activations": kept,
        "workspace": layer.workspace["mlp"],
        "gradients": gradients + _first(stack, layout, unit, index),
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


def _first(stack, layout, unit, index):
    """Gradients that a feed-forward has made when it needs the most: of its last product, or of all fused experts."""
    made = _made(layout, unit, ("mlp",))
    if stack.sparse[index]:
        return made
    return made / (3 if getattr(stack.config, "mlp_type", "plain") == "gated" else 2)


def _gradient_of_states(stacks, place):
    """Bytes of the gradient of the encoder's states, which waits while the decoder is differentiated."""
    return stacks[place - 1].wide if place else 0


def _reached(stack, values):
    """The values of layers, of which those that no gradient reaches count nothing."""
    return [0] * stack.passed + values[stack.passed :]


def _table_gradient(stack, layout):
    if stack.frozen:
        return 0
    vocabulary = stack.config.vocab_size / vocabulary_divisor(stack.config, stack.batch.tensor_parallel)
    return vocabulary * stack.config.embedding_size * layout.stream


def _head(stack, settings, layout):
    """Bytes of the gradients that the fused loss makes (of states and head), of the head's alone, and of a chunk of logits."""
    config, batch = stack.config, stack.batch
    size = batch.product_bytes
    vocabulary = config.vocab_size / vocabulary_divisor(config, settings["tensor_parallel"])
    targets = batch.tokens if stack.labelled is None else stack.labelled
    step = chunk_rows(targets, vocabulary, config.lm_head_width, size, settings["device"], not stack.frozen)
    chunk = vocabulary * step * size
    matrix = vocabulary * config.lm_head_width
    gradient = matrix * (4 if step < targets else size)
    rows = config.lm_head_width * batch.tokens * size
    if stack.labelled is not None:
        # the rows that are targets are copied out, and so are their gradients
        chunk += 2 * config.lm_head_width * targets * size
    if stack.frozen:
        return rows, 0, chunk
    return rows + gradient, matrix * layout.stream, chunk


def _optimizer_workspace(layout, settings):
    if settings["optimizer"] != "muon":
        return 0  # fused kernels write in place
    # the update, and the matrix, its square and their product in bf16, of the largest hidden matrix
    largest = max((share.largest for unit in layout.layers for share in unit if share.hidden_matrix), default=0)
    return largest * (layout.stream + 3 * 2)


def generating(config, settings, layout, stacks):
    """(phase, bytes by part) of the pass of encoder or images where there is one, a prefill of all rows, and decoding."""
    decoder, size = stacks[-1], stacks[-1].batch.product_bytes
    own = kv_cache_size(
        decoder.config, settings["length"], settings["rows"], size, 0 if decoder.config.add_cross_attention else None
    ).bytes
    across = kv_cache_size(decoder.config, settings["length"], settings["rows"], size, settings["encoder_length"]).bytes - own
    if settings["images"]:
        across = settings["rows"] * image_cache_bytes(config, settings["images"], size)
    split = settings["tensor_parallel"] if splits_attention(decoder.config) else 1
    # cross-attentions to images stay whole
    own, across = own / split, across / (1 if settings["images"] else split)
    logits = settings["rows"] * decoder.config.vocab_size * size
    # what a layer would keep lives while it runs
    widest = [max(layer.total for layer in stack.layers) + 2 * stack.wide for stack in stacks]
    fixed = {"weights": layout.weights, "communication": layout.communication()}
    states = sum(stack.wide for stack in stacks[:-1])
    if len(stacks) > 1 and states:
        yield "encoding", {**fixed, "workspace": widest[0]}
    yield "prefill", {**fixed, "cache": own + across, "workspace": widest[-1] + states, "head": logits}
    step = widest[-1] / settings["length"] + states
    yield "decoding", {**fixed, "cache": own * 9 / 8 + across, "head": logits, "workspace": step}
