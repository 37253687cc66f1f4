"""The same weights under another RoPE rule, without copying them."""

from transformers import initialization

from .scaling import scale_rope


def with_config(model, config):
    """A model of the same class with `config`, holding the very same parameters (not copies) as `model`.

    Only what has no weights may differ: RoPE rules and the length of the context.

    Raises:
        ValueError: for a quantized model, or where the config means other weights.
    """
    if getattr(model, "is_quantized", False) or getattr(model.config, "quantization_config", None):
        raise ValueError("the model is quantized; extend the context first and quantize the result")
    with initialization.no_init_weights():
        twin = type(model)(config)
    weights = model.state_dict(keep_vars=True)
    ours = {name: tensor.shape for name, tensor in twin.state_dict().items()}
    if ours != {name: tensor.shape for name, tensor in weights.items()}:
        differing = sorted(name for name in ours.keys() | weights.keys() if ours.get(name) != _shape(weights, name))
        raise ValueError(f"the new config means other weights than the model has: {differing[:5]}")
    twin.load_state_dict(weights, assign=True)
    return twin.to(model.device).train(model.training)


def scaled_model(model, method, factor, **options):
    """`with_config` of `scale_rope(model.config, method, factor, **options)`."""
    return with_config(model, scale_rope(model.config, method, factor, **options))


def _shape(weights, name):
    return weights[name].shape if name in weights else None
