"""Who computes the scales: this package alone; AutoAWQ is named and refused.

Notable here: AutoAWQ is archived by its authors and takes only model classes of its own table, through its own loader; autoawq
0.2.9 was seen to quantize a native Llama on a CPU with transformers 5.23, but no bridge to it is shipped, so asking for it is
an error with the reason and the way around, never another producer in its place.
"""

PRODUCERS = ("own", "autoawq")


def check_producer(name):
    """Raise ValueError where `name` is no producer, or cannot run here."""
    if name not in PRODUCERS:
        raise ValueError(f"producer={name!r} is unknown; choose from {list(PRODUCERS)}")
    if name == "autoawq":
        raise ValueError(
            f"producer='autoawq' cannot run here: {why_not_autoawq()}; use producer='own', which writes its format, or "
            "convert the checkpoint to its native class, quantize that with AutoAWQ itself (docs/quantize.md), and load it"
        )


def why_not_autoawq():
    """The reason why AutoAWQ cannot quantise models of this family here."""
    try:
        import awq  # noqa: F401
    except ImportError as error:
        return f"autoawq, which its authors archived, is not importable ({error})"
    return "autoawq, which its authors archived, quantises classes of its own table alone, and this family is not in it"
