"""What the command line prints, and where."""

from rich.console import Console

from ..training.processes import is_writer

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def announce(text):
    """Print one line of progress, from the first process alone."""
    if is_writer():
        console.print(text, markup=False, soft_wrap=True)


def print_error(text):
    """Print a mistake in red on stderr, as one line."""
    errors.print(f"error: {' '.join(str(text).split())}", style="bold red", markup=False, soft_wrap=True)


def show_methods(result):
    """Print the methods of a context extension side by side, from the first process alone."""
    if not is_writer():
        return
    from rich.table import Table

    before, keys = dict(result["before"]), dict(result["passkey_before"])
    if result["training"]:
        name = f"{result['method']}, fine-tuned"
        before[name], keys[name] = result["after"], result["passkey_after"]
    # a terminal has room for a few columns; the page of the run has all
    number = len(result["after"])
    shown = sorted({(number * quarter + 3) // 4 - 1 for quarter in (1, 2, 3, 4)})
    columns = [f"to {result['after'][index]['end']:,}" for index in shown]
    columns += [f"key {row['length']:,}" for row in result["passkey_after"][-2:]]
    table = Table("method", *columns, title="perplexity by position; pass keys found", title_justify="left")
    for method, buckets in before.items():
        cells = [buckets[index]["perplexity"] for index in shown]
        cells = ["" if value is None else f"{value:.4g}" for value in cells]
        table.add_row(method, *cells, *(f"{row['accuracy']:.0%}" for row in keys[method][-2:]))
    console.print(table)


def show_numbers(title, values):
    """Print a dict of numbers as a table, from the first process alone."""
    if not is_writer():
        return
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in values.items():
        if not isinstance(value, (dict, list)):
            table.add_row(name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else f"{value}")
    console.print(table)


def check_plot(path):
    """Refuse a `--plot` file that cannot be written, before any work; None asks for no figure."""
    if path is not None:
        from ..report.plot_file import check_plot_path

        check_plot_path(path)


def announce_files(*paths):
    """Say which files were written; None stands for one that was not asked for."""
    for path in paths:
        if path is not None:
            announce(f"written: {path}")
