"""Tables of a report that every run shares, from the plain records that the other rooms return."""

from .blocks import Table


def facts_table(facts, title="", how=""):
    """A two-column table of a dict."""
    return Table(["fact", "value"], [[name.replace("_", " "), value] for name, value in facts.items()], title, how)


def quantization_table(records, title="", how=""):
    """Checkpoints side by side; the first record is what the others are compared with.

    Args:
        records: dicts with `name`, `perplexity`, `bytes` (of the weights), `tokens_per_second`; None where unmeasured.

    Raises:
        ValueError: without records.
    """
    if not records:
        raise ValueError("quantization_table needs at least one record")
    reference = records[0]
    columns = [
        *("checkpoint", "held-out perplexity", f"change from {reference['name']} (%)"),
        *("weights (MB)", f"size / {reference['name']}", "decoding (tokens/s)"),
    ]
    rows = []
    for record in records:
        worse = _ratio(record["perplexity"], reference["perplexity"])
        size = _ratio(record["bytes"], reference["bytes"])
        rows.append(
            [
                record["name"],
                record["perplexity"],
                None if worse is None else 100 * (worse - 1),
                None if record["bytes"] is None else record["bytes"] / 1e6,
                size,
                record.get("tokens_per_second"),
            ]
        )
    return Table(columns, rows, title, how)


def extension_table(before, after=None, title="", how=""):
    """Perplexity of each method (rows) in each bucket of positions (columns), records as in `position_figure`.

    Raises:
        ValueError: without methods, and where their buckets differ.
    """
    groups = [(method, buckets) for method, buckets in before.items()]
    groups += [(f"{method}, fine-tuned", buckets) for method, buckets in (after or {}).items()]
    if not groups:
        raise ValueError("extension_table needs at least one method")
    edges = [(bucket["start"], bucket["end"]) for bucket in groups[0][1]]
    for method, buckets in groups:
        if [(bucket["start"], bucket["end"]) for bucket in buckets] != edges:
            raise ValueError(f"extension_table: the buckets of {method!r} differ from {edges}")
    columns = ["method", *(f"{start + 1:,}–{end:,}" for start, end in edges)]
    rows = [[method, *(bucket["perplexity"] for bucket in buckets)] for method, buckets in groups]
    best = min(range(len(rows)), key=lambda index: _or_infinite(rows[index][-1]))
    return Table(columns, rows, title, how, best=best)


def _ratio(value, reference):
    return None if value is None or not reference else value / reference


def _or_infinite(value):
    return float("inf") if value is None or value != value else value
