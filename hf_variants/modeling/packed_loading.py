"""What reading packed weights takes in every format: which Linears a checkpoint holds packed, and the layers in their places.

Notable here: what becomes packed is what the files hold, so nothing is guessed from names, and a matrix that no Linear can
take is an error instead of random weights; a quantizer is placed in transformers' table only where transformers' own, or that
of another checkpoint's code, stands.
"""

from safetensors import safe_open
from torch import nn


def place(table, key, ours):
    """Put `ours` in a table of transformers, unless the installed package has put its own there."""
    # code that travels is called transformers_modules...
    if table[key].__module__.startswith("transformers"):
        table[key] = ours


def replace_packed(model, checkpoint_files, marker, chosen, make):
    """Put packed layers in the places of the Linears that a checkpoint holds packed.

    Args:
        marker: last part of the name under which a packed matrix is stored.
        chosen: called with the names of all Linears where the files cannot tell (from_config); gives those to pack.
        make: Linear -> its packed layer, on the meta device.

    Raises:
        ValueError: for packed tensors that no Linear of the model can take.
    """
    linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    stored = stored_packed_names(checkpoint_files, model.base_model_prefix, linears, marker)
    if stored is None:
        stored = chosen(linears)
    missing = sorted(stored - linears)
    if missing:
        raise ValueError(
            f"the checkpoint holds packed weights ({marker}) for {missing[:3]}{' and more' if len(missing) > 3 else ''}, but "
            f"{type(model).__name__} has no Linear of that name (fused experts, or another architecture), and would start "
            "from random weights there; load it with a class that keeps these matrices apart"
        )
    for name in sorted(stored):
        model.set_submodule(name, make(model.get_submodule(name)))


def stored_packed_names(files, base_prefix, linears, marker):
    """Names of the modules that `files` (safetensors) hold as `marker`, as the model calls them; None where not readable.

    A checkpoint of a model with a head is read by the bare model too, and the other way round: the base prefix is added or
    taken away where that is how the model names its Linears.
    """
    if not files or not all(str(file).endswith(".safetensors") for file in files):
        return None
    stored = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            stored |= {name.removesuffix(f".{marker}") for name in tensors.keys() if name.endswith(f".{marker}")}
    prefix = f"{base_prefix}."
    if stored and not stored & linears:
        if any(name.removeprefix(prefix) in linears for name in stored):
            return {name.removeprefix(prefix) for name in stored}
        if any(prefix + name in linears for name in stored):
            return {prefix + name for name in stored}
    return stored
