"""What tells two configs apart: the toggles, and what they change in parameters, FLOPs and cache.

Notable here: two configs are compared by what they mean, so that one thing written in two ways is no difference; costs of both
are counted at one length, or the numbers would not compare.
"""

from .cache_size import kv_cache_size
from .counts import count_parameters
from .describe import DTYPE_BYTES, check_dtype, human_bytes, human_count, usual_lengths
from .flops import flops_per_token
from .layer_pattern import runs_of


def diff_configs(a, b, length=None, dtype="bfloat16"):
    """Toggles and costs in which two configs differ.

    Args:
        a, b: what `convert.read_config` reads: a config, ours or native, a preset's name, a .json, a folder or a Hub id.
        length: tokens at which FLOPs and cache are counted; None takes the shorter of the two contexts.
        dtype: of weights and cache, a key of `DTYPE_BYTES`.

    Returns:
        dict of JSON types with `toggles` ({name: [of a, of b]}), `length`, `dtype`, `costs` ({name: [of a, of b]}:
        parameters in all, active and by part, FLOPs per token, KV bytes per token and at `length`), and `by_length`, the
        costs of running at `length`, a quarter of it, a quarter of that and of that again.

    Raises:
        ValueError: as `convert.read_config`, and for an unknown dtype or a length below 1.
    """
    from hf_variants.convert.config_source import read_config
    from hf_variants.convert.meaning import differences

    check_dtype(dtype)
    first, second = read_config(a), read_config(b)
    if length is None:
        length = min(first.max_position_embeddings, second.max_position_embeddings)
    if length < 1:
        raise ValueError(f"length={length} must be at least 1 token")
    toggles = {name: list(pair) for name, pair in differences(first, second).items() if _says_something(*pair)}
    both, size = (first, second), DTYPE_BYTES[dtype]
    running = [
        {"length": tokens, **_side_by_side([_running(config, tokens, size) for config in both])}
        for tokens in usual_lengths(first, length)
    ]
    costs = {**_side_by_side([_parameters(config) for config in both]), **running[-1]}
    del costs["length"]
    return {"toggles": toggles, "length": length, "dtype": dtype, "costs": costs, "by_length": running}


def _side_by_side(costs):
    """{name: [of a, of b]} of two dicts; what one does not have costs it nothing."""
    return {name: [cost.get(name, 0) for cost in costs] for name in dict.fromkeys([*costs[0], *costs[1]])}


def _says_something(one, other):
    """Not so for equal values, which another field explains, nor for lists of one value that differ in length alone."""
    if isinstance(one, list) and isinstance(other, list) and one and other:
        return one != other and not (set(map(str, one)) == set(map(str, other)) and len(set(map(str, one))) == 1)
    return one != other


def _parameters(config):
    counts = count_parameters(config)
    parts = {f"parameters.{part}": count for part, count in counts.parts.items()}
    return {"parameters": counts.total, "active_parameters": counts.active, **parts}


def _running(config, length, size):
    cache = kv_cache_size(config, length, dtype_bytes=size)
    decode = flops_per_token(config, length, "decode").total if config.stacks[-1].is_causal else 0
    return {
        "flops_per_token": flops_per_token(config, length).total,
        "flops_of_last_token": decode,
        "kv_bytes_per_token": cache.per_token,
        "kv_bytes": cache.bytes,
    }


def short_value(value):
    """A value in a cell: layers that repeat are counted."""
    if isinstance(value, list) and len(value) > 4:
        runs = runs_of([str(item) for item in value])
        shown = ", ".join(f"{count} x {word}" for count, word in runs[:4])
        return shown + (f", ... ({len(value)} in all)" if len(runs) > 4 else "")
    if isinstance(value, dict):
        return ", ".join(f"{key} {short_value(item)}" for key, item in value.items())
    return str(value)


_LABELS = {
    "parameters": "parameters",
    "active_parameters": "active per token",
    "flops_per_token": "FLOPs per token, mean",
    "flops_of_last_token": "FLOPs of last token",
    "kv_bytes_per_token": "KV bytes per token",
    "kv_bytes": "KV cache",
}


def diff_table(facts, names=("A", "B")):
    """The facts of `diff_configs` as a `rich.table.Table`."""
    from rich.table import Table

    table = Table(title_justify="left", caption_justify="left")
    table.add_column("", style="bold", no_wrap=True)
    for name in names:
        table.add_column(name, overflow="fold")
    table.add_column("change", justify="right", no_wrap=True)
    for name, (one, other) in facts["toggles"].items():
        table.add_row(name, short_value(one), short_value(other), "")
    if not facts["toggles"]:
        table.add_row("toggles", "the same", "the same", "")
    table.add_section()
    for name, (one, other) in facts["costs"].items():
        label = _LABELS.get(name, "  " + name.removeprefix("parameters.").replace("_", " "))
        if name.startswith("parameters.") and one == other or not (one or other):
            continue
        human = human_bytes if name == "kv_bytes" else human_count if name.startswith("flops") else (lambda n: f"{n:,}")
        table.add_row(label, human(one), human(other), _change(one, other))
    table.caption = (
        f"At {facts['length']:,} tokens, {facts['dtype']}; the last token from its cache. Counted from the configs: forward "
        "pass, matrix products only."
    )
    return table


def _change(one, other):
    if one == other:
        return "="
    return "new" if not one else "gone" if not other else f"{(other - one) / one:+.1%}"
