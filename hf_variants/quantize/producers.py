"""Who computes the scales: this package, or AutoAWQ where it can run.

Notable here: a producer is refused with the reason that was found on this machine, never replaced silently by another.
"""

PRODUCERS = ("own", "autoawq")


def check_producer(name):
    """Raise ValueError where `name` is no producer, or cannot run here."""
    if name not in PRODUCERS:
        raise ValueError(f"producer={name!r} is unknown; choose from {list(PRODUCERS)}")
    if name == "autoawq" and (reason := why_not_autoawq()):
        raise ValueError(f"producer='autoawq' cannot run here: {reason}; use producer='own', which writes the same format")


def why_not_autoawq():
    """The reason why AutoAWQ cannot quantise models of this family here, or None."""
    try:
        import awq  # noqa: F401
    except ImportError as error:
        return f"autoawq is not importable ({error}); it is archived by its authors: pip install hf-variants[autoawq]"
    return None
