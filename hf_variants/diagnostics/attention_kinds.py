"""The kinds of attention that a model has, and which tokens ask and are asked in each.

    one stack           self
    encoder-decoder     encoder, decoder, cross
    vision-language     self (images in the row among its keys), and images where they are read by gated cross-attention

Notable here: pads neither ask nor are asked, on whichever side they stand. In a row with images the text asks; what image
tokens see of each other is not counted.
"""

from dataclasses import dataclass

import torch

from ..modeling.losses import IGNORE
from ..modeling.modeling_variants_seq2seq import shift_right
from .attention_tally import Tally
from .observed import observe_attention

KINDS = {
    "self": "attention",
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "cross": "cross-attention to the encoder",
    "images": "cross-attention to images",
}
_TEXT = ("input_ids", "attention_mask", "token_type_ids")
_IMAGES = ("pixel_values", "image_sizes", "image_counts")
_READ = {
    "variants": (*_TEXT, "encoder_hidden_states", "encoder_attention_mask"),
    "variants_seq2seq": (*_TEXT, "decoder_input_ids", "decoder_attention_mask", "labels"),
    "variants_vision": (*_TEXT, *_IMAGES),
}


@dataclass
class View:
    """Who asks whom in one kind of attention.

    Attributes:
        queries: bool [B, Q], real tokens that ask; asks: bool [B, Q], those of them that are counted.
        keys: bool [B, K], real tokens that are asked, or None: all.
        ordered: whether both are of one row.
        images: bool [B, K], which keys are of images, or None; behind: bool [B, Q], text with an image before it.
    """

    queries: torch.Tensor
    asks: torch.Tensor
    keys: torch.Tensor | None
    ordered: bool = True
    images: torch.Tensor | None = None
    behind: torch.Tensor | None = None


@torch.no_grad()
def tally_attention(model, inputs, sink_tokens=1, keep_maps=False, behind_images=False):
    """Run `model` once and count every attention of it.

    Args:
        model: a model of the family; eval mode is set for the measurement.
        inputs: dict of what it reads: input_ids [B, T] and, where rows are padded, attention_mask [B, T]; of an
            encoder-decoder also decoder_input_ids (and decoder_attention_mask) or labels; of a vision-language model also
            pixel_values.
        sink_tokens, keep_maps: as in `Tally`.
        behind_images: count the text behind an image alone.

    Returns:
        {kind: list of `Tally`, by layer}, kinds in the order of `KINDS`.

    Raises:
        ValueError: for a model that is not of the family, and for inputs that are missing, unknown or say nothing.
    """
    inputs = _checked(model, inputs)
    views = _VIEWS[model.config.model_type](model.config, inputs)
    shortest = min(_longest(view) for kind, view in views.items() if kind != "images")
    if not 1 <= sink_tokens < shortest:
        raise ValueError(f"sink_tokens={sink_tokens} must lie in [1, {shortest - 1}], fewer than the row has tokens")
    found = {kind: {} for kind in views}

    def watch(own, across):
        def see(seen):
            kind = across if seen.across else own
            found[kind][seen.layer] = _counted(seen, views[kind], sink_tokens, keep_maps, behind_images)

        return see

    was_training = model.training
    model.eval()
    try:
        _run(model, inputs, watch)
    finally:
        model.train(was_training)
    return {kind: [layers[index] for index in sorted(layers)] for kind, layers in found.items() if layers}


def _run(model, inputs, watch):
    """One forward without a head; what `watch(kind of self-attention, kind of cross-attention)` gives sees each stack."""
    base, kind = model.base_model, model.config.model_type
    if kind == "variants_seq2seq":
        with (
            observe_attention(base.encoder, watch("encoder", None)),
            observe_attention(base.decoder, watch("decoder", "cross")),
        ):
            base(**inputs, use_cache=False)
    elif kind == "variants_vision":
        with observe_attention(base.language_model, watch("self", "images"), beside=[base.cross_layers]):
            base(**inputs, use_cache=False)
    else:
        with observe_attention(base, watch("self", "cross")):
            base(**inputs, **({"use_cache": False} if model.config.is_causal else {}))


def _counted(seen, view, sink_tokens, keep_maps, behind_images):
    batch, heads, queries, keys = seen.weights.shape
    visible = seen.visible[:, 0].expand(batch, queries, keys)
    asks = view.behind if behind_images else view.asks
    real = torch.ones(batch, keys, dtype=torch.bool, device=visible.device) if view.keys is None else view.keys
    shape = int(view.queries.sum(1).max()), int(real.sum(1).max())
    tally = Tally(seen.layer, heads, shape, sink_tokens, keep_maps, view.ordered)
    for row in range(batch):
        rows, columns = view.queries[row], real[row]
        tally.add(
            seen.weights[row][:, rows][:, :, columns],
            seen.scores[row][:, rows][:, :, columns],
            None if seen.unnormed is None else seen.unnormed[row][:, rows][:, :, columns],
            seen.softcap,
            visible[row][rows][:, columns],
            asks[row][rows],
            *(() if view.images is None else (view.images[row][columns], view.behind[row][rows])),
        )
    return tally


def _longest(view):
    """Keys of the row with most of them."""
    return int(view.keys.sum(1).max())


def _checked(model, inputs):
    """`inputs` on the device of the model, decoder inputs made of labels. Raises ValueError."""
    kind = getattr(model.config, "model_type", None)
    if kind == "variants_image_encoder":
        raise ValueError(f"model_type={kind!r} reads pictures alone; give a model that reads tokens")
    if kind not in _READ:
        raise ValueError(f"model_type={kind!r} is not of this family; convert it first (hf_variants.convert.from_native)")
    known = _READ[kind]
    if unknown := sorted(inputs.keys() - set(known)):
        raise ValueError(f"inputs have {unknown}, which is not read here; choose from {list(known)}")
    inputs = {name: value.to(model.device) for name, value in inputs.items() if value is not None}
    if "labels" in inputs:
        labels = inputs.pop("labels")
        inputs.setdefault("decoder_input_ids", shift_right(labels, model.config))
        inputs.setdefault("decoder_attention_mask", _up_to_the_last(labels != IGNORE).long())
    needed = ("input_ids", "decoder_input_ids") if kind == "variants_seq2seq" else ("input_ids",)
    if missing := [name for name in needed if name not in inputs]:
        hint = " (or labels, of which it is made)" if "decoder_input_ids" in missing else ""
        raise ValueError(f"inputs have no {' and no '.join(missing)}{hint}: the model would read nothing there")
    for name in needed:
        real = _real(inputs, name)
        if int(real.sum(1).max()) < 2:
            raise ValueError(f"{name} of shape {tuple(real.shape)}: give rows of at least 2 tokens, [B, T]")
    return inputs


def _up_to_the_last(labelled):
    """True up to the last true entry of each row, and at its first: what follows is padding."""
    real = labelled.flip(1).cumsum(1).flip(1) > 0
    real[:, 0] = True
    return real


def _real(inputs, name):
    """Which tokens of input_ids or decoder_input_ids are real: bool [B, T]. Raises ValueError for other shapes."""
    ids = inputs[name]
    if ids.dim() != 2 or not ids.numel():
        raise ValueError(f"{name} of shape {tuple(ids.shape)}: give rows of at least 2 tokens, [B, T]")
    where = name.replace("input_ids", "attention_mask")
    mask = inputs.get(where)
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if mask.shape != ids.shape:
        raise ValueError(f"{where} has the shape {tuple(mask.shape)}; give {list(ids.shape)}, 1 at real tokens")
    return mask.bool()


def _of_one_stack(config, inputs):
    real = _real(inputs, "input_ids")
    views = {"self": View(real, real, real)}
    if "encoder_hidden_states" in inputs:
        states, mask = inputs["encoder_hidden_states"], inputs.get("encoder_attention_mask")
        shape = states.shape[:2]
        if mask is not None and mask.shape != shape:
            raise ValueError(f"encoder_attention_mask has the shape {tuple(mask.shape)}; give {list(shape)}, 1 at real states")
        keys = torch.ones(shape, dtype=torch.bool, device=states.device) if mask is None else mask.bool()
        views["cross"] = View(real, real, keys, ordered=False)
    return views


def _of_a_pair(config, inputs):
    read, written = _real(inputs, "input_ids"), _real(inputs, "decoder_input_ids")
    return {
        "encoder": View(read, read, read),
        "decoder": View(written, written, written),
        "cross": View(written, written, read, ordered=False),
    }


def _of_images(config, inputs):
    real = _real(inputs, "input_ids")
    if "pixel_values" not in inputs:
        return {"self": View(real, real, real)}
    is_image = inputs["input_ids"] == config.image_token_id
    before, _ = tokens_before(is_image, real)
    text = real & ~is_image
    behind = text & (before > 0)
    if not behind.any():
        raise ValueError("no text token stands behind an image, so there is no attention to it; give a question behind images")
    # a token before the first image sees none, and is shown to the backend as if it saw all
    return {
        "self": View(real, text, real, images=is_image, behind=behind),
        "images": View(real, behind, None, ordered=False, behind=behind),
    }


def tokens_before(is_image, real):
    """(N, j) of each token [B, T]: image tokens, and text tokens up to and with it."""
    return (is_image & real).long().cumsum(dim=1), (~is_image & real).long().cumsum(dim=1)


# model type -> (config, inputs) -> {kind: `View`}
_VIEWS = {"variants": _of_one_stack, "variants_seq2seq": _of_a_pair, "variants_vision": _of_images}
