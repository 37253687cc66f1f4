"""Why the tensors of a checkpoint may not fit the class that its config means: a hint for the error that names them."""

# What wrappers put into the names of what they wrap, and how to come to the model inside.
_WRAPPERS = {
    "_orig_mod.": "torch.compile (save model._orig_mod)",
    "_fsdp_wrapped_module.": "FSDP (gather and save the full state dict)",
    "module.": "DistributedDataParallel or DeepSpeed (save model.module)",
    "base_model.model.": "PEFT (save what merge_and_unload() returns)",
}
_ANYWHERE = ("_orig_mod.", "_fsdp_wrapped_module.")
_ADAPTERS = (".lora_", ".base_layer.", ".ia3_", ".modules_to_save.")


def hint(names, config=None, cls=None):
    """Text to append to an error about `names` of tensors that have no place in `cls`; empty where nothing is known."""
    names = [str(name) for name in names]
    for prefix, wrapper in _WRAPPERS.items():
        if any(name.startswith(prefix) or (prefix in _ANYWHERE and f".{prefix}" in name) for name in names):
            return f"; names with {prefix!r} were saved from a model wrapped by {wrapper}"
    if any(part in name for name in names for part in _ADAPTERS):
        return "; those are of an adapter: call merge_and_unload(), and convert what it returns"
    return named_class(config, cls)


def named_class(config, cls):
    """Text that says that the config names another class than `cls`; empty where it does not."""
    named = getattr(config, "architectures", None)
    named = [name for name in named if isinstance(name, str)] if isinstance(named, (list, tuple)) else []
    if cls is None or not named or cls.__name__ in named:
        return ""
    return f"; config.json names {', '.join(named)}, of which {cls.__name__} is what converts"
