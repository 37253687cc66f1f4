"""Memory plans side by side, as a rich table, and sizes of memory as people write them."""

import re

from .describe import human_bytes
from .memory_plan import USABLE

PARTS = (*("weights", "gradients", "optimizer", "casts", "activations", "cache", "head", "workspace", "communication"),)
_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text):
    """`80GB`, `24 GiB` or a number of bytes as an integer. Raises ValueError for anything else."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e\+?[0-9]+)?)\s*([kmgt]?i?)b?\s*", str(text), flags=re.IGNORECASE)
    try:
        return int(float(found[1]) * _UNITS[found[2].lower()])
    except (TypeError, KeyError, ValueError, OverflowError):
        raise ValueError(f"memory={text!r} is no size; write such as 80GB, 24GiB or a number of bytes") from None


def plan_name(plan):
    """What tells one plan of a table from the others: sharding and checkpointing."""
    settings = plan["settings"]
    if settings["purpose"] == "generate":
        return "generate"
    return settings["sharding"] + (", checkpointing" if settings["checkpointing"] else "")


def memory_table(plans, title=None):
    """The peaks of plans of one config as rows, by part."""
    from rich.table import Table

    used = [part for part in PARTS if any(part in plan["peak"]["parts"] for plan in plans)]
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("on each device")
    for part in (*used, "peak"):
        table.add_column(part, justify="right")
    table.add_column("at its height", overflow="fold")
    told = any(plan["fits"] is not None for plan in plans)
    if told:
        table.add_column("fits")
    for plan in plans:
        parts = plan["peak"]["parts"]
        cells = [human_bytes(parts[part]) if part in parts else "" for part in used]
        fits = ("yes" if plan["fits"] else "no",) if told else ()
        table.add_row(plan_name(plan), *cells, human_bytes(plan["peak"]["bytes"]), plan["peak"]["phase"], *fits)
    table.caption = _words(plans[0])
    return table


def _read(settings):
    length, images = settings["encoder_length"], settings["images"]
    if images is not None:
        trains = "" if settings["trains"] is None else f", trains {', '.join(settings['trains'])}"
        return f" with {images} image{'' if images == 1 else 's'} each{trains}"
    return "" if length is None else f", {settings['rows']} x {length:,} of the encoder"


def _words(plan):
    settings = plan["settings"]
    words = [
        f"{plan['parameters']:,} parameters",
        f"{settings['rows']} x {settings['length']:,} tokens per rank{_read(settings)}",
        settings["dtype"],
    ]
    if settings["purpose"] == "train":
        words.append(settings["optimizer"])
    if settings["accumulation"] > 1:
        words.append(f"{settings['accumulation']} micro-batches")
    if settings["devices"] > 1:
        words.append(f"{settings['devices']:,} devices")
    for name in ("tensor", "expert"):
        size = settings[f"{name}_parallel"]
        words += [f"{size} share each layer's {'heads and channels' if name == 'tensor' else 'experts'}"] if size > 1 else []
    fits = f" Fits: at most {USABLE:.0%} of the memory." if plan["fits"] is not None else ""
    return f"{', '.join(words)}. Parts are those of the phase with the highest sum.{fits}"
