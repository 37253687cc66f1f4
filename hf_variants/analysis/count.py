"""Parameters and training and inference FLOPs of a config at several lengths, as plain data: what `hf-variants count` shows.

    forward    2 FLOPs per weight that meets the token in a matrix product, and per pair 2 * heads * (key + value width)
    backward   twice the forward pass: each product has a gradient by either factor
    training   both, and under activation checkpointing the forward pass of the layers once more

Kaplan et al. 2020 (arXiv:2001.08361 §2.1); Hoffmann et al. 2022 (arXiv:2203.15556 App. F, who count the embedding as a product
and every pair as visible).

Notable here: nothing is built. What is left out is said in the answer: a kernel that recomputes scores in its backward pass
(FlashAttention) does a quarter more work there than the model needs.
"""

from .counts import count_parameters
from .describe import human_count, usual_lengths
from .flops import PAIRS, flops_per_token

# parts outside the layers, which activation checkpointing does not run again
OUTSIDE = ("embedding_projection", "head_transform", "lm_head")
BACKWARD = 2


def count(source, lengths=None, *, pairs="visible", checkpointing=False):
    """Parameters and FLOPs per token of a config.

    Args:
        source: what `convert.read_config` reads: a config, ours or native, a preset's name, a .json, a folder or a Hub id.
        lengths: tokens of a row, one number or several; None takes a few up to `max_position_embeddings`.
        pairs: `visible`: pairs that the masks let through; `all`: every pair, as the eager backend computes them.
        checkpointing: count the second forward pass of the layers under activation checkpointing.

    Returns:
        dict of JSON types: `parameters` (total, active, non_embedding, buffers, tied, parts, active_parts), `pairs`,
        `checkpointing`, and `flops`, one dict per length with, per token, `forward`, `backward`, `training` and their `parts`
        (the mean over a row), `decode` (the last token from its cache; None for an encoder), `decode_expanded` (MLA without
        absorption; None otherwise) and `share_of_6n`: training beside the rule of 6 FLOPs per active parameter.

    Raises:
        ValueError: as `convert.read_config`, and for no length, a length below 1 or an unknown `pairs`.
    """
    from hf_variants.convert.config_source import read_config

    if pairs not in PAIRS:
        raise ValueError(f"pairs={pairs!r} is unknown; choose from {list(PAIRS)}")
    config = read_config(source)
    lengths = checked_lengths(config, lengths)
    parameters = count_parameters(config)
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
        "flops": [_at_length(config, length, pairs, checkpointing, parameters) for length in lengths],
    }


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


def _at_length(config, length, pairs, checkpointing, parameters):
    forward = flops_per_token(config, length, pairs=pairs)
    again = {part: int(checkpointing and part not in OUTSIDE) for part in forward.parts}
    parts = {
        part: {"forward": flops, "backward": BACKWARD * flops, "recomputed": again[part] * flops}
        for part, flops in forward.parts.items()
    }
    training = sum(sum(part.values()) for part in parts.values())
    decode = expanded = None
    if config.is_causal:
        decode = flops_per_token(config, length, "decode", pairs).total
        if config.attention_type == "mla":
            expanded = flops_per_token(config, length, "decode", pairs, latent="expanded").total
    return {
        "length": length,
        "forward": forward.total,
        "backward": BACKWARD * forward.total,
        "training": training,
        "decode": decode,
        "decode_expanded": expanded,
        "share_of_6n": training / (6 * parameters.active),
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
    table = _right_aligned(["tokens", *columns.values(), "training / 6N"], None)
    for row in facts["flops"]:
        table.add_row(f"{row['length']:,}", *(human_count(row[key]) for key in columns), f"{row['share_of_6n']:.3f}")
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
