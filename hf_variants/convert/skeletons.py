"""Models without weights: what names, shapes and dtypes a class wants for a config, and where the weights go.

Notable here: parameters lie on the meta device and constants (RoPE frequencies, ALiBi slopes) are real, so a skeleton runs as
soon as it is given weights; `streaming` gives them layer by layer and takes them back.
"""

from contextlib import contextmanager

import torch


def skeleton(cls, config, dtype, **chosen):
    """A model of class `cls` in eval mode whose parameters, of the dtypes that loading in `dtype` gives, hold nothing."""
    from accelerate import init_empty_weights
    from transformers.initialization import no_init_weights

    with no_init_weights(), init_empty_weights(include_buffers=False):
        model = cls._from_config(config, dtype=dtype, **chosen)
    return model.eval()


def loaded_dtypes(model, dtype):
    """A function of a tensor's name: the dtype that `from_pretrained(dtype=dtype)` gives it.

    The class may keep some in fp32 (`_keep_in_fp32_modules_strict`, or parameters built so).
    """
    from transformers.core_model_loading import build_glob_alternation

    plan, own = model._get_dtype_plan(dtype), model.state_dict()
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
    if head is None or not config.tie_word_embeddings:
        return {}
    return {**(getattr(model, "all_tied_weights_keys", None) or {}), head: embedding_name(model)}


def embedding_name(model):
    """Name of the weight of the token embedding."""
    return _name_of(model, model.get_input_embeddings())


def _name_of(model, wanted):
    return next(f"{name}.weight" for name, module in model.named_modules() if module is wanted)


def expected_tensors(model):
    """{name: tensor} of what a checkpoint of `model` has to hold; a tied head is the embedding and no tensor of its own."""
    tied = tied_names(model, model.config)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def layers_of(model):
    """The list of the model's layers, in the order in which they run."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return next(found for found in lists if len(found) == model.config.num_hidden_layers)


@contextmanager
def streaming(model, weights):
    """Within, `model` (a skeleton) runs in fp32 with `weights`, of which it holds those of one layer at a time.

    Args:
        weights: LazyTensors by the names of the model.
    """
    source = tied_names(model, model.config)
    handles = []
    for prefix, module, recurse in _blocks(model):
        fill, empty = _filler(prefix, module, weights, source, recurse)
        handles += [module.register_forward_pre_hook(fill), module.register_forward_hook(empty)]
    try:
        yield model
    finally:
        for handle in handles:
            handle.remove()


def _blocks(model):
    """(prefix, module, whether with what it contains) of each layer, and of everything outside the layers."""
    layers = set(map(id, layers_of(model)))
    inside = {id(part) for layer in layers_of(model) for part in layer.modules()}
    for name, module in model.named_modules():
        if id(module) in layers:
            yield f"{name}.", module, True
        elif id(module) not in inside and (module._parameters or module._buffers):
            yield f"{name}." if name else "", module, False


def _filler(prefix, module, weights, source, recurse):
    names = [n for n, _ in module.named_parameters(recurse=recurse, remove_duplicate=False)]
    names += [n for n, _ in module.named_buffers(recurse=recurse) if source.get(prefix + n, prefix + n) in weights]

    def fill(module, arguments):
        values = {name: weights[source.get(prefix + name, prefix + name)] for name in _in_order(names, prefix, weights)}
        _assign(module, {name: v.float() if v.is_floating_point() else v for name, v in values.items()})

    def empty(module, arguments, output):
        _assign(module, {name: module.get_parameter(name).to("meta") for name in names if _is_parameter(module, name)})

    return fill, empty


def _in_order(names, prefix, weights):
    """In the order in which the weights are made, so that no step runs twice."""
    order = {name: index for index, name in enumerate(weights)}
    return sorted(names, key=lambda name: order.get(prefix + name, -1))


def _is_parameter(module, name):
    path, _, leaf = name.rpartition(".")
    return leaf in module.get_submodule(path)._parameters


def _assign(module, values):
    for name, value in values.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        if leaf in owner._parameters:
            owner._parameters[leaf] = torch.nn.Parameter(value, requires_grad=False)
        else:
            owner._buffers[leaf] = value


def filled(model, weights):
    """`model` (a skeleton) with all of `weights` in fp32, trainable."""
    tied = model.config.tie_word_embeddings
    values = {name: weights[name] for name in weights}
    _assign(model, {name: value.float().clone() if value.is_floating_point() else value for name, value in values.items()})
    if tied:
        model.tie_weights()
    return model.requires_grad_(True)
