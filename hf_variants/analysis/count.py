"""Parameters and training and inference FLOPs of a config at several lengths, as plain data: what `hf-variants count` shows.

    forward    2 FLOPs per weight that meets the token in a matrix product, and per pair 2 * heads * (key + value width)
    backward   twice the forward pass: each product has a gradient by either factor
    training   both, and under activation checkpointing the forward pass of the layers once more

Kaplan et al. 2020 (arXiv:2001.08361 §2.1); Hoffmann et al. 2022 (arXiv:2203.15556 App. F, who count the embedding as a product
and every pair as visible).

Notable here: nothing is built. What is left out is said in the answer: a kernel that recomputes scores in its backward pass
(FlashAttention) does a quarter more work there than the model needs.
"""

from .describe import human_count, usual_lengths
from .flops import PAIRS
from .joined import is_pair, joined_flops, joined_parameters, sees_images, text_of

# parts outside the layers, which activation checkpointing does not run again
OUTSIDE = ("embedding_projection", "head_transform", "lm_head", "image_bridge")


def count(source, lengths=None, *, pairs="visible", checkpointing=False, encoder_length=None, images=None):
    """Parameters and FLOPs per token of a config.

    Args:
        source: a config, ours or native, a preset's name, a .json, a folder or a Hub id, as `convert.read_config` reads
            them; a vision-language config of the family too.
        lengths: tokens of a row, one number or several; None takes a few up to `max_position_embeddings`. Of an
            encoder-decoder the decoder's row, of a vision-language model the text's, image tokens among them.
        pairs: `visible`: pairs that the masks let through; `all`: every pair, as the eager backend computes them.
        checkpointing: count the second forward pass of the layers under activation checkpointing.
        encoder_length: tokens that the encoder of an encoder-decoder reads for a row; None: as many as the row has.
        images: images in a row of a vision-language model; None: one.

    Returns:
        dict of JSON types: `parameters` (total, active, non_embedding, buffers, tied, parts, active_parts), `pairs`,
        `checkpointing`, and `flops`, one dict per length with, per token, `forward`, `backward`, `training` and their `parts`
        (the mean over a row), `decode` (the last token from its cache; None for an encoder), `decode_expanded` (MLA without
        absorption; None otherwise) and `share_of_6n`: training beside the rule of 6 FLOPs per active parameter (None for
        models that join others, whose parameters do not all meet the same tokens).

    Raises:
        ValueError: as `convert.read_config`, and for no length, a length below 1 or an unknown `pairs`.
    """
    from hf_variants.convert.config_source import read_any_config

    if pairs not in PAIRS:
        raise ValueError(f"pairs={pairs!r} is unknown; choose from {list(PAIRS)}")
    config = read_any_config(source)
    _refuse_idle(config, encoder_length, images)
    if lengths is None and sees_images(config):
        least = (1 if images is None else images) * config.tokens_of_image()
        lengths = [length for length in usual_lengths(text_of(config)) if length >= least]
    lengths = checked_lengths(text_of(config), lengths)
    extra = {"encoder_length": encoder_length, "images": 1 if images is None else images}
    parameters = joined_parameters(config)
    return {
        "parameters": {
            "total": parameters.total,
            "active": parameters.active,
            "non_embedding": parameters.non_embedding,
            "buffers": parameters.buffers,
            "tied": config.tie_word_embeddings,
            "parts": parameters.parts,
            "active_parts": parameters.active_parts,
        },
        "pairs": pairs,
        "checkpointing": checkpointing,
        "flops": [_at_length(config, length, pairs, checkpointing, parameters, extra) for length in lengths],
    }


def _refuse_idle(config, encoder_length, images):
    """Raise ValueError for a number that means nothing to the config, or is no count."""
    across = is_pair(config) or getattr(config, "add_cross_attention", False)
    if encoder_length is not None and not across:
        raise ValueError(
            f"encoder_length={encoder_length} is what an encoder reads for a decoder, and there is none; leave it out"
        )
    if images is not None and not sees_images(config):
        raise ValueError(f"images={images} needs a vision-language config, and this one reads text alone; leave it out")
    for name, value, least in (("encoder_length", encoder_length, 1), ("images", images, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name}={value!r} must be a whole number, at least {least}")


def checked_lengths(config, lengths):
    """The lengths as a sorted list of distinct whole numbers. Raises ValueError for none, or one that is below 1."""
    if lengths is None:
        return usual_lengths(config)
    given = list(lengths) if isinstance(lengths, (list, tuple, range)) else [lengths]
    if not given:
        raise ValueError("lengths=[] names no length; give tokens of a row, such as 4096")
    for length in given:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(f"length={length!r} must be a whole number of tokens, at least 1")
    return sorted(set(given))


def _at_length(config, length, pairs, checkpointing, parameters, extra):
    forward, backward = joined_flops(config, length, pairs=pairs, **extra)
    parts = {
        part: {
            "forward": flops,
            "backward": backward[part],
            "recomputed": flops if checkpointing and not part.endswith(OUTSIDE) else 0,
        }
        for part, flops in forward.parts.items()
    }
    training = sum(sum(part.values()) for part in parts.values())
    text, decode, expanded = text_of(config), None, None
    if text.is_causal:
        decode = joined_flops(config, length, "decode", pairs, **extra)[0].total
        if text.attention_type == "mla":
            expanded = joined_flops(config, length, "decode", pairs, latent="expanded", **extra)[0].total
    return {
        "length": length,
        "forward": forward.total,
        "backward": sum(backward.values()),
        "training": training,
        "decode": decode,
        "decode_expanded": expanded,
        "share_of_6n": training / (6 * parameters.active) if text is config else None,
        "parts": parts,
    }


def count_table(facts, title=None):
    """The facts of `count` as rich tables: parameters by part, FLOPs by part at the longest length, and totals by length."""
    from rich.console import Group

    return Group(_parameter_table(facts["parameters"], title), "", _part_table(facts), "", _length_table(facts))


def _parameter_table(parameters, title):
    table = _right_aligned(["parameters", "total", "active per token", "share"], title)
    rows = [("all", parameters["total"], parameters["active"])]
    rows += [(f"  {_words(part)}", n, parameters["active_parts"].get(part, 0)) for part, n in parameters["parts"].items()]
    for name, total, active in rows:
        table.add_row(name, f"{total:,}", f"{active:,}", f"{total / parameters['total']:.1%}")
    tied = "The output head is the embedding's matrix, counted once." if parameters["tied"] else "The output head is its own."
    buffers = f" Beside them {parameters['buffers']:,} values of the selection bias." if parameters["buffers"] else ""
    table.caption = f"{tied} {parameters['non_embedding']:,} without the tables.{buffers}"
    return table


def _part_table(facts):
    row = facts["flops"][-1]
    extra = ["recomputed"] if facts["checkpointing"] else []
    kinds = ["forward", "backward", *extra]
    table = _right_aligned([f"FLOPs per token, {row['length']:,} tokens", *kinds, "share"], None)
    for part, flops in row["parts"].items():
        share = sum(flops.values()) / row["training"]
        table.add_row(_words(part), *(human_count(flops[kind]) for kind in kinds), f"{share:.1%}")
    return table


def _length_table(facts):
    decodes, latent = facts["flops"][0]["decode"] is not None, facts["flops"][0]["decode_expanded"] is not None
    columns = {"forward": "forward", "backward": "backward", "training": "training"}
    columns |= {"decode": "last token, from its cache"} if decodes else {}
    columns |= {"decode_expanded": "the same, latents expanded"} if latent else {}
    share = facts["flops"][0]["share_of_6n"] is not None
    table = _right_aligned(["tokens", *columns.values(), *(["training / 6N"] if share else [])], None)
    for row in facts["flops"]:
        last = [f"{row['share_of_6n']:.3f}"] if share else []
        table.add_row(f"{row['length']:,}", *(human_count(row[key]) for key in columns), *last)
    again = " and the layers once more" if facts["checkpointing"] else ""
    table.caption = (
        f"FLOPs per token, the mean over a row; training is forward, backward{again}. Pairs counted: {facts['pairs']}. Matrix "
        "products only, a multiply-add is two operations; N is the active parameters."
    )
    return table


def _right_aligned(columns, title):
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=index == 0)
    return table


def _words(part):
    return part.replace("_", " ")
