"""A matplotlib figure in a file of its own, in the style of the reports.

Notable here: the file appears whole or not at all; the suffix is checked before anything is computed for it.
"""

import os
from pathlib import Path

from .output_file import check_output_path, partial_path

FORMATS = (".png", ".svg", ".pdf")


def check_plot_path(path):
    """Path of a plot to be written. Raises ValueError as `check_output_path`, and without matplotlib."""
    path = check_output_path("plot", path, FORMATS)
    check_matplotlib(f"plot={str(path)!r}")
    return path


def check_matplotlib(what):
    """Refuse what would be drawn, named `what`, where matplotlib is missing. Raises ValueError."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError(f"{what} needs matplotlib, which is not installed: pip install matplotlib") from None


def short_name(source):
    """A source as a figure names it: the last part of a path, anything else as it is."""
    text = str(source)
    return Path(text).name if text.startswith(("/", "./", "../", "~")) else text


def save_plot(draw, path, width=8.4, height=4.6, columns=1, rows=1):
    """Call `draw(axes)` (a list of them where there are several) on a new figure and write it to `path`; returns the path."""
    path = check_plot_path(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from .plots import STYLE

    partial = partial_path(path)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns)
        draw(list(axes.flat) if rows * columns > 1 else axes)
        try:
            figure.savefig(partial, format=path.suffix[1:].lower(), dpi=150)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return path
