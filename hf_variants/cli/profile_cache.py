"""`hf-variants profile-cache`: key-value caches counted, measured, and side by side."""

import json
from typing import Annotated

import typer

from ..training.spec_parsing import parse_words
from .console import announce, announce_files, check_plot, console
from .describe import SOURCE_HELP


def add_to(app):
    app.command("profile-cache")(profile_cache)


def profile_cache(
    models: Annotated[list[str], typer.Argument(help=SOURCE_HELP)],
    vary: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE,... to change in the first config; adds a column each.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens in the cache.")] = 4096,
    batch_size: Annotated[int, typer.Option(help="Rows.")] = 1,
    dtype: Annotated[str, typer.Option(help="dtype of the cache, and of the weights where measured.")] = "bfloat16",
    cache: Annotated[str, typer.Option(help="dynamic, static (room for all tokens at once) or fp8 (quantized).")] = "dynamic",
    encoder_length: Annotated[
        int | None, typer.Option(help="States that cross-attention keeps; default: as many as tokens.")
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Build each model with random weights; measure its cache and decoding.")
    ] = False,
    new_tokens: Annotated[int | None, typer.Option(help="Tokens decoded per measurement; default 32.")] = None,
    plot: Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
):
    """Bytes of the key-value cache by layer kind, per token and in all, of several configs."""
    check_plot(plot)
    if new_tokens is not None and not measure:
        raise ValueError(f"--new-tokens {new_tokens} is decoded by --measure alone; add it or leave the number out")
    new_tokens = 32 if new_tokens is None else new_tokens
    from ..analysis.describe import human_bytes
    from ..convert.config_source import read_config
    from ..evaluation.cache_profile import count_cache, decoder_of, measure_cache

    kind = dtype_named(dtype)
    configs = {name: read_config(name) for name in models}
    for words in vary or ():
        configs[words] = read_config(models[0], **dict(parse_words(_keys(words))))
    options = (length, batch_size, kind, cache, encoder_length)
    profiles = [count_cache(name, config, *options) for name, config in configs.items()]
    if measure:
        for profile, config in zip(profiles, configs.values(), strict=True):
            _check_size(profile.name, decoder_of(config), kind)
        for profile, config in zip(profiles, configs.values(), strict=True):
            if not as_json:
                announce(f"measuring {profile.name}")
            measure_cache(profile, config, new_tokens)
    if plot:
        from ..report.cache_plot import plot_caches

        plot_caches(profiles, plot)
    if as_json:
        print(json.dumps([profile.as_dict() for profile in profiles], indent=2))
        return
    from rich.table import Table

    how = dtype if cache == "dynamic" else f"{dtype}, {cache}"
    view = Table(title=f"key-value cache of {batch_size} x {length:,} tokens in {how}", title_justify="left")
    for column in ("config", "layers", "per token", "in all", "of MHA", *(("measured", "tokens/s") if measure else ())):
        view.add_column(column)
    for profile in profiles:
        layers = "\n".join(f"{row['layers']} x {row['kind']}: {human_bytes(row['bytes'])}" for row in profile.kinds)
        measured = (human_bytes(profile.measured_bytes), _speed(profile)) if measure else ()
        sizes = (human_bytes(profile.bytes_per_token), human_bytes(profile.bytes), f"{profile.share_of_mha:.1%}")
        view.add_row(profile.name, layers, *sizes, *measured)
    console.print(view)
    announce_files(plot)


def dtype_named(name):
    """The floating-point dtype of torch of that name. Raises ValueError for another."""
    import torch

    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"--dtype {name!r} is no floating-point dtype of torch; choose such as bfloat16, float16, float32")
    return kind


def _speed(profile):
    return "" if profile.tokens_per_second is None else f"{profile.tokens_per_second:.1f}"


def _keys(words):
    """`a=1,b=2` apart at the commas that a key follows, so that lists keep theirs."""
    import re

    return re.split(r",(?=[\w.]+=)", words)


def _check_size(name, config, dtype):
    from ..analysis import count_parameters

    need = count_parameters(config).total * max(dtype.itemsize, 4)
    if need > 8e9:
        raise ValueError(
            f"--measure would build {name} with {need / 1e9:.0f} GB of weights; --vary num_hidden_layers=... makes it small"
        )
