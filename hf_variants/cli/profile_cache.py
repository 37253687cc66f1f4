"""`hf-variants profile-cache`: key-value caches counted, measured, and side by side."""

import json
from typing import Annotated

import typer

from .compared_configs import compared_configs, sources_and_words
from .console import announce, announce_files, check_plot, console
from .describe import SOURCE_HELP


def add_to(app):
    app.command("profile-cache")(profile_cache)


def profile_cache(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL... [KEY=VALUE]...", help=f"{SOURCE_HELP} KEY=VALUE words change all of them."),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE,... to change in the first config, or NAME:KEY=VALUE,...; adds a row each."),
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens in the cache.")] = 4096,
    batch_size: Annotated[int, typer.Option(help="Rows.")] = 1,
    dtype: Annotated[str, typer.Option(help="dtype of the cache, and of the weights where measured.")] = "bfloat16",
    cache: Annotated[
        str, typer.Option(help="dynamic, static (room for all tokens at once), or quantized: fp8, hqq, quanto.")
    ] = "dynamic",
    encoder_length: Annotated[
        int | None, typer.Option(help="States that cross-attention keeps; default: as many as tokens.")
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Build each model with random weights; measure its cache and decoding.")
    ] = False,
    new_tokens: Annotated[int | None, typer.Option(help="Tokens decoded per measurement; default 32.")] = None,
    text: Annotated[
        str | None, typer.Option(help="Text file; its perplexity read from the cache. MODELs are checkpoints then.")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
):
    """Bytes of the key-value cache by layer kind, per token and in all, of several configs, and the speed of decoding."""
    check_plot(plot)
    models, changed = sources_and_words(models)
    if new_tokens is not None and not measure:
        raise ValueError(f"--new-tokens {new_tokens} is decoded by --measure alone; add it or leave the number out")
    if text is not None and (vary or changed):
        raise ValueError(f"--text {text} is read by trained weights, which fit their own config alone; leave changes out")
    new_tokens = 32 if new_tokens is None else new_tokens
    from ..evaluation.cache_profile import count_cache, decoder_of, measure_caches

    kind = dtype_named(dtype)
    configs = compared_configs(models, changed, vary)
    options = (length, batch_size, kind, cache, encoder_length)
    profiles = [count_cache(name, config, *options) for name, config in configs.items()]
    if measure:
        _check_size({name: decoder_of(config) for name, config in configs.items()}, kind)
        tick = (lambda name: None) if as_json else (lambda name: announce(f"measuring {name}"))
        measure_caches(profiles, configs.values(), new_tokens, tick=tick)
    if text is not None:
        from ..jobs.cache_perplexity import measure_perplexity

        for profile in profiles:
            measure_perplexity(profile, profile.name, text)
    if plot:
        from ..report.cache_plot import plot_caches

        plot_caches(profiles, plot)
    if as_json:
        print(json.dumps([profile.as_dict() for profile in profiles], indent=2))
        return
    how = dtype if cache == "dynamic" else f"{dtype}, {cache}"
    console.print(_table(profiles, f"key-value cache of {batch_size} x {length:,} tokens in {how}", measure, text is not None))
    announce_files(plot)


def _table(profiles, title, measured, read):
    """A row for each `CacheProfile`: counted, and where they were `measured` or a text was `read`, that too."""
    from rich.table import Table

    from ..analysis.describe import human_bytes

    view = Table(title=title, title_justify="left")
    for column in (
        "config",
        "layers",
        "per token",
        "in all",
        "of MHA",
        *(("measured", "tokens/s", "CPU ms") if measured else ()),
    ):
        view.add_column(column, overflow="fold")
    if measured:
        view.caption = "CPU ms: processor time of a token, all threads; all models decode by turns"
        view.caption_justify = "left"
    if read:
        view.add_column("perplexity")
    for profile in profiles:
        layers = "\n".join(_layers(row, len(profile.kinds)) for row in profile.kinds)
        seen = (human_bytes(profile.measured_bytes), *_speed(profile)) if measured else ()
        sizes = (human_bytes(profile.bytes_per_token), human_bytes(profile.bytes), f"{profile.share_of_mha:.1%}")
        perplexity = () if not read else (f"{profile.perplexity:.4g} (dynamic {profile.perplexity_of_dynamic:.4g})",)
        view.add_row(profile.name, layers, *sizes, *seen, *perplexity)
    return view


def dtype_named(name):
    """The floating-point dtype of torch of that name. Raises ValueError for another."""
    import torch

    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"--dtype {name!r} is no floating-point dtype of torch; choose such as bfloat16, float16, float32")
    return kind


def _layers(row, kinds):
    from ..analysis.describe import human_bytes

    words = f"{row['layers']} x {row['kind']}"
    return words if kinds == 1 else f"{words}: {human_bytes(row['bytes'])}"


def _speed(profile):
    if profile.tokens_per_second is None:
        return "", ""
    return f"{profile.tokens_per_second:.1f}", f"{profile.processor_ms_per_token:.3g}"


def _check_size(configs, dtype):
    from ..analysis import count_parameters

    need = {name: count_parameters(config).total * max(dtype.itemsize, 4) for name, config in configs.items()}
    if sum(need.values()) > 16e9:
        largest = max(need, key=need.get)
        raise ValueError(
            f"--measure would build {sum(need.values()) / 1e9:.0f} GB of weights, {need[largest] / 1e9:.0f} of them of "
            f"{largest}; num_hidden_layers=... makes them small"
        )
