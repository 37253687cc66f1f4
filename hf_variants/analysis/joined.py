"""Counts of vision-language models: C_encoder of an image and C_LLM of a token, in one row.

    (images x C_encoder + L x C_LLM) / L per token of the text's row, image tokens among them

Notable here: the language model is counted from its layer plan; towers are transformers' own and are run on the meta device,
where torch counts their products without computing or holding any. Every other config, encoder-decoders too, is passed on.
"""

from collections import Counter
from dataclasses import replace

from hf_variants.modeling.layer_plan import cross_plan

from .cache_size import cached_numbers_per_token
from .counts import ParameterCounts, attention_size, count_parameters, mlp_size, norm_size
from .flops import PAIRS, FlopCounts, flops_per_token, reading_flops, score_flops_per_pair


def is_pair(config):
    """Whether a config joins an encoder and a decoder."""
    return hasattr(config, "encoder") and hasattr(config, "decoder")


def sees_images(config):
    """Whether a config joins an image tower and a language model."""
    return hasattr(config, "text_config") and hasattr(config, "vision_config")


def text_of(config):
    """The `VariantsConfig` whose row is counted: the decoder, the text, or the config itself."""
    return config.decoder if is_pair(config) else config.text_config if sees_images(config) else config


def refuse_several_stacks(config, name):
    """Raise ValueError, with `name`, for a config (of ours or native) whose rows are not read by one stack of layers alone."""
    if config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder, whose rows see two inputs; give a model of one stack of layers")
    if sees_images(config):
        raise ValueError(f"{name} reads images beside its rows; give a model of text alone")


def joined_parameters(config):
    """`ParameterCounts`; of a vision-language config the parts are named after the model that they are of."""
    if not sees_images(config):
        return count_parameters(config)
    modules = tower_on_meta(config)
    sizes = {name: sum(weight.numel() for weight in module.parameters()) for name, module in modules.items()}
    sizes["cross_layers"] = sum(_cross_layer_numbers(config, plan) for plan in cross_plans(config))
    sizes = {name: size for name, size in sizes.items() if size}
    images = ParameterCounts(sum(sizes.values()), sum(sizes.values()), sizes, sizes)
    return _joined({"image": images, "text": count_parameters(config.text_config)})


def _joined(models):
    """One `ParameterCounts` of several, {name: counts}."""
    parts, active = (
        {f"{name}_{part}": size for name, counts in models.items() for part, size in getattr(counts, kind).items()}
        for kind in ("parts", "active_parts")
    )
    buffers = sum(counts.buffers for counts in models.values())
    return ParameterCounts(sum(parts.values()), sum(active.values()), parts, active, buffers)


def joined_flops(config, length, mode="prefill", pairs="visible", latent=None, encoder_length=None, images=1):
    """Forward FLOPs as `flops_per_token`, per token of the text's row, and {part: backward FLOPs} beside them.

    Args:
        encoder_length: tokens that the encoder reads; None: as many as the decoder.
        images: images in the row, of the tower's own size, before the text that sees them.

    Raises:
        ValueError: as `flops_per_token`, and for a row that is shorter than its images.
    """
    if pairs not in PAIRS:
        raise ValueError(f"pairs={pairs!r} is unknown; choose from {list(PAIRS)}")
    if sees_images(config):
        return _image_flops(config, length, mode, pairs, latent, images)
    flops = flops_per_token(config, length, mode, pairs, latent, encoder_length)
    return flops, {part: 2 * value for part, value in flops.parts.items()}


def _image_flops(config, length, mode, pairs, latent, images):
    tokens = images * config.tokens_of_image()
    if images < 0 or length < tokens:
        raise ValueError(
            f"length={length} is shorter than images={images} of {config.tokens_of_image()} tokens each; count a longer row"
        )
    text = flops_per_token(config.text_config, length, mode, pairs, latent)
    parts = {f"text_{part}": value for part, value in text.parts.items()}
    absorbed = mode == "decode" if latent is None else latent == "absorbed"
    for part, value in _across(config, length, mode, pairs, absorbed, images).items():
        parts[part] = parts.get(part, 0) + value
    backward = {part: 2 * value for part, value in parts.items()}
    if mode == "prefill" and images:
        tower = image_flops(config)
        for part, (forward, back) in tower.items():
            parts[part], backward[part] = images * forward / length, images * back / length
    parts = {part: value for part, value in parts.items() if value}
    return FlopCounts(sum(parts.values()), length, mode, parts), {part: backward[part] for part in parts}


def cross_plans(config):
    """Plans of the layers that a gated cross-attention stands before, with the width of what it reads."""
    plans, chosen = config.text_config.layer_plan(), config.cross_attention_layers or []
    return [replace(plans[index], cross_width=config.text_config.hidden_size) for index in chosen]


def cross_blocks(config):
    """{index of a text layer: the `GatedCrossAttention` before it, on the meta device}."""
    import torch

    from hf_variants.modeling.gated_cross_attention import GatedCrossAttention

    text, plans = config.text_config, config.text_config.layer_plan()
    with torch.device("meta"):
        chosen = config.cross_attention_layers or []
        return {index: GatedCrossAttention(text, plans[index], config.cross_attention_mlp) for index in chosen}


def _cross_layer_numbers(config, plan):
    """Parameters of one gated cross-attention: norm, attention and gate, and the feed-forward's."""
    text = config.text_config
    size = attention_size(text, cross_plan(text, plan), plan.cross_width) + norm_size(text, text.hidden_size)
    if config.cross_attention_mlp:
        size += mlp_size(text, text.intermediate_size) + norm_size(text, text.hidden_size)
    return size.total + 1 + config.cross_attention_mlp


def _across(config, length, mode, pairs, absorbed, images):
    """FLOPs of one text token in the gated cross-attentions."""
    text, found = config.text_config, Counter()
    if not images or config.bridge != "gated_cross_attention":
        return found
    own = states_of_image(config)
    states = images * own
    seen = own if pairs == "visible" and config.cross_attention_scope == "last" else states
    for plan in cross_plans(config):
        found["image_cross_layers"] += 2 * attention_size(text, cross_plan(text, plan), plan.cross_width).matrix
        found["image_cross_layers"] += reading_flops(text, plan, states, length, mode, absorbed)
        found["image_cross_scores"] += score_flops_per_pair(text, absorbed) * seen
        if config.cross_attention_mlp:
            found["image_cross_layers"] += 2 * mlp_size(text, text.intermediate_size).matrix
    return found


def states_of_image(config):
    """States that one image of the tower's own size becomes, delimiters among them."""
    return config.features_of_image(*_sides(config)) + 2 * int(config.image_delimiters)


def image_cache_bytes(config, images, dtype_bytes=2):
    """Bytes that the cross-attentions of a config keep of its images: keys and values of each, and the image of each state."""
    if config.bridge != "gated_cross_attention" or not images:
        return 0
    text, states = config.text_config, images * states_of_image(config)
    plans = [cross_plan(text, text.layer_plan()[index]) for index in config.cross_attention_layers]
    numbers = sum(cached_numbers_per_token(text, plan) for plan in plans)
    # the number of the image of each state, once as a key and once as a value, in fp32
    return states * (numbers * dtype_bytes + 2 * 4)


def _sides(config):
    size = config.vision_config.image_size
    return tuple(size) if isinstance(size, (list, tuple)) else (size, size)


def tower_on_meta(config):
    """{"vision_tower", "bridge": module} of a vision-language config, without memory."""
    import torch

    from hf_variants.modeling.image_readers import WIDTHS
    from hf_variants.modeling.vision_bridge import VisionBridge
    from hf_variants.modeling.vision_tower import build_tower

    with torch.device("meta"):
        tower = build_tower(config.vision_config, config.vision_feature_layer, config.vision_feature_select_strategy == "full")
        bridge = VisionBridge(config, WIDTHS[config.bridge](config.text_config))
    for module in tower.modules():
        if hasattr(module, "config"):
            # fused kernels are counted on no device but a GPU
            module.config._attn_implementation = "eager"
    return {"vision_tower": tower, "bridge": bridge}


def image_flops(config):
    """{part: (forward, backward)} FLOPs of one image of the tower's own size, in the tower and in the bridge."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    kept = config.vision_config._attn_implementation
    modules = tower_on_meta(config)
    tower, bridge = modules["vision_tower"], modules["bridge"]
    height, width = _sides(config)
    pixels = torch.zeros(1, tower.num_channels, height, width, device="meta")
    try:
        with FlopCounterMode(display=False) as first:
            features = tower(pixels)
        with FlopCounterMode(display=False) as second:
            read = bridge(features, tower.grid(height, width))
        with FlopCounterMode(display=False) as third:
            read.sum().backward(inputs=[*bridge.parameters(), features])
        with FlopCounterMode(display=False) as fourth:
            tower(pixels).sum().backward()
    finally:
        config.vision_config._attn_implementation = kept
    forward = first.get_total_flops()
    return {
        "image_vision_tower": (forward, fourth.get_total_flops() - forward),
        "image_bridge": (second.get_total_flops(), third.get_total_flops()),
    }
