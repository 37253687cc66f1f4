"""`hf-variants profile-cross`: what a generated token costs against the length of the encoder, counted and measured."""

import json
from typing import Annotated

import typer

from .compared_configs import compared_configs, sources_and_words
from .console import announce, announce_files, check_plot, console
from .describe import SOURCE_HELP
from .profile_cache import dtype_named


def add_to(app):
    app.command("profile-cross")(profile_cross)


def profile_cross(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL... [KEY=VALUE]...", help=f"{SOURCE_HELP} KEY=VALUE words change all of them."),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE,... to change in the first config, or NAME:KEY=VALUE,...; adds a row each."),
    ] = None,
    encoder_lengths: Annotated[str, typer.Option(help="Tokens that the encoder reads, rising, apart by commas.")] = (
        "64,128,256,512"
    ),
    length: Annotated[int, typer.Option(help="Tokens that the decoder has written before.")] = 32,
    batch_size: Annotated[int, typer.Option(help="Rows.")] = 1,
    dtype: Annotated[str, typer.Option(help="dtype of the caches, and of the weights where measured.")] = "float32",
    measure: Annotated[bool, typer.Option(help="Build each model with random weights; time its steps.")] = False,
    new_tokens: Annotated[int | None, typer.Option(help="Steps timed in each run; default 16.")] = None,
    plot: Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
):
    """FLOPs, cache bytes and time of a generated token of encoder-decoders against the length of what the encoder read."""
    check_plot(plot)
    models, changed = sources_and_words(models)
    if new_tokens is not None and not measure:
        raise ValueError(f"--new-tokens {new_tokens} is timed by --measure alone; add it or leave the number out")
    lengths = _numbers(encoder_lengths)
    from ..evaluation.cross_profile import count_cross, measure_cross

    kind = dtype_named(dtype)
    configs = compared_configs(models, changed, vary)
    profiles = [count_cross(name, config, lengths, length, batch_size, kind) for name, config in configs.items()]
    if measure:
        for profile, config in zip(profiles, configs.values(), strict=True):
            if not as_json:
                announce(f"measuring {profile.name}")
            measure_cross(profile, config, 16 if new_tokens is None else new_tokens)
    if plot:
        from ..report.cross_plot import plot_cross

        plot_cross(profiles, plot)
    if as_json:
        print(json.dumps([profile.as_dict() for profile in profiles], indent=2))
        return
    for profile in profiles:
        console.print(_table(profile, measure))
    announce_files(plot)


def _table(profile, measure):
    from rich.table import Table

    from ..analysis.describe import human_bytes

    slope = f"each token of the encoder adds {profile.flops_per_state:,.0f} FLOPs and {profile.bytes_per_state:,.0f} bytes"
    if measure:
        held = all(point["measured_cross_bytes"] == point["cross_bytes"] for point in profile.points)
        slope += f", and {1e6 * profile.seconds_per_state:.3g} µs (R² {profile.linearity:.3f})"
        slope += f"; the model's cross caches hold {'these' if held else 'OTHER'} bytes"
    own = human_bytes(profile.points[0]["self_bytes"])
    title = f"{profile.name}: a token behind {profile.length} (cache {own}), {profile.batch_size} row(s), {profile.dtype}"
    view = Table(title=title, caption=slope, title_justify="left", caption_justify="left")
    measured = ("ms per token", "ms to encode") if measure else ()
    for column in ("encoder", "MFLOPs", "cross", "cross cache", *measured):
        view.add_column(column, justify="right", no_wrap=True)
    for point in profile.points:
        share = point["cross_flops"] / point["flops"]
        cells = [f"{point['states']:,}", f"{point['flops'] / 1e6:,.3f}", f"{share:.1%}"]
        cells.append(human_bytes(point["cross_bytes"]))
        if measure:
            cells += [f"{1e3 * point[name]:.2f}" for name in ("seconds", "encoder_seconds")]
        view.add_row(*cells)
    return view


def _numbers(text):
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--encoder-lengths {text!r} must be whole numbers apart by commas, as 64,128,256") from None
