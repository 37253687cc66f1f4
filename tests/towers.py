"""Tiny image encoders, native and our own, for tests of towers and of vision-language models."""

import torch
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    Dinov2Config,
    Dinov2Model,
    InternVLVisionConfig,
    InternVLVisionModel,
    QianfanOCRVisionConfig,
    QianfanOCRVisionModel,
    SiglipVisionConfig,
    SiglipVisionModel,
    ViTConfig,
    ViTModel,
)

from hf_variants import VariantsImageEncoderConfig

# no two sizes agree, so that a swapped axis shows
SHAPE = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 3,
}
NATIVE = {
    "clip_vision_model": (CLIPVisionConfig, CLIPVisionModel, {"intermediate_size": 40}),
    "siglip_vision_model": (SiglipVisionConfig, SiglipVisionModel, {"intermediate_size": 40, "vision_use_head": False}),
    "vit": (ViTConfig, ViTModel, {"intermediate_size": 40}),
    "dinov2": (Dinov2Config, Dinov2Model, {"mlp_ratio": 2}),
    "internvl_vision": (InternVLVisionConfig, InternVLVisionModel, {"intermediate_size": 40}),
    "qianfan_ocr_vision": (QianfanOCRVisionConfig, QianfanOCRVisionModel, {"intermediate_size": 40}),
}


def native_config(kind, **overrides):
    config_class, _, more = NATIVE[kind]
    return config_class(**{**SHAPE, **more, **overrides})


def own_config(image=(), **encoder):
    """A `VariantsImageEncoderConfig` on images of 8 by 12 pixels; `image` are its own keys, the rest those of the stack."""
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 12}
    image = {"image_size": [8, 12], "patch_size": 4, "num_channels": 1, **dict(image)}
    return VariantsImageEncoderConfig(encoder={**shape, **encoder}, **image)


def randomise(model):
    """Every parameter random, so that none of them could be left out unseen; the model in eval mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def pixels(count=2, channels=3, height=12, width=12):
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(1))
