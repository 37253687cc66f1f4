"""Names of a package that are imported when they are first asked for, so that a recipe or a help text imports no torch."""

from importlib import import_module


def lazy_names(package, where):
    """(__all__, __getattr__) of a package.

    Args:
        package: its `__name__`. where: {name: module of the package that holds it}.
    """

    def get(name):
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{where[name]}", package), name)

    return list(where), get
