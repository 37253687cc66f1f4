"""What the keys of native vision-language configs mean, a pair of functions per family: into ours, and back.

Notable here: natively squares of patches are found by the square root of their number, so a grid that is none is refused; and
"default" drops the first state of any tower, which is a class token, or a patch where there is none: that is refused too.
"""

# The towers that a class token stands before.
_WITH_CLASS_TOKEN = ("clip_vision_model", "vit", "dinov2", "internvl_vision", "qianfan_ocr_vision")


def _refuse(native, key, reason):
    value = native
    for part in key.split("."):
        value = getattr(value, part, None)
    raise ValueError(f"{native.model_type} with {key}={value!r} cannot be converted: {reason}")


def _has_class_token(native):
    return native.vision_config.model_type in _WITH_CLASS_TOKEN


def _refuse_class_token(native):
    if _has_class_token(native):
        _refuse(native, "vision_config.model_type", "its class token would stand among the patches, which are no square then")


def _refuse_first_patch(native, key):
    if not _has_class_token(native):
        reason = "it drops the first state of the tower, which has no class token there but a patch"
        _refuse(native, key, reason + ("; 'full' reads all patches" if key == "vision_feature_select_strategy" else ""))


def _refuse_head(native):
    if getattr(native.vision_config, "vision_use_head", False):
        _refuse(native, "vision_config.vision_use_head", "no feature of a patch reads the head that pools them")


def _read_states(native):
    """Which states of the tower are read, where two keys say it."""
    strategy = native.vision_feature_select_strategy
    if strategy == "default":
        _refuse_first_patch(native, "vision_feature_select_strategy")
    kept = strategy if _has_class_token(native) else "default"
    return {"vision_feature_layer": native.vision_feature_layer, "vision_feature_select_strategy": kept}


def _write_states(config):
    layer = config.vision_feature_layer
    whole = not config.tower_has_class_token or config.vision_feature_select_strategy == "full"
    return {
        "vision_feature_layer": -1 if isinstance(layer, str) else layer,
        "vision_feature_select_strategy": "full" if whole else "default",
    }


def _side(native):
    """Patches along the side of an image, which has to be a square."""
    sides = []
    for key in ("image_size", "patch_size"):
        value = getattr(native.vision_config, key)
        sides.append(list(value) if isinstance(value, (list, tuple)) else [value, value])
    rows, columns = (image // patch for image, patch in zip(*sides, strict=True))
    if rows != columns:
        _refuse(native, "vision_config.image_size", f"its {rows} x {columns} patches are natively taken for a square")
    return rows


def _shuffled(factor):
    return {
        "image_delimiters": False,
        "token_compression": "pixel_shuffle" if factor > 1 else "none",
        "compression_factor": factor if factor > 1 else None,
    }


def read_llava(native):
    return {
        "projector": "mlp",
        "projector_hidden_act": native.projector_hidden_act,
        "projector_bias": native.multimodal_projector_bias,
        "image_delimiters": False,
        "image_token_id": native.image_token_index,
        **_read_states(native),
    }


def write_llava(config):
    return {
        "projector_hidden_act": config.projector_hidden_act,
        "multimodal_projector_bias": config.projector_bias,
        "image_token_index": config.image_token_id,
        "image_seq_length": config.tokens_of_image(),
        **_write_states(config),
    }


def read_vipllava(native):
    _refuse_first_patch(native, "vision_config.model_type")
    return {
        "projector_hidden_act": native.projector_hidden_act,
        "projector_norm": "layernorm",
        "projector_norm_eps": native.projector_layernorm_eps,
        "image_delimiters": False,
        "image_token_id": native.image_token_index,
        "vision_feature_layer": native.vision_feature_layer,
    }


def write_vipllava(config):
    return {
        "projector_hidden_act": config.projector_hidden_act,
        "projector_layernorm_eps": config.projector_norm_eps or 1e-5,
        "image_token_index": config.image_token_id,
        "image_seq_length": config.tokens_of_image(),
        "vision_feature_layer": _write_states(config)["vision_feature_layer"],
    }


def read_deepseek_vl(native):
    kept = "full" if _has_class_token(native) else "default"
    return {"image_delimiters": False, "image_token_id": native.image_token_id, "vision_feature_select_strategy": kept}


def write_deepseek_vl(config):
    return {"image_token_id": config.image_token_id}


def read_internvl(native):
    own = f"{native.model_type}_vision"
    if native.vision_config.model_type != own:
        _refuse(native, "vision_config.model_type", f"read from a file, its tower is natively of the type {own!r}")
    factor = max(int(1 / native.downsample_ratio), 1)
    if 1 / factor != native.downsample_ratio or factor & (factor - 1):
        _refuse(native, "downsample_ratio", "it is the inverse of the side of the squares that are joined, 1, 1/2, 1/4 ...")
    if isinstance(native.vision_feature_layer, (list, tuple)):
        _refuse(native, "vision_feature_layer", "it reads one layer")
    if native.vision_feature_select_strategy == "full":
        _refuse_class_token(native)
    _side(native)
    states = _read_states(native)
    if states["vision_feature_layer"] == -1:
        # the one index that is natively taken behind the final norm
        states["vision_feature_layer"] = "last_hidden_state"
    return {
        **_shuffled(factor),
        **states,
        "projector_hidden_act": native.projector_hidden_act,
        "projector_norm": "layernorm",
        "image_token_id": native.image_token_id,
    }


def write_internvl(config):
    return {
        **_write_states(config),
        "projector_hidden_act": config.projector_hidden_act,
        "image_token_id": config.image_token_id,
        "image_seq_length": config.tokens_of_image(),
        "downsample_ratio": 1 / (config.compression_factor or 1),
    }


def _read_gated(native, width):
    if width % 2:
        _refuse(native, "alignment_intermediate_size", "it is halved into values and their gate")
    _side(native)
    return {
        **_shuffled(native.downsample_factor),
        "projector": "gated",
        "projector_hidden_act": "silu",
        "projector_intermediate_size": width // 2,
    }


def _write_gated(config):
    return {
        "downsample_factor": config.compression_factor or 1,
        "alignment_intermediate_size": 2 * (config.projector_intermediate_size or 1),
    }


def read_aya_vision(native):
    keys = _read_gated(native, getattr(native, "alignment_intermediate_size", native.text_config.hidden_size))
    if isinstance(native.vision_feature_layer, (list, tuple)):
        _refuse(native, "vision_feature_layer", "its projector is natively built for one layer")
    if native.vision_feature_select_strategy == "full":
        _refuse_class_token(native)
    norm = {"projector_norm": "layernorm", "projector_norm_eps": native.adapter_layer_norm_eps}
    return {**keys, **norm, **_read_states(native), "image_token_id": native.image_token_index}


def write_aya_vision(config):
    keys = {**_write_gated(config), **_write_states(config), "image_token_index": config.image_token_id}
    if keys["alignment_intermediate_size"] == config.text_config.hidden_size:
        # no declared key, so it is written only where it says something
        del keys["alignment_intermediate_size"]
    return {**keys, "adapter_layer_norm_eps": config.projector_norm_eps or 1e-6}


def read_cohere2_vision(native):
    _refuse_class_token(native)
    return {**_read_gated(native, native.alignment_intermediate_size), "image_token_id": native.image_token_id}


def write_cohere2_vision(config):
    return {**_write_gated(config), "image_token_id": config.image_token_id}


def read_idefics3(native):
    return {
        **_shuffled(native.scale_factor),
        "projector": "affine",
        "projector_bias": False,
        "image_token_id": native.image_token_id,
    }


def write_idefics3(config):
    return {"image_token_id": config.image_token_id, "scale_factor": config.compression_factor or 1}


def read_paligemma(native):
    if native.projection_dim != native.text_config.hidden_size:
        _refuse(native, "projection_dim", f"text_config.hidden_size={native.text_config.hidden_size} is what enters the text")
    _refuse_head(native)
    if native.text_config.use_bidirectional_attention is not True:
        _refuse(native, "text_config.use_bidirectional_attention", "a prefix that sees itself is what the family does")
    return {
        "projector": "affine",
        "image_delimiters": False,
        "image_attention": "prefix",
        "image_token_id": native.image_token_index,
    }


def write_paligemma(config):
    width = config.text_config.hidden_size
    return {"image_token_index": config.image_token_id, "projection_dim": width, "hidden_size": width}


def read_gemma3(native):
    _refuse_head(native)
    _refuse_class_token(native)
    patches, tokens = _side(native), int(native.mm_tokens_per_image**0.5)
    if tokens**2 != native.mm_tokens_per_image or tokens == 0 or patches % tokens:
        _refuse(native, "mm_tokens_per_image", f"squares of patches do not tile {patches} x {patches} into so many")
    text = native.text_config
    if "sliding_attention" in text.layer_types and text.sliding_window < native.mm_tokens_per_image:
        reason = (
            f"with images of {native.mm_tokens_per_image} tokens, of which one natively sees all later ones beyond its window"
        )
        _refuse(native, "text_config.sliding_window", reason)
    factor = patches // tokens
    return {
        "projector": "affine",
        "projector_bias": False,
        "projector_norm": "rmsnorm",
        "projector_norm_eps": native.vision_config.layer_norm_eps,
        "token_compression": "pool" if factor > 1 else "none",
        "compression_factor": factor if factor > 1 else None,
        "image_delimiters": False,
        "image_attention": "bidirectional",
        "image_token_id": native.image_token_index,
    }


def write_gemma3(config):
    return {"image_token_index": config.image_token_id, "mm_tokens_per_image": config.tokens_of_image()}
