"""What images cost: operations, cache bytes and time of a prompt, by their number and by how their tokens are compressed.

Notable here: native towers, bridge and cross-attention are counted by torch's FlopCounterMode on the meta device, where
nothing is computed; the language model and the family's own image encoder by the same formulas as everywhere. With
L = sum(N_i + 2) + T the cost of attention is quadratic in the number of images; times are measured.
"""

import copy
import time
from dataclasses import asdict, dataclass, field

import torch

from ..analysis import flops_per_token, kv_cache_size
from ..analysis.joined import image_cache_bytes, states_of_image

_HEAD = ("lm_head", "head_transform")


@dataclass
class ImageCost:
    """One prompt of `images` images and `text_tokens` tokens of text.

    Attributes:
        images, text_tokens, compression: what was asked for.
        tokens_per_image: placeholders of one image. length: tokens of the row.
        flops: forward operations of the prompt by part: tower, bridge, cross_attention, text (without scores), scores.
        cache_bytes: keys and values kept of the prompt, those of images that are read by cross-attention included.
        seconds: of one forward of the whole prompt, the smallest of several; None where it was not measured.
    """

    images: int
    text_tokens: int
    compression: str
    tokens_per_image: int
    length: int
    flops: dict = field(default_factory=dict)
    cache_bytes: int = 0
    seconds: float | None = None

    @property
    def total_flops(self):
        return sum(self.flops.values())

    def as_dict(self):
        """Plain data."""
        return {**asdict(self), "total_flops": self.total_flops}


def count_image_cost(config, images, text_tokens, dtype_bytes=2):
    """The `ImageCost` of a config, without weights.

    Args:
        config: a `VariantsVisionConfig`.
        images: number of images of the tower's own size. text_tokens: tokens of text beside them.
        dtype_bytes: of a number in the cache.

    Raises:
        ValueError: for fewer than no image or one token of text.
    """
    if images < 0 or text_tokens < 1:
        raise ValueError(f"images={images} must be at least 0 and text_tokens={text_tokens} at least 1")
    per_image, text = config.tokens_of_image(), config.text_config
    length = images * per_image + text_tokens
    parts = flops_per_token(text, length=length).parts
    scores = parts["attention_scores"] * length
    # a prompt needs the logits of its last token alone
    body = sum(value for name, value in parts.items() if name not in ("attention_scores", *_HEAD))
    head = sum(parts.get(name, 0) for name in _HEAD)
    flops = {**_vision_flops(config, images, length), "text": body * length + head, "scores": scores}
    cache = kv_cache_size(text, length=length, dtype_bytes=dtype_bytes).bytes + image_cache_bytes(config, images, dtype_bytes)
    return ImageCost(images, text_tokens, config.token_compression, per_image, length, flops, int(cache))


def tower_flops(config):
    """Forward operations of the tower on one image: by formula for the family's own stack, else on the meta device."""
    vision = config.vision_config
    if vision.model_type == "variants_image_encoder":
        parts = flops_per_token(vision.encoder, length=vision.num_tokens).parts
        stack = sum(value for name, value in parts.items() if name not in _HEAD) * vision.num_tokens
        rows, columns = vision.patch_sides
        return stack + 2 * vision.num_channels * rows * columns * vision.encoder.embedding_size * vision.num_patches
    from torch.utils.flop_counter import FlopCounterMode

    from ..modeling.vision_tower import build_tower

    vision = copy.deepcopy(vision)
    vision._attn_implementation = "eager"
    with torch.device("meta"), torch.no_grad():
        tower = build_tower(vision, config.vision_feature_layer).eval().requires_grad_(False)
        pixels = torch.empty(1, tower.num_channels, *tower.image_sides)
        with FlopCounterMode(display=False) as counter:
            tower(pixels)
    return counter.get_total_flops()


def _vision_flops(config, images, length):
    from torch.utils.flop_counter import FlopCounterMode

    from ..modeling.gated_cross_attention import GatedCrossAttention
    from ..modeling.vision_bridge import VisionBridge

    counted = {"tower": 0, "bridge": 0}
    if not images:
        return counted
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    text, found = config.text_config, {"tower": tower_flops(config) * images}
    with torch.device("meta"), torch.no_grad():
        out = text.hidden_size if config.bridge == "gated_cross_attention" else text.embedding_size
        bridge = VisionBridge(config, out).eval().requires_grad_(False)
        rows, columns = config.image_grid
        kept = int(config.vision_feature_select_strategy == "full")
        features = torch.empty(1, rows * columns + kept, config.vision_width)
        with FlopCounterMode(display=False) as counter:
            bridge(features, (rows, columns))
        found["bridge"] = counter.get_total_flops() * images
        if config.bridge == "gated_cross_attention":
            plan = text.layer_plan()
            blocks = [GatedCrossAttention(text, plan[i], config.cross_attention_mlp) for i in config.cross_attention_layers]
            hidden = torch.empty(1, length, text.hidden_size)
            states = torch.empty(1, images * states_of_image(config), text.hidden_size)
            sees = torch.ones(1, length, 1, dtype=torch.bool)
            with FlopCounterMode(display=False) as counter:
                for block in blocks:
                    block.eval().requires_grad_(False)(hidden, states, sees, None, None)
            found["cross_attention"] = counter.get_total_flops()
    return found


@torch.no_grad()
def measure_seconds(models, prompts, repeats=3):
    """Smallest seconds of one forward of each prompt, taken in turn so that a busy machine slows all alike.

    Args:
        models: {name: model}. prompts: {name: [inputs, ...]}, of equal lengths.
        repeats: rounds that count, behind one that warms up.

    Returns:
        {name: [seconds, ...]}.
    """
    found = {name: [float("inf")] * len(inputs) for name, inputs in prompts.items()}
    for turn in range(repeats + 1):
        for place in range(max(map(len, prompts.values()))):
            for name, model in models.items():
                began = time.perf_counter()
                model(**prompts[name][place], logits_to_keep=1)
                if turn:
                    found[name][place] = min(found[name][place], time.perf_counter() - began)
    return found


def prompt_of(config, images, text_tokens, seed=0):
    """Random inputs of one row: text, then each image, then the rest of the text."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = config.text_config.vocab_size
    # any id that is not the placeholder
    text = torch.randint(0, vocabulary - 1, (text_tokens,), generator=generator)
    text = torch.where(text >= config.image_token_id, text + 1, text) if config.image_token_id < vocabulary else text
    placeholders = torch.full((images * config.tokens_of_image(),), config.image_token_id)
    inputs = {"input_ids": torch.cat((text[:1], placeholders, text[1:]))[None]}
    if images:
        from ..modeling.configuration_variants_vision import two_sides

        shape = (images, config.vision_config.num_channels, *two_sides(config.vision_config.image_size))
        inputs["pixel_values"] = torch.randn(shape, generator=generator)
    return inputs
