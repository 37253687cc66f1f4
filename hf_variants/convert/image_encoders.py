"""Native image encoders (ViT, SigLIP, CLIP) as our own: the config in our words, the weights under our names.

Notable here: weights are renamed and reshaped, never changed, so both give the same features; what feeds pooled vectors alone
(ViT's pooler, SigLIP's head, CLIP's norm behind the class token) has no place in an encoder of patches and is left out.
"""

from ..modeling.configuration_image_encoder import VIT, VariantsImageEncoderConfig
from ..modeling.modeling_image_encoder import VariantsImageEncoder

_LAYER = {
    "input_layernorm": "layer_norm1",
    "post_attention_layernorm": "layer_norm2",
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.k_proj",
    "self_attn.v_proj": "self_attn.v_proj",
    "self_attn.o_proj": "self_attn.out_proj",
    "mlp.up_proj": "mlp.fc1",
    "mlp.down_proj": "mlp.fc2",
}
_VIT_LAYER = {
    **{name: f"attention.{name.split('.')[-1]}" for name in _LAYER if name.startswith("self_attn")},
    "input_layernorm": "layernorm_before",
    "post_attention_layernorm": "layernorm_after",
    "mlp.up_proj": "mlp.fc1",
    "mlp.down_proj": "mlp.fc2",
}
_POSITIONS = "encoder.embed_positions.weight"

# model_type -> where its layers stand, our name of a module of a layer -> its own, and the same outside the layers
NAMES = {
    "vit": (
        "layers",
        _VIT_LAYER,
        {
            "patch_embedding": "embeddings.patch_embeddings.projection",
            "class_token.embedding": "embeddings.cls_token",
            _POSITIONS: "embeddings.position_embeddings",
            "encoder.norm": "layernorm",
        },
    ),
    "siglip_vision_model": (
        "encoder.layers",
        _LAYER,
        {
            "patch_embedding": "embeddings.patch_embedding",
            _POSITIONS: "embeddings.position_embedding.weight",
            "encoder.norm": "post_layernorm",
        },
    ),
    "clip_vision_model": (
        "encoder.layers",
        _LAYER,
        {
            "patch_embedding": "embeddings.patch_embedding",
            "class_token.embedding": "embeddings.class_embedding",
            _POSITIONS: "embeddings.position_embedding.weight",
            "encoder.embed_norm": "pre_layrnorm",
        },
    ),
}


def image_encoder_config(native):
    """The `VariantsImageEncoderConfig` of a native vision config. Raises ValueError for one that has none."""
    kind = native.model_type
    if kind not in NAMES:
        raise ValueError(
            f"model_type={kind!r} cannot be taken into VariantsImageEncoder; choose from {list(NAMES)}, or use it as it is as "
            "a vision tower (modeling.vision_tower.TOWERS)"
        )
    stack = {
        **VIT,
        "norm_eps": native.layer_norm_eps,
        "attention_bias": getattr(native, "qkv_bias", True),
        "attention_out_bias": True,
        "attention_dropout": getattr(native, "attention_probs_dropout_prob", getattr(native, "attention_dropout", 0.0)),
        "hidden_dropout": getattr(native, "hidden_dropout_prob", 0.0),
        "embedding_dropout": getattr(native, "hidden_dropout_prob", 0.0),
        "final_norm": kind != "clip_vision_model",
        "embedding_norm": kind == "clip_vision_model",
        "initializer_range": getattr(native, "initializer_range", 0.02),
    }
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"):
        stack[name] = getattr(native, name)
    return VariantsImageEncoderConfig(
        encoder=stack,
        image_size=_sides(native.image_size),
        patch_size=_sides(native.patch_size),
        num_channels=native.num_channels,
        class_token=kind != "siglip_vision_model",
        patch_bias=kind != "clip_vision_model",
    )


def from_native_image_encoder(native):
    """A `VariantsImageEncoder` with the weights of a native ViTModel, SiglipVisionModel or CLIPVisionModel.

    Raises:
        ValueError: for another class of model, or where one of the weights is missing or of another shape.
    """
    model = VariantsImageEncoder(image_encoder_config(native.config)).to(native.dtype)
    theirs, ours, native_of = native.state_dict(), model.state_dict(), native_name(native.config.model_type)
    missing = [name for name in ours if native_of(name) not in theirs]
    wrong = [name for name in ours if name not in missing and theirs[native_of(name)].numel() != ours[name].numel()]
    if missing or wrong:
        raise ValueError(f"{type(native).__name__} lacks the weights of {missing} and has others of another size: {wrong}")
    model.load_state_dict({name: theirs[native_of(name)].reshape(value.shape) for name, value in ours.items()})
    return model.train(native.training)


def native_name(model_type):
    """The function from our name of a weight to the one that native models of `model_type` hold in memory."""
    stem, of_layer, outside = NAMES[model_type]

    def name_of(ours):
        if ours.startswith("encoder.layers."):
            index, _, rest = ours.removeprefix("encoder.layers.").partition(".")
            module, _, kind = rest.rpartition(".")
            return f"{stem}.{index}.{of_layer[module]}.{kind}"
        if ours in outside:
            return outside[ours]
        module, _, kind = ours.rpartition(".")
        return f"{outside[module]}.{kind}"

    return name_of


def _sides(value):
    return list(value) if isinstance(value, (list, tuple)) else value
