"""Models without weights: what names, shapes and dtypes a class wants for a config, and where the weights go.

Notable here: parameters lie on the meta device and constants (RoPE frequencies, ALiBi slopes) are real, so a skeleton runs as
soon as it is given weights; `streaming` gives them layer by layer and takes them back. What a skeleton holds is asked for
often and never changes, so it is listed once.
"""

from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch

# {skeleton: its state dict}: hollow tensors, until it is filled.
_LISTED = WeakKeyDictionary()


def skeleton(cls, config, dtype, **chosen):
    """A model of class `cls` in eval mode whose parameters, of the dtypes that loading in `dtype` gives, hold nothing."""
    from accelerate import init_empty_weights
    from transformers.initialization import no_init_weights

    with no_init_weights(), init_empty_weights(include_buffers=False):
        model = cls._from_config(config, dtype=dtype, **chosen)
    _LISTED[model] = model.state_dict()
    return model.eval()


def tensors_of(model):
    """{name: tensor} as `model.state_dict()`, which of a skeleton is not made anew."""
    found = _LISTED.get(model)
    return model.state_dict() if found is None else found


def loaded_dtypes(model, dtype):
    """A function of a tensor's name: the dtype that `from_pretrained(dtype=dtype)` gives it.

    The class may keep some in fp32 (`_keep_in_fp32_modules_strict`, or parameters built so).
    """
    from transformers.core_model_loading import build_glob_alternation

    plan, own = model._get_dtype_plan(dtype), tensors_of(model)
    match = build_glob_alternation(list(plan))[0].search if plan else lambda name: None
    built = {name: tensor.dtype for name, tensor in own.items() if tensor.is_floating_point()}
    return lambda name: torch.float32 if match(name) else built.get(name, dtype)


def head_name(model):
    """Name of the weight of the language-model head: `lm_head.weight`, but in BioGPT; None where there is no such head."""
    head = model.get_output_embeddings()
    return None if head is None else _name_of(model, head)


def tied_names(model, config):
    """{name of a tensor of a tied head: name of the tensor it repeats}; BERT's has a second name of its bias too."""
    head = head_name(model)
    if model.config.is_encoder_decoder:
        tied = dict(model.all_tied_weights_keys or {})
        return {name: source for name, source in tied.items() if name != head or config.tie_word_embeddings}
    if head is None or not config.tie_word_embeddings:
        return {}
    return {**(getattr(model, "all_tied_weights_keys", None) or {}), head: embedding_name(model)}


def release_head(model):
    """Give an encoder-decoder a head of its own though its config says that it is tied, as files may hold one (T5 v1.1)."""
    head = model.get_output_embeddings()
    _LISTED.pop(model, None)
    model.all_tied_weights_keys.pop(head_name(model), None)
    head.weight = torch.nn.Parameter(torch.empty_like(head.weight), requires_grad=head.weight.requires_grad)
    return model


def head_table(model):
    """The module whose weight a tied head repeats."""
    return model.get_decoder().embed_tokens if model.config.is_encoder_decoder else model.get_input_embeddings()


def embedding_name(model):
    """Name of the weight of the token embedding that a tied head repeats."""
    name = _name_of(model, head_table(model))
    return (model.all_tied_weights_keys or {}).get(name, name) if model.config.is_encoder_decoder else name


def _name_of(model, wanted):
    return next(f"{name}.weight" for name, module in model.named_modules() if module is wanted)


def expected_tensors(model):
    """{name: tensor} of what a checkpoint of `model` has to hold; a tied head is the embedding and no tensor of its own."""
    tied = tied_names(model, model.config)
    return {name: tensor for name, tensor in tensors_of(model).items() if name not in tied}


def layers_of(model):
    """The list of the model's layers, in the order in which they run."""
    if model.config.is_encoder_decoder:
        stacks = (model.get_encoder(), model.get_decoder())
        return [layer for stack in stacks for layer in _first_list(stack)]
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return next(found for found in lists if len(found) == model.config.num_hidden_layers)


def _first_list(stack):
    return next(module for module in stack.modules() if isinstance(module, torch.nn.ModuleList))


@contextmanager
def streaming(model, weights):
    """Within, `model` (a skeleton) runs in fp32 with `weights`, of which it holds those of one layer at a time.

    Args:
        weights: LazyTensors by the names of the model.
    """
    handles = []
    for module, places in _blocks(model, weights):
        fill, empty = _filler(places, weights)
        handles += [module.register_forward_pre_hook(fill), module.register_forward_hook(empty)]
        if module is model.get_input_embeddings():
            # Llama 4 asks where the table lies before it is used
            fill(module, ())
    try:
        yield model
    finally:
        for handle in handles:
            handle.remove()


def _blocks(model, weights):
    """[(module, [(table of parameters or buffers, name there, name in `weights`)])] of each layer, with all that it contains,
    and of every module outside the layers that holds tensors.
    """
    layers, source = set(map(id, layers_of(model))), tied_names(model, model.config)
    order = {name: index for index, name in enumerate(weights)}
    blocks, layer = [], None
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if id(module) in layers:
            layer = prefix
        if id(module) in layers or layer is None or not path.startswith(layer):
            blocks.append((module, []))
        for table in (module._parameters, module._buffers):
            for leaf, held in table.items():
                name = source.get(prefix + leaf, prefix + leaf)
                # constants are there already
                if held is not None and (table is module._parameters or name in weights):
                    blocks[-1][1].append((table, leaf, name))
    # in the order in which the weights are made, so that no step runs twice
    return [(module, sorted(places, key=lambda place: order.get(place[2], -1))) for module, places in blocks if places]


def _filler(places, weights):
    """Two hooks: one gives a module its weights, one takes them back."""
    hollow = [(table, leaf, table[leaf]) for table, leaf, _ in places if isinstance(table[leaf], torch.nn.Parameter)]

    def fill(module, arguments):
        for table, leaf, name in places:
            value = weights[name]
            value = value.float() if value.is_floating_point() else value
            is_parameter = isinstance(table[leaf], torch.nn.Parameter)
            table[leaf] = torch.nn.Parameter(value, requires_grad=False) if is_parameter else value

    def empty(module, arguments, output):
        for table, leaf, parameter in hollow:
            table[leaf] = parameter

    return fill, empty


def filled(model, weights):
    """`model` (a skeleton) with all of `weights` in fp32, trainable."""
    _LISTED.pop(model, None)
    for _, places in _blocks(model, weights):
        for table, leaf, name in places:
            value = weights[name]
            value = value.float().clone() if value.is_floating_point() else value
            table[leaf] = torch.nn.Parameter(value) if isinstance(table[leaf], torch.nn.Parameter) else value
    if model.config.is_encoder_decoder:
        model.tie_weights(recompute_mapping=False)
    elif model.config.tie_word_embeddings:
        model.tie_weights()
    frozen = {id(part.weight) for part in model.modules() if "Sinusoidal" in type(part).__name__ and hasattr(part, "weight")}
    model.requires_grad_(True)
    for parameter in model.parameters():
        if id(parameter) in frozen:
            parameter.requires_grad_(False)
    return model
