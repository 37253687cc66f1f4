"""What the image side of a vision-language model keeps for its backward pass and holds: tower, bridge, gated cross-attentions.

Notable here: towers are transformers' own, and so is nothing known of their inside: they run on fake tensors, which hold no
numbers, and what autograd keeps of them is counted. The family's own encoder and cross-attentions are read off their plans.
"""

import contextlib
import gc
import weakref
from dataclasses import dataclass, replace

from hf_variants.modeling.layer_plan import cross_plan

from .activations import LayerMemory, dense_memory, layer_memory, outer_memory
from .attention_memory import attention_memory, lies_by_heads
from .joined import cross_plans, tower_on_meta
from .memory_batch import Batch, norm_statistics
from .parameter_shares import Share


@dataclass(frozen=True)
class ImageSide:
    """Tower and bridge on one device.

    Attributes:
        layers: `LayerMemory` of each tower layer that is read, and of the bridge last.
        units, outer: the `Share`s of each of them, and of what else the tower has.
        before, after: bytes kept before the layers and behind them.
        wide: bytes of what the language model reads of all images.
    """

    layers: list
    units: list
    outer: tuple
    before: float
    after: float
    wide: float


def image_side(config, images, settings, trains):
    """`ImageSide` of `images` images on one device, of which the parts `trains` are trained."""
    modules = tower_on_meta(config)
    tower, bridge = modules["vision_tower"], modules["bridge"]
    layers = _layers_of(tower)
    inside = {id(weight) for layer in layers for weight in layer.parameters()}
    units = [module_shares("tower", layer, frozen="tower" not in trains) for layer in layers]
    units.append(module_shares("bridge", bridge, frozen="bridge" not in trains))
    outer = module_shares("tower", tower, without=inside, frozen="tower" not in trains)
    batch = Batch(images, 1, settings["dtype"])
    if not images:
        nothing = LayerMemory({"attention": 0, "mlp": 0}, 0, {"attention": 0, "mlp": 0})
        return ImageSide([nothing] * len(units), units, outer, 0, 0, 0)
    own = config.vision_config.model_type == "variants_image_encoder"
    found, before, after = (_own_tower if own else _native_tower)(config, tower, images, settings["dtype"])
    bridged, wide = _bridge(config, bridge, images, settings["dtype"], "tower" in trains, "bridge" in trains)
    if "tower" not in trains:
        # what it would keep lives while it runs, and no longer
        before = after = 0
    sides = config.vision_config.image_size
    height, width = sides if isinstance(sides, (list, tuple)) else (sides, sides)
    before += images * config.vision_config.num_channels * height * width * batch.stream_bytes
    return ImageSide([*found, bridged], units, outer, before, after, wide)


def module_shares(part, module, without=(), frozen=False):
    """The `Share`s of a module, whose parameters are looked at one by one; `without`: ids of parameters to leave out."""
    from torch import nn

    tables = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    linear = {id(each.weight) for each in module.modules() if isinstance(each, nn.Linear)}
    found = []
    for name, weight in module.named_parameters():
        if id(weight) in without:
            continue
        kind = "mlp" if part == "cross" and name.startswith("mlp") else part
        numbers = weight.numel()
        product = weight.dim() > 1 and id(weight) not in tables
        found.append(
            Share(
                kind,
                numbers,
                numbers if product else 0,
                table=id(weight) in tables,
                small=weight.dim() == 1,
                hidden_matrix=id(weight) in linear,
                largest=numbers if id(weight) in linear else 0,
                frozen=frozen,
            )
        )
    return tuple(found)


def _layers_of(tower):
    """Layers of a tower that are read, in order."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in tower.modules() if isinstance(module, GradientCheckpointingLayer)]


def _read_layers(config):
    """How many layers of the tower give what is read."""
    total, layers = config.vision_config.num_hidden_layers, config.vision_feature_layer
    if isinstance(layers, str):
        return total
    chosen = layers if isinstance(layers, (list, tuple)) else [layers]
    return max(layer if layer >= 0 else total + 1 + layer for layer in chosen)


def _own_tower(config, tower, images, dtype):
    """As `_native_tower`, from the plan of the family's own encoder."""
    encoder, batch = config.vision_config.encoder, Batch(images, config.vision_config.num_tokens, dtype)
    layers = [layer_memory(encoder, plan, batch) for plan in encoder.layer_plan()]
    read = _read_layers(config)
    nothing = LayerMemory({"attention": 0, "mlp": 0}, 0, {"attention": 0, "mlp": 0})
    before, _ = outer_memory(encoder, batch, headless=True)
    normed = isinstance(config.vision_feature_layer, str) and encoder.final_norm
    wide = encoder.hidden_size * batch.tokens
    after = wide * batch.stream_bytes + norm_statistics(encoder, batch, 1) if normed else 0
    return [layer if index < read else nothing for index, layer in enumerate(layers)], before, after


class _Kept:
    """Counts what autograd keeps while modules run on fake tensors: bytes of the storages that are alive at the end."""

    def __init__(self, own):
        self.own, self.place, self.held, self.casts = own, "before", [], set()

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata in self.own or storage._cdata in self.casts:
            return tensor
        holder = _Holder(tensor)
        self.held.append((weakref.ref(holder), storage, self.place, tensor.shape[-1] if tensor.dim() else 1))
        return holder

    def bytes(self):
        """{(place, last dimension): bytes}, each storage once, where it was first kept."""
        found, seen = {}, set()
        for alive, storage, place, width in self.held:
            if alive() is not None and storage._cdata not in seen:
                seen.add(storage._cdata)
                found[place, width] = found.get((place, width), 0) + storage.nbytes()
        return found


class _Holder:
    def __init__(self, tensor):
        self.tensor = tensor


def _unpack(held):
    return held.tensor if isinstance(held, _Holder) else held


@contextlib.contextmanager
def _recording(dtype):
    """A context in which modules are built and run on fake tensors in `dtype`; gives a function that makes a `_Kept`."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Casts(TorchDispatchMode):
        """Notes which tensors are copies of weights that autocast makes: they are counted as such."""

        def __init__(self, kept):
            super().__init__()
            self.kept = kept

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self.kept.own:
                self.kept.casts.add(out.untyped_storage()._cdata)
                self.kept.alive.append(out)
            return out

    @contextlib.contextmanager
    def record(module, *inputs):
        own = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers(), *inputs)}
        kept = _Kept(own)
        kept.alive = []
        hooks = torch.autograd.graph.saved_tensors_hooks(kept.pack, _unpack)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed")
        with hooks, autocast, Casts(kept), torch.enable_grad():
            yield kept

    with FakeTensorMode():
        yield record


def _without_numbers(module, dtype):
    """A module of the meta device as one of fake tensors on a CPU, whose kernels are then those of a CPU."""
    import torch

    def fake(tensor):
        return torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device="cpu")

    return module._apply(fake)


def _native_tower(config, tower, images, dtype):
    """(`LayerMemory` of each layer, bytes kept before, behind the layers) of a tower of transformers, as if trained."""
    import torch

    kept_dtype = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    before_attention = config.vision_config._attn_implementation
    with _recording(dtype) as record:
        tower = _without_numbers(tower, kept_dtype).train()
        layers, entries = _layers_of(tower), []
        pixels = torch.zeros(images, tower.num_channels, *tower.image_sides, dtype=kept_dtype)
        inners = [_widest(layer) for layer in layers]
        try:
            for module in tower.modules():
                if hasattr(module, "config"):
                    module.config._attn_implementation = "sdpa"
            with record(tower, pixels) as kept:
                handles = [layer.register_forward_pre_hook(_enter(kept, index, entries)) for index, layer in enumerate(layers)]
                handles.append(layers[-1].register_forward_hook(_leave(kept)))
                out = tower(pixels)
                gc.collect()
                found = kept.bytes()
                del out
        finally:
            config.vision_config._attn_implementation = before_attention
    memories = []
    for index, (entry, inner) in enumerate(zip(entries, inners, strict=True)):
        mlp = found.get((index, inner), 0)
        rest = sum(size for (place, _), size in found.items() if place == index) - mlp
        if not rest + mlp:
            entry = 0  # behind what is read
        wide = entry / config.vision_config.hidden_size * inner
        # gradients of the stream and the branch, and of the inner layer or of queries, keys and values twice
        work = {"mlp": 2 * entry + 2 * wide, "attention": 2 * entry + 6 * entry}
        memories.append(LayerMemory({"attention": rest, "mlp": mlp}, entry, work))
    outside = {side: sum(size for (place, _), size in found.items() if place == side) for side in ("before", "after")}
    return memories, outside["before"], outside["after"]


def _widest(layer):
    from torch import nn

    return max(max(each.in_features, each.out_features) for each in layer.modules() if isinstance(each, nn.Linear))


def _enter(kept, index, entries):
    def hook(module, args, *more):
        kept.place = index
        entries.append(args[0].numel() * args[0].element_size())

    return hook


def _leave(kept):
    def hook(*args):
        kept.place = "after"

    return hook


def _bridge(config, bridge, images, dtype, tower_trained, bridge_trained):
    """`LayerMemory` of the bridge, and bytes of what it gives."""
    import torch

    kept_dtype = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    rows, columns = config.image_grid
    kept_tokens = int(config.vision_feature_select_strategy == "full")
    with _recording(dtype) as record:
        bridge = _without_numbers(bridge, kept_dtype).train()
        bridge.requires_grad_(bridge_trained)
        features = torch.zeros(images, rows * columns + kept_tokens, config.vision_width, dtype=kept_dtype)
        features.requires_grad_(tower_trained)
        with record(bridge) as kept:
            out = bridge(features, (rows, columns))
            found = sum(kept.bytes().values())
            wide = out.numel() * out.element_size()
    inner = max(features.numel() * features.element_size(), wide)
    return LayerMemory({"attention": found, "mlp": 0}, found, {"attention": 2 * inner, "mlp": 2 * inner}), wide


def cross_memory(config, index, batch, states):
    """`LayerMemory` of the gated cross-attention before text layer `index`; `batch.frozen`: whether it is not trained."""
    text = config.text_config
    plan = next(plan for plan in cross_plans(config) if plan.index == index)
    wide, learned = text.hidden_size * batch.tokens, 0 if batch.frozen else 1
    kept, work = attention_memory(text, cross_plan(text, plan), batch, replace(states, frozen=batch.frozen))
    # the input of the norm, what the query reads, and the branch that the gate multiplies
    readers = (1 + (text.attn_output_gate != "none")) if batch.casts else 1
    kept += wide * batch.stream_bytes + norm_statistics(text, batch, 1) + learned * (readers + 1) * wide * batch.product_bytes
    # which states a token sees, as numbers, and without the tokens that see none what the output projection reads
    kept += batch.tokens * states.length * batch.product_bytes
    if learned and not lies_by_heads(text, plan, batch):
        kept += text.num_attention_heads * text.head_dim * batch.tokens * batch.product_bytes
    if batch.casts and learned:
        kept += (1 if text.attention_type == "mla" else 2) * text.hidden_size * states.tokens * batch.product_bytes
    stream = wide * batch.stream_bytes
    read = text.hidden_size * states.tokens * states.stream_bytes
    memory = {"attention": kept, "mlp": 0}
    needed = {"attention": work + 2 * stream + 2 * read, "mlp": 0}
    if config.cross_attention_mlp:
        inner, mlp_work = dense_memory(text, plan, batch)
        lean = 1 if text.mlp_type == "gated" and text.hidden_act != "xielu" else 0
        memory["mlp"] = (
            inner + stream + norm_statistics(text, batch, 1) + (max(learned, lean) + learned) * wide * batch.product_bytes
        )
        needed["mlp"] = mlp_work + 2 * stream
    return LayerMemory(memory, stream, needed)
