"""Runs whose model transformers itself shards at load time: the `distributed` section of a recipe, and their checkpoints.

    output_dir/start                   new weights, until the run is finished

    checkpoint-N/shard-*.safetensors   weights, each process its own part
                /optimizer_shards/     states of the optimizer by the names of the weights (torch.distributed.checkpoint)

Notable here: Trainer trains such models but cannot continue them. Weights and states are stored by name and position in the
whole tensor, so a run goes on with another split of the same rows, too.
"""

import os
import re
import shutil
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from ..modeling.vocabulary import nearest
from .spec_parsing import convert

OPTIMIZER_FOLDER = "optimizer_shards"
START_FOLDER = "start"
_SHARD = re.compile(r"^shard-\d+-model-\d+-of-\d+\.safetensors$")

# Keys of DistributedConfig that a recipe does not take, each with the reason.
_LEFT_OUT = {
    "tp_plan": "the model brings its plans",
    "ep_plan": "the model brings its plans",
    "fsdp_plan": "the model brings its plans",
    "pp_size": "pipeline parallelism runs forward and generation alone",
    "enable_sequence_parallel": "transformers does not use it yet",
    "enable_expert_parallel": "it is deprecated; use ep_size",
}


def distributed_config(section):
    """transformers' `DistributedConfig` of a `distributed` section, or None where it is empty.

    Raises:
        ValueError: for an unknown key (the nearest is named), a wrong type, sizes that transformers refuses, or sizes of one.
    """
    if not section:
        return None
    from transformers.distributed.configuration_utils import DistributedConfig

    hints = get_type_hints(DistributedConfig)
    known = [field.name for field in fields(DistributedConfig) if field.name not in _LEFT_OUT]
    checked = {}
    for key, value in section.items():
        if key in _LEFT_OUT:
            raise ValueError(f"distributed.{key}={value!r} does not belong here: {_LEFT_OUT[key]}; it takes {known}")
        if key not in known:
            raise ValueError(f"unknown key 'distributed.{key}'{nearest(key, known)}; it takes {known}")
        checked[key] = convert(value, hints[key], f"distributed.{key}")
    try:
        config = DistributedConfig(**checked)
    except ValueError as error:
        raise ValueError(f"distributed={section!r}: {' '.join(str(error).split())}") from None
    if processes_of(config) == 1:
        raise ValueError(f"distributed={section!r} splits nothing; give fsdp_size, tp_size or dp_replicate_size of 2 or more")
    return config


def processes_of(config):
    """Number of processes that a `DistributedConfig` needs."""
    return config.pp_size * config.dp_size * config.tp_size


def ranks_per_row(section):
    """Number of processes that compute every row together: those that share each layer by tensor parallelism."""
    config = distributed_config(section)
    return 1 if config is None else config.tp_size


def check_distributed(spec, model_config=None):
    """Refuse a `distributed` section that the rest of a spec contradicts. Raises ValueError.

    Args:
        model_config: that of the model, where it is known.
    """
    config = distributed_config(spec.distributed)
    if config is None:
        return
    for key in ("fsdp", "deepspeed", "fsdp_config", "parallelism_config"):
        if spec.trainer.get(key):
            raise ValueError(
                f"trainer.{key}={spec.trainer[key]!r} and distributed={spec.distributed!r} would both shard the model; leave "
                "one of them out"
            )
    if spec.trainer.get("load_best_model_at_end"):
        raise ValueError(
            "trainer.load_best_model_at_end=True reads whole weights back, and those of a run with `distributed` are sharded; "
            "leave one of them out"
        )
    if getattr(spec, "optimizer", None) == "muon":
        raise ValueError(
            f"optimizer='muon' needs whole matrices, and distributed={spec.distributed!r} shards them; use optimizer='adamw'"
        )
    if config.ep_size > 1 and model_config is not None:
        _check_experts(config.ep_size, getattr(model_config, "num_experts", None))
    if config.tp_size > 1 and hasattr(model_config, "layer_plan"):
        from ..modeling.variants_base import check_tensor_parallel

        check_tensor_parallel(model_config, config.tp_size)


def _check_experts(ep_size, experts):
    if not experts:
        raise ValueError(
            f"distributed.ep_size={ep_size} splits experts, and the model has none (model.num_experts={experts!r})"
        )
    if experts % ep_size:
        divisors = [size for size in range(1, experts + 1) if experts % size == 0]
        raise ValueError(f"distributed.ep_size={ep_size} does not divide model.num_experts={experts}; choose from {divisors}")


def check_launch(spec, arguments):
    """Refuse a launch whose processes are not those that `distributed` splits the model over. Raises ValueError."""
    config = distributed_config(spec.distributed)
    if config is None:
        return
    needed = processes_of(config)
    if needed != arguments.world_size:
        raise ValueError(
            f"distributed={spec.distributed!r} needs {needed} processes, and this launch has {arguments.world_size}: torchrun "
            f"--nproc_per_node {needed} recipes/..."
        )
    kind = str(arguments.distributed_state.distributed_type).rsplit(".", 1)[-1]
    if config.tp_size > 1 and kind == "MULTI_CPU":
        raise ValueError(
            f"distributed.tp_size={config.tp_size} trains on accelerators alone, since accelerate deals rows out to groups of "
            "processes there only; on CPUs use fsdp_size and ep_size"
        )


def load_sharded(spec, arguments, build, auto, dtype):
    """Weights that lie in no checkpoint, each process of a run with a `distributed` section holding its part.

    They are made whole by the first process and kept in output_dir/start, from where all read them.

    Args:
        arguments: TrainingArguments of the run. build: makes the whole model. auto: the Auto class that loads it.
    """
    from .processes import in_turn

    source = Path(spec.output_dir) / START_FOLDER
    with in_turn(arguments):
        if not (source / "config.json").is_file():
            partial = source.with_name(f"{START_FOLDER}.partial-{os.getpid()}")
            build().save_pretrained(partial)
            partial.rename(source)
    return auto.from_pretrained(source, distributed_config=distributed_config(spec.distributed), dtype=dtype)


def remove_start(output_dir):
    """Remove the new weights that a finished run began with; the first process does it."""
    from .processes import is_writer

    if is_writer():
        shutil.rmtree(Path(output_dir) / START_FOLDER, ignore_errors=True)


def forget_split(settings):
    """Leave out of a stage's settings how its model is split, which does not matter, but not that it is: checkpoints of whole
    and of sharded models are of two kinds.
    """
    if settings.pop("distributed"):
        settings["distributed"] = True


@contextmanager
def saving_allowed(model, arguments):
    """Trainer refuses to save more than the weights of a sharded model; `VariantsTrainer` can."""
    sharded = getattr(model, "is_distributed_loading_by_transformers", False)
    allowed = sharded and arguments is not None and not arguments.save_only_model
    if allowed:
        arguments.save_only_model = True
    try:
        yield
    finally:
        if allowed:
            arguments.save_only_model = False


def save_weights(model, folder, is_writer):
    """Write the part of the weights that this process holds; all processes call it together."""
    model.save_pretrained(folder, distributed_checkpoint=True, is_main_process=is_writer)


def load_weights(model, folder):
    """Read the weights that `save_weights` wrote into a sharded model; all processes call it together.

    Raises:
        ValueError: where the folder holds no sharded weights.
    """
    if not is_sharded(folder):
        raise ValueError(
            f"{str(folder)!r} holds no sharded weights; a run with `distributed` continues from its own checkpoints"
        )
    from transformers.distributed.checkpoint import _load_model_checkpoint_distributed

    _load_model_checkpoint_distributed(model, folder)


def save_optimizer(model, optimizer, folder):
    """Write the part of the optimizer's state that this process holds; all processes call it together."""
    from transformers.distributed.checkpoint import save_optimizer_distributed

    save_optimizer_distributed(model, _bare(optimizer), str(Path(folder) / OPTIMIZER_FOLDER))


def load_optimizer(model, optimizer, folder):
    """Read the state that `save_optimizer` wrote; all processes call it together."""
    from transformers.distributed.checkpoint import load_optimizer_distributed

    load_optimizer_distributed(model, _bare(optimizer), str(Path(folder) / OPTIMIZER_FOLDER))


def scheduler_state_for(state, groups):
    """The state of a learning-rate scheduler for an optimizer of so many parameter groups.

    Weights of one mesh make a group, so another split has other groups; all have the rate of the run.
    """
    lists = {name: value for name, value in state.items() if name in ("base_lrs", "_last_lr")}
    return {**state, **{name: value[:1] * groups for name, value in lists.items()}}


def is_sharded(folder):
    """Whether a checkpoint holds weights as `save_weights` writes them."""
    return bool(shards_of(folder))


def shards_of(folder):
    """Paths of the files of sharded weights in a folder."""
    folder = Path(folder)
    return sorted(path for path in folder.iterdir() if _SHARD.match(path.name)) if folder.is_dir() else []


def _bare(optimizer):
    return getattr(optimizer, "optimizer", optimizer)
