"""By which keys of a spec a run is recognised when its command is given again.

Notable here: how a step is cut into processes and micro-batches does not matter, how many rows it has does.
"""

from .sharding import forget_split, ranks_per_row


def run_settings(spec, arguments, left_out=()):
    """The keys of a training spec that decide its result (dict of JSON values), with `rows_per_step`.

    Args:
        arguments: its TrainingArguments. left_out: further keys of the top that decide nothing.
    """
    settings = spec.to_dict()
    for key in ("output_dir", "overwrite", "allow_changes", *left_out):
        del settings[key]
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        settings["trainer"].pop(key, None)
    settings["rows_per_step"] = rows_per_step(spec, arguments)
    forget_split(settings)
    return settings


def rows_per_step(spec, arguments):
    """Rows of one optimizer step over all processes and micro-batches."""
    groups = arguments.world_size // ranks_per_row(spec.distributed)
    return arguments.train_batch_size * arguments.gradient_accumulation_steps * groups
