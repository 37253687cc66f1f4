"""What runs through a model while it is quantised: windows of token ids, or batches as the model takes them.

    token ids       [rows, tokens] or lists, packed into windows: decoders, encoders, the text of vision-language models
    batches         list of dicts: {"input_ids", "labels" ...} of an encoder-decoder, {"input_ids", "pixel_values" ...}

Notable here: rows of a padded batch run alone and without their pads, so that no pad enters the sums over the tokens; what the
decoder reads is made from labels where it is not given, as in training; a perplexity counts labels where there are some.
"""

from collections.abc import Mapping

import torch

from .calibration import DEFAULT_LENGTH, check_enough, pack_calibration
from .stacks import main_config

_OF_ROWS = ("input_ids", "labels", "token_type_ids", "attention_mask")
_OF_DECODER = ("decoder_input_ids", "decoder_attention_mask")
_OF_IMAGES = ("pixel_values", "image_sizes", "image_counts")
# read by the measurement, not by the model
_TARGETS = "labels"
IGNORED = -100
DEFAULT_BATCH = 4


def is_batches(given):
    """Whether `given` are batches (dicts), not token ids."""
    return isinstance(given, (list, tuple)) and len(given) > 0 and isinstance(given[0], Mapping)


def calibration_batches(model, given, length=None, size=None, name="calibration_ids"):
    """What to calibrate on.

    Args:
        model: a model of the family.
        given: token ids or batches, as above.
        length: tokens per window of token ids, at most those of the context. size: windows per batch. None: the usual.

    Returns:
        (list of batches, dict of numbers for the report).

    Raises:
        ValueError: naming what is missing, unknown or outside the vocabulary.
    """
    if is_batches(given):
        if unread := [key for key, value in (("calibration_length", length), ("batch_size", size)) if value is not None]:
            raise ValueError(
                f"{unread} cut token ids into windows, but {name} are batches, which run as they are; leave them out"
            )
        batches = read_batches(model, given, name)
        counts = {f"{part}tokens": sum(b[f"{part}input_ids"].numel() for b in batches) for part in _parts(model.config)}
        for part, count in counts.items():
            check_enough(count, f"{name}, their {part.replace('_', ' ')}," if part != "tokens" else name)
        images = sum(len(b["pixel_values"]) for b in batches if "pixel_values" in b)
        rows = {"rows": sum(len(b["input_ids"]) for b in batches)}
        return batches, {**rows, **counts, **({"images": images} if images else {})}
    _refuse_ids(model.config, name)
    if size is not None and size < 1:
        raise ValueError(f"batch_size={size} must be at least 1")
    config = main_config(model.config)
    length = min(DEFAULT_LENGTH if length is None else length, config.max_position_embeddings)
    windows, dropped = pack_calibration(given, length, config.vocab_size)
    rows, length = windows.shape
    check_enough(windows.numel() + dropped, name)
    numbers = {"windows": rows, "window_tokens": length, "tokens": rows * length, "dropped_tokens": dropped}
    return [{"input_ids": ids} for ids in windows.to(model.device).split(DEFAULT_BATCH if size is None else size)], numbers


def evaluation_batches(model, given, name="eval_ids"):
    """What a perplexity is measured on: batches, or token ids [rows, tokens]; as `calibration_batches`.

    Raises:
        ValueError: also where no token is scored.
    """
    if not is_batches(given):
        _refuse_ids(model.config, name)
        given = [{"input_ids": torch.as_tensor(row)[None]} for row in given]
    batches = read_batches(model, given, name)
    if not any(bool((targets_of(model.config, batch) != IGNORED).any()) for batch in batches):
        raise ValueError(f"{name} holds no token to score: the first of a row, labels of -100 and images count for nothing")
    return batches


def _refuse_ids(config, name):
    if config.is_encoder_decoder:
        raise ValueError(
            f"{name} are token ids, but model_type={config.model_type!r} reads and writes: give a list of dicts, each with "
            "input_ids and labels or decoder_input_ids ([rows, tokens])"
        )


def read_batches(model, given, name):
    """`given` batches as dicts of tensors on the device of the model, without pads. Raises ValueError."""
    return [row for number, batch in enumerate(given) for row in _read(model, batch, f"{name}[{number}]")]


def _read(model, batch, name):
    config = model.config
    known = [*_OF_ROWS, *(_OF_DECODER if config.is_encoder_decoder else ()), *(_OF_IMAGES if sees_images(config) else ())]
    if unknown := sorted(key for key in batch if key not in known):
        raise ValueError(f"{name} has {unknown}, which quantization does not read; choose from {known}")
    batch = {key: _tensor(value).to(model.device) for key, value in batch.items() if value is not None}
    if config.is_encoder_decoder and _TARGETS in batch:
        if "decoder_input_ids" not in batch:
            batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch[_TARGETS])
        batch.setdefault("decoder_attention_mask", _up_to_the_last(batch[_TARGETS] != IGNORED))
    parts = _parts(config)
    if missing := [f"{part}input_ids" for part in parts if f"{part}input_ids" not in batch]:
        hint = " (or labels, of which it is made)" if "decoder_input_ids" in missing else ""
        raise ValueError(f"{name} has no {' and no '.join(missing)}; give {' and '.join(missing)}{hint}")
    for part, stack in parts.items():
        ids = batch[f"{part}input_ids"]
        if ids.dim() != 2 or ids.numel() == 0:
            raise ValueError(f"{name}.{part}input_ids has the shape {tuple(ids.shape)}; give [rows, tokens], at least one")
        words = ids[ids != config.image_token_id] if sees_images(config) else ids
        if words.numel() and not 0 <= int(words.min()) <= int(words.max()) < stack.vocab_size:
            raise ValueError(
                f"{name}.{part}input_ids holds tokens from {int(words.min())} to {int(words.max())}, outside "
                f"[0, vocab_size={stack.vocab_size}); tokenize with this model's tokenizer"
            )
    return _without_pads(model, batch, name)


def _tensor(value):
    """A tensor; pixels in float32, which layers are run in, whatever the model is stored in."""
    tensor = torch.as_tensor(value)
    return tensor.float() if tensor.is_floating_point() else tensor


def _up_to_the_last(labelled):
    """1 up to the last true entry of each row, and at its first: what follows is padding."""
    mask = labelled.flip(1).cumsum(1).flip(1) > 0
    mask[:, 0] = True
    return mask.long()


def _parts(config):
    """{prefix of the names of what a stack reads: its config}."""
    return {"": config.encoder, "decoder_": config.decoder} if config.is_encoder_decoder else {"": main_config(config)}


def sees_images(config):
    """Whether a model of this config takes images."""
    return hasattr(config, "image_token_id")


def _without_pads(model, batch, name):
    """The batch, or each of its rows alone where some are padded."""
    masks = {part: batch.pop(f"{part}attention_mask", None) for part in ("", "decoder_")}
    if all(mask is None or bool(mask.all()) for mask in masks.values()):
        return [batch]
    if empty := [f"{part}input_ids" for part, mask in masks.items() if mask is not None and not bool(mask.any(dim=1).all())]:
        raise ValueError(f"{name} has a row that is all padding in {' and '.join(empty)}; leave that row out")
    counts = _image_counts(model, batch)
    rows, start = [], 0
    for index in range(len(batch["input_ids"])):
        row = {}
        for key, value in batch.items():
            if key in _OF_IMAGES:
                continue
            of_decoder = key in _OF_DECODER or (key == _TARGETS and model.config.is_encoder_decoder)
            mask = masks["decoder_" if of_decoder else ""]
            row[key] = value[index : index + 1] if mask is None else value[index : index + 1, mask[index].bool()]
        if counts is not None and counts[index]:
            row |= _images_of_row(batch, index, start, counts[index])
            start += counts[index]
        rows.append(row)
    return rows


def _image_counts(model, batch):
    from ..modeling.image_inputs import images_per_row

    if "pixel_values" not in batch:
        return None
    placeholders = (batch["input_ids"] == model.config.image_token_id).sum(dim=1).tolist()
    images = {key: batch.get(key) for key in _OF_IMAGES}
    lengths = model.base_model.image_lengths(**images)
    return images_per_row(placeholders, lengths, batch.get("image_counts"))


def _images_of_row(batch, index, start, count):
    by_row = batch["pixel_values"].dim() == 5
    given = {key: batch[key] for key in ("pixel_values", "image_sizes") if key in batch}
    return {key: value[index, :count] if by_row else value[start : start + count] for key, value in given.items()}


def model_inputs(batch):
    """What of a batch the model reads."""
    return {key: value for key, value in batch.items() if key != _TARGETS}


def targets_of(config, batch):
    """Token ids [rows, tokens], or -100 where nothing is scored, beside the logits of `batch`."""
    if config.is_encoder_decoder and _TARGETS in batch:
        return batch[_TARGETS]
    ids = batch["decoder_input_ids" if config.is_encoder_decoder else "input_ids"]
    targets = batch.get(_TARGETS, ids)
    if sees_images(config):
        targets = targets.masked_fill(ids == config.image_token_id, IGNORED)
    return torch.nn.functional.pad(targets[:, 1:], (0, 1), value=IGNORED)


def probe_batch(model):
    """A batch of one row on which a written checkpoint is compared with the model in memory: drawn tokens, one image."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    batch = {}
    for part, stack in _parts(config).items():
        length = min(32, stack.max_position_embeddings)
        batch[f"{part}input_ids"] = torch.randint(0, stack.vocab_size, (1, length), generator=generator)
    if sees_images(config):
        batch = _with_image(config, batch["input_ids"], generator)
    return {key: value.to(model.device) for key, value in batch.items()}


def _with_image(config, ids, generator):
    from ..modeling.configuration_variants_vision import two_sides

    # a drawn image token would stand for an image that is not there
    ids = torch.where(ids == config.image_token_id, (config.image_token_id + 1) % config.text_config.vocab_size, ids)
    count = config.tokens_of_image()
    if count + ids.shape[1] > config.text_config.max_position_embeddings:
        return {"input_ids": ids}
    vision = config.vision_config
    shape = (1, getattr(vision, "num_channels", 3), *two_sides(vision.image_size))
    batch = {"input_ids": torch.cat((torch.full((1, count), config.image_token_id), ids), dim=1)}
    batch["pixel_values"] = torch.randn(shape, generator=generator)
    if config.image_attention == "prefix":
        batch["token_type_ids"] = (torch.arange(batch["input_ids"].shape[1]) >= count).long()[None]
    return batch


def fingerprint_tensors(given):
    """{name: tensor} of what decides what `given` calibration does, for a fingerprint."""
    if not is_batches(given):
        return {"ids": pack_calibration(given, 1)[0]}
    entries = [(f"{number}.{key}", batch[key]) for number, batch in enumerate(given) for key in sorted(batch)]
    return {name: _tensor(value) for name, value in entries if value is not None}
