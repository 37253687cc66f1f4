"""What `hf-variants attention` does: read a checkpoint and what it is to read, and measure every kind of attention it has.

Notable here: an encoder-decoder that is given no targets writes them itself, greedily, so that what is measured is what it
does when it is used; what cannot be is said before weights are read.
"""

from pathlib import Path

from ..analysis.joined import sees_images, text_of
from ..diagnostics import attention_reports
from ..modeling.pictures import to_picture
from ..seq2seq.specs import PairsSpec
from .texts import documents, utf8

ROWS, LENGTH = 4, 256
# files of pairs, as of the seq2seq recipe; any other text file has one text per line
PAIR_FILES = (".jsonl", ".json", ".ndjson", ".csv", ".parquet")
# what native processors give, and what a converted model has no need of
_NOT_NEEDED = ("mm_token_type_ids",)
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values", "image_sizes", "image_counts")


def measure_attention(
    source, text, target=None, images=(), rows=None, length=None, sink_tokens=1, maps=None, tell=lambda line: None
):
    """{kind: `AttentionReport`} of a checkpoint, of the family or of a native type that converts.

    Args:
        source: folder or Hub id.
        text: a file: documents for a model of one stack; texts to read, one per line, or a file of pairs with the fields
            source and target, for an encoder-decoder; the prompt, with the processor's image token where an image is, with
            `images`.
        target: a file of what the decoder writes, line by line beside `text`; None lets the model write it.
        images: picture files, in reading order.
        rows, length: rows of text and tokens of each (of an encoder-decoder's on either side at most); None: 4 and 256.
        sink_tokens: as in `attention_reports`.
        maps: index of a layer of which maps are wanted: all are kept then. None keeps none.
        tell: is given lines about what was cut, and of fewer rows than were asked for.

    Raises:
        ValueError: for what does not fit the model, and for files that cannot be read.
    """
    from ..quantize.checkpoint import config_at, load_full_precision, refuse_unknown_type
    from ..quantize.checks import refuse_quantized_config

    config = config_at(source)
    refuse_quantized_config(config)
    refuse_unknown_type(config)
    _refuse_misfits(source, config, target, images, rows, length)
    asked, rows, length = rows, rows or ROWS, length or LENGTH
    if images:
        inputs = image_inputs(source, _prompt(text), images)
    elif config.is_encoder_decoder:
        tokenizer, records = _pairs(source, text, target, rows)
        there = len(records)
    else:
        inputs = {"input_ids": _ids(source, text, rows, length)}
        there = len(inputs["input_ids"])
    if asked is not None and there < asked:
        tell(f"--rows {asked}: {text} holds {there}, and all of them are read")
    model = load_full_precision(source).float()
    _check_layer(model.config, maps)
    if config.is_encoder_decoder:
        inputs = _of_pairs(model, tokenizer, records, source, length, tell)
    return attention_reports(model, inputs, sink_tokens, keep_maps=maps is not None)


def _check_layer(config, index):
    """Refuse a layer that no stack has. Raises ValueError."""
    stacks = config.stacks if config.is_encoder_decoder else [text_of(config)]
    layers = max(stack.num_hidden_layers for stack in stacks)
    if index is not None and not 0 <= index < layers:
        raise ValueError(f"--maps {index}: the model has layers 0 to {layers - 1}")


def _refuse_misfits(source, config, target, images, rows, length):
    """Refuse options that mean nothing to a model, before its weights are read. Raises ValueError."""
    kind = config.model_type
    if images and not sees_images(config):
        raise ValueError(f"--image {images[0]!r}: {source} ({kind}) reads no images; leave it out")
    if target is not None and not config.is_encoder_decoder:
        raise ValueError(f"--target {target!r}: {source} ({kind}) is no encoder-decoder and goes on with --text; leave it out")
    for name, value in (("--rows", rows), ("--length", length)):
        if images and value is not None:
            raise ValueError(f"{name} {value} cuts rows of text, but a prompt with images is run whole; leave it out")
    if hasattr(config, "vision_config") or hasattr(config, "text_config"):
        return
    if getattr(config, "image_size", None) is not None or kind == "variants_image_encoder":
        raise ValueError(f"{source} ({kind}) reads pictures alone; give a model that reads text")


def _ids(source, text, rows, length):
    """Rows of documents, int64 [rows, length]."""
    from ..training.tokenizer import load_tokenizer
    from .quantization import calibration_ids

    return calibration_ids(documents(text, "--text"), load_tokenizer(source), rows, length)


def _pairs(source, text, target, rows):
    """(tokenizer, list of {"source", "target"}), targets None where the model is to write them."""
    from ..training.tokenizer import load_tokenizer
    from .quantization import spread

    records = read_pairs(text, target)
    return load_tokenizer(source), [records[index] for index in spread(len(records), rows)]


def read_pairs(text, target=None):
    """The records {"source", "target"} of a file of pairs, or of lines; targets are None without a file of them.

    Raises:
        ValueError: for files that cannot be read, of different numbers of lines, or with a blank line on one side.
    """
    from ..finetune.examples import read_whole

    if Path(text).suffix in PAIR_FILES:
        if target is not None:
            raise ValueError(
                f"--target {target!r}: --text {text!r} holds targets of its own; leave it out, or give lines of text"
            )
        return list(read_whole(PairsSpec(source=text), text, "--text", "seq2seq"))
    read = utf8(text, "--text").rstrip("\n").split("\n")
    written = [None] * len(read) if target is None else utf8(target, "--target").rstrip("\n").split("\n")
    if len(read) != len(written):
        raise ValueError(
            f"--text {text!r} has {len(read)} lines and --target {target!r} has {len(written)}; line n of one belongs to "
            "line n of the other"
        )
    records = []
    for number, (before, after) in enumerate(zip(read, written, strict=True), start=1):
        blank = [name for name, line in (("--text", before), ("--target", after)) if line is not None and not line.strip()]
        if target is not None and len(blank) == 1:
            raise ValueError(f"line {number} of {blank[0]} is blank, and that of the other file is not")
        if not blank:
            records.append({"source": before, "target": after})
    if not records:
        raise ValueError(f"--text {text!r} holds no line with text")
    return records


def _of_pairs(model, tokenizer, records, source, length, tell):
    """{input_ids, attention_mask, labels} of records, padded on the right."""
    from ..seq2seq.pairs import PairCollator, decoder_start_of, encode_pairs

    spec = PairsSpec(max_source_length=length, max_target_length=length, over_long="truncate")
    to_write = records[0]["target"] is None
    if to_write:
        records = [{**record, "target": ""} for record in records]
    encoded = encode_pairs(records, tokenizer, spec, decoder_start_of(model.config, f"{source}"))
    for side, count in encoded.longer.items():
        if count:
            tell(f"{count} of {len(records)} {side}s are cut to {length} tokens; --length allows more")
    batch = PairCollator(0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id)(encoded.rows)
    if to_write:
        batch["labels"] = _written(model, batch, length, source)
    return batch


def _written(model, batch, length, source):
    """Labels [B, T] of what the model writes greedily, -100 behind its end."""
    ids = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
    room = min(length, model.config.decoder.max_position_embeddings - 1)
    written = model.generate(**ids, max_new_tokens=room, do_sample=False, num_beams=1, use_cache=True)[:, 1:]
    ends = model.generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    is_end = sum((written == end for end in ends), start=written.new_zeros(written.shape, dtype=bool))
    labels = written.masked_fill(is_end.cumsum(1) - is_end.long() > 0, -100)
    if int((labels != -100).sum(1).max()) < 2:
        raise ValueError(f"{source} writes nothing for these texts; give what its decoder is to read with --target")
    return labels


def _prompt(text):
    prompt = utf8(text, "--text").strip()
    if not prompt:
        raise ValueError(f"--text {text!r} is empty; write a prompt with the image token where an image is")
    return prompt


def image_inputs(source, prompt, images):
    """What a vision-language model takes of a prompt and picture files, by the processor in its folder.

    Raises:
        ValueError: without a processor, for pictures that cannot be read, and where pictures and image tokens do not fit.
    """
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ValueError(f"{source} holds no processor that can be read: {' '.join(str(error).split())}") from None
    if getattr(processor, "image_processor", None) is None:
        raise ValueError(
            f"{source} holds a {type(processor).__name__} and no image processor; save the model's processor there"
        )
    channels = getattr(processor, "num_channels", 3)
    pictures = [to_picture(image, channels, f"--image {image!s}") for image in images]
    inputs = dict(processor(images=pictures, text=prompt, return_tensors="pt"))
    shown = inputs.pop("pixel_attention_mask", None)
    if shown is not None and not bool(shown.all()):
        raise ValueError("the processor pads pictures inside of tiles, which this family does not hide; give whole tiles")
    inputs = {name: value for name, value in inputs.items() if name not in _NOT_NEEDED}
    if unknown := sorted(inputs.keys() - set(_INPUTS)):
        raise ValueError(f"the processor in {source} gives {unknown}, which this family does not read")
    return inputs
