"""One side of a conversion: a class, a config and its weights, wherever they lie."""

import copy
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hf_variants.convert.checkpoint_config import folder_keys, load_config, refuse_quantized
from hf_variants.convert.config_conversion import set_tied
from hf_variants.convert.heads import OUR_TYPES, head_of, head_of_config, head_of_ours, native_class, our_class
from hf_variants.convert.heads import OURS as OUR_CLASSES
from hf_variants.convert.misfits import hint, named_class
from hf_variants.convert.model_conversion import is_tied, refuse_foreign, refuse_no_model, refuse_unfit
from hf_variants.convert.native_checkpoint import depth_of, unbuildable
from hf_variants.convert.native_layout import harmless_names, load_steps
from hf_variants.convert.registry import find_family
from hf_variants.convert.same_build import refuse_other_build
from hf_variants.convert.skeletons import (
    embedding_name,
    expected_tensors,
    head_name,
    loaded_dtypes,
    release_head,
    skeleton,
    tensors_of,
    tied_names,
)
from hf_variants.convert.stages import Cast, LazyTensors, MemoryTensors, Renamed, Selected, Stage, Step, same_bits
from hf_variants.convert.stored_sinusoids import sinusoid_table
from hf_variants.convert.weight_files import FolderTensors
from hf_variants.convert.weight_rules import check_state

# What weights that are no codes are stored in.
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Side:
    """A checkpoint of either kind.

    Attributes:
        cls, config: the model class and its config.
        dtype: main dtype of the weights.
        weights: LazyTensors by the names of the model in memory, without a tied head.
        folder: where it lies, None for a model in memory.
        left: names of tensors in the files that no model builds.
        shard: bytes of the largest weight file, None for a model in memory.
        model: the class without weights, built once: what it expects of a checkpoint is asked more than once.
        own_head: whether the head is no token table though the config cannot say so (T5 v1.1).
    """

    cls: type
    config: Any
    dtype: torch.dtype
    weights: LazyTensors | None = None
    folder: Path | None = None
    left: tuple = ()
    shard: int | None = None
    model: Any = None
    own_head: bool = False

    @property
    def is_ours(self):
        return self.config.model_type in OUR_TYPES

    def head(self, found):
        """The head of the class, by the family `found` of the native side."""
        return head_of_ours(self.cls, found) if self.is_ours else head_of(self.cls, self.config, found)

    def skeleton(self):
        """The model without weights, which is not to be filled; eager attention, which every class has."""
        if self.model is None:
            self.model = self.fresh_skeleton(self.dtype)
        return self.model

    def fresh_skeleton(self, dtype):
        """One of one's own."""
        model = skeleton(self.cls, copy.deepcopy(self.config), dtype, attn_implementation="eager")
        return release_head(model) if self.own_head else model

    def hold(self, weights):
        """Take `weights` in the dtypes that loading would give them. Raises ValueError where names or shapes do not fit."""
        model = self.skeleton()
        check_state(weights.meta, expected_tensors(model), f"{self.cls.__name__} with this config")
        self.weights = Cast(weights, loaded_dtypes(model, self.dtype))
        return self


def folder_side(folder, dtype=None, config=None, model=None):
    """The `Side` in a folder of safetensors files.

    Args:
        config: what `read_config(folder)` gave, and `model` a skeleton built of an equal one in the same dtype, where they are
            known already.

    Raises:
        ValueError: unknown or quantized model; weights that are damaged, missing, left over or mis-shaped; a tie flag that
            contradicts the weights; a dtype in the config that would round them, where `dtype` asks for none.
    """
    folder = Path(folder)
    config = read_config(folder) if config is None else config
    tensors = FolderTensors(folder)
    side = Side(class_of(config), config, _main_dtype(dtype, config, tensors), folder=folder, shard=tensors.largest_file())
    side.model = model
    _built(side, folder)
    return _hold(side, tensors, folder, may_round=dtype is not None)


def gguf_side(folder, name, dtype=None, head=None):
    """The `Side` in a GGUF file, whose tensors are unpacked one by one; in fp32 where `dtype` asks for no other.

    Args:
        head: as in `from_native`.

    Raises:
        ValueError: as of `folder_side`, and for what transformers would drop in silence (`gguf_files.py`).
    """
    from hf_variants.convert.gguf_files import GgufFile, GgufTensors

    file = GgufFile(folder, name)
    config = file.config
    find_family(config.model_type)
    side = Side(class_of(config, head), config, dtype or torch.float32, shard=file.size())
    return _hold(side, GgufTensors(file, _built(side, file.path), side.dtype), file.path, may_round=True)


def packed_side(folder, dtype=None):
    """The `Side` in a folder of quantized safetensors that are unpacked one by one; None where they are unpacked whole.

    Raises:
        ValueError: as of `folder_side`, and for packed tensors that do not fit each other.
    """
    from hf_variants.convert.packed_files import packed_format, unpacked_tensors

    folder = Path(folder)
    config = read_config(folder, quantized=True)
    settings = getattr(config, "quantization_config", None)
    found = None if settings is None else packed_format(settings)
    if found is None:
        return None
    del config.quantization_config
    files = FolderTensors(folder)
    side = Side(class_of(config), config, _main_dtype(dtype, config, files), folder=folder, shard=files.largest_file())
    _built(side, folder)
    return _hold(side, unpacked_tensors(files, *found, side.dtype, side.is_ours), folder, may_round=True)


def _hold(side, tensors, where, may_round):
    """`side` with the weights that its class makes of tensors by the names of files."""
    model, config = side.skeleton(), side.config
    steps, homeless = load_steps(tensors.meta, model)
    left = harmless_names(homeless, depth_of(config)) | _dropped_by_the_class(homeless, model)
    if not side.is_ours:
        found = find_family(config.model_type)
        left |= {name for name in homeless if found.is_of_a_head(name)}
    side.left = tuple(sorted(left))
    _refuse_left_over(where, side, set(homeless) - set(side.left))
    _refuse_codes(where, steps, tensors, model)
    stage = Stage([*steps, *_computed_tables(steps, model, config)], tensors)
    if config.is_encoder_decoder:
        stage = _without_aliases(stage, side, model, where)
    else:
        stage = _without_tied_head(stage, model, where)
    if not may_round:
        _refuse_rounding(f"the config of {where} says", stage, loaded_dtypes(model, side.dtype), side.dtype)
    return side.hold(stage)


def memory_side(model, dtype=None, state=None):
    """The `Side` of a model in memory, which is not changed and whose weights are not copied.

    Args:
        state: its state dict, where that is not the model's own.

    Raises:
        ValueError: for a model of ours whose config was changed after it was built.
    """
    from hf_variants.modeling.built_config import without_effect

    refuse_no_model(model)
    config = copy.deepcopy(model.config)
    cls = _class_of_model(model)
    refuse_unfit(model)
    if config.model_type in OUR_TYPES and (changed := model.changed_fields()):
        raise ValueError(without_effect(changed, "Save the model and load it with the changed toggle, then convert it"))
    side = Side(cls, config, dtype or model.dtype)
    tied = is_tied(model, not side.is_ours and find_family(config.model_type).head_told_by_weights)
    side.own_head = config.is_encoder_decoder and config.tie_word_embeddings and not tied
    if not side.own_head:
        say_tied(config, tied)
    tied = set(tied_names(model, config))
    if state is None:
        refuse_other_build(model, side.skeleton(), deep=not side.is_ours)
    weights = Selected(MemoryTensors(state or model.state_dict()), tied)
    if dtype is None and state is None:
        _refuse_rounding("its model has", weights, loaded_dtypes(side.skeleton(), side.dtype), side.dtype)
    return side.hold(weights)


def _built(side, folder):
    """The skeleton. Raises ValueError for a config that transformers reads but cannot build from."""
    try:
        return side.skeleton()
    except Exception as error:
        raise unbuildable(side.config, side.cls, folder, error) from error


def read_config(folder, quantized=False):
    """The config of a folder, `quantized` or not. Raises ValueError where there is none, or none that can be converted."""
    kind = folder_keys(folder)["model_type"]
    if kind not in OUR_TYPES:
        find_family(kind)
    config = load_config(folder)
    if not quantized:
        refuse_quantized(config, folder)
    return config


def class_of(config, head=None):
    """The class to load a checkpoint with: that of `head`, else the one that `architectures` names."""
    if config.model_type in OUR_TYPES:
        named = [head for head, name in OUR_CLASSES.items() if name in (config.architectures or [])]
        return our_class(named[0] if named else usual_head(config))
    return native_class(config, head_of_config(config, find_family(config.model_type), head))


def usual_head(config):
    """The head of a config of ours that names no class."""
    if config.is_encoder_decoder:
        return "seq2seq_lm"
    return "causal_lm" if config.is_causal else "masked_lm"


def say_tied(config, tied):
    """Set the flag of a config of either kind, where its weights decide."""
    config.tie_word_embeddings = tied
    if config.model_type in OUR_TYPES:
        set_tied(config, tied)


def _class_of_model(model):
    """The plain class of a model in memory. Raises ValueError where it is none that converts."""
    config = model.config
    if config.model_type in OUR_TYPES:
        names = [cls.__name__ for cls in type(model).__mro__]
        named = [head for head, name in OUR_CLASSES.items() if name in names]
        return our_class(named[0]) if named else refuse_foreign(model)
    return native_class(config, head_of(type(model), config, find_family(config.model_type)))


def _main_dtype(dtype, config, tensors):
    """What is asked for, else what the config says, else the narrowest dtype that holds all floats of the files."""
    if dtype is not None:
        return dtype
    if getattr(config, "dtype", None) is not None:
        return config.dtype
    # of a config that says none, the one that keeps every bit
    floats = [tensor.dtype for tensor in tensors.meta.values() if tensor.dtype in _FLOATS]
    return _widest(floats[1:], floats[0]) if floats else torch.float32


def _dropped_by_the_class(names, model):
    """Those of `names` that the class says old files hold for nothing (T5's second table of relative positions)."""
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return {name for name in names if any(re.search(pattern, name) for pattern in patterns)}


def _refuse_codes(folder, steps, tensors, model):
    """Raise ValueError for weights stored as integers or in 8 bits, of which the config says nothing."""
    floats = {name for name, tensor in tensors_of(model).items() if tensor.is_floating_point()}
    codes = {}
    for step in steps:
        stored = {name: tensors.meta[name] for name in step.sources if tensors.meta[name].dtype not in _FLOATS}
        if stored and floats & step.compute({name: tensors.meta[name] for name in step.sources}).keys():
            codes |= stored
    if codes:
        kinds = sorted({_word(tensor.dtype) for tensor in codes.values()})
        raise ValueError(
            f"{folder} holds {len(codes)} weights stored as {', '.join(kinds)}: {sorted(codes)[:8]}; those are codes of a "
            "quantized model, but its config has no quantization_config that says what they mean: convert the unquantized one"
        )


def _refuse_rounding(who, weights, dtype_of, dtype):
    """Raise ValueError where the main dtype cannot hold what the files or the model hold."""
    wide = {name: tensor.dtype for name, tensor in weights.meta.items() if not _holds(dtype_of(name), tensor.dtype)}
    if wide:
        told, kinds = _word(dtype), sorted({_word(found) for found in wide.values()})
        raise ValueError(
            f"dtype={told!r}, which {who}, cannot hold {len(wide)} tensors that are stored as "
            f"{', '.join(kinds)}: {sorted(wide)[:8]}; ask for dtype={told!r} to round them as transformers does when it loads "
            f"them, or for dtype={_word(_widest(wide.values(), dtype))!r} to keep every bit"
        )


def _holds(dtype, stored):
    return not stored.is_floating_point or torch.promote_types(dtype, stored) == dtype


def _widest(dtypes, dtype):
    for stored in dtypes:
        dtype = torch.promote_types(dtype, stored)
    return dtype


def _word(dtype):
    return str(dtype).removeprefix("torch.")


def _refuse_left_over(folder, side, names):
    if not names:
        return
    layers = depth_of(side.config)
    beyond = [name for name in names if any(part.isdigit() and int(part) == layers for part in name.split("."))]
    told = f"; they belong to layers beyond num_hidden_layers={layers} of config.json" if beyond else ""
    told = told or hint(names, side.config, side.cls)
    raise ValueError(
        f"{folder} holds {len(names)} tensors that have no place in {side.cls.__name__} with this config: "
        f"{sorted(names)[:8]}{told}"
    )


def _computed_tables(steps, model, config):
    """Steps that make the tables of sinusoids which a native class builds, but leaves out of its files (Marian)."""
    made = {name for step in steps for name in step.sources}
    unsaved = [name for name in getattr(model, "_keys_to_ignore_on_save", None) or () if name in tensors_of(model)]
    anchor = steps[0].sources if steps else ()

    def table(name):
        rows, width = tensors_of(model)[name].shape
        return lambda tensors: {name: sinusoid_table(rows, width).to(tensors[anchor[0]].device)}

    return [Step(anchor[:1], table(name)) for name in unsaved if name not in made and name.endswith("embed_positions.weight")]


def _without_aliases(stage, side, model, folder):
    """The tensors of an encoder-decoder without those that repeat another one.

    A head that differs from the table it is tied to stays where the family tells so by its weights alone (T5).

    Raises:
        ValueError: where tensors that are one by the config hold different values.
    """
    head = head_name(model)
    told = not side.is_ours and find_family(side.config.model_type).head_told_by_weights
    tied = tied_names(model, side.config)
    if told and head in tied and head in stage and not same_bits(stage[head], stage[tied[head]]):
        release_head(model)
        tied = tied_names(model, side.config)
    side.own_head = bool(side.config.tie_word_embeddings) and head is not None and head not in tied
    for name, source in tied.items():
        if name in stage and source not in stage:
            # writers that drop the second name of shared memory keep whichever comes first
            stage = Renamed(stage, {source: name})
        elif name in stage and not same_bits(stage[name], stage[source]):
            raise ValueError(
                f"{name} and {source} are one tensor by the config of {folder}, but its files hold different values: set "
                "tie_word_embeddings (and what says that tables are shared) to false, or remove one of them"
            )
    return Selected(stage, set(tied))


def _without_tied_head(stage, model, folder):
    """The tensors without a head that repeats the embedding. Raises ValueError where tie flag and weights disagree."""
    head, embedding = head_name(model), embedding_name(model)
    if head is None:
        return stage
    if not model.config.tie_word_embeddings:
        if head not in stage and embedding in stage:
            raise ValueError(
                f"tie_word_embeddings=False in the config of {folder}, but its files hold no {head}: set the key to true "
                "where head and embedding are one table, else fetch the file that lacks"
                f"{named_class(model.config, type(model))}"
            )
        return stage
    if head in stage and embedding not in stage:
        # writers that drop the second name of shared memory keep whichever comes first
        return Renamed(stage, {embedding: head})
    if head not in stage:
        return stage
    if not same_bits(stage[head], stage[embedding]):
        raise ValueError(
            f"tie_word_embeddings=True in the config of {folder}, but {head} and {embedding} hold different values: set the "
            "key to false to keep both (as transformers loads them), or remove the head from the files"
        )
    return Selected(stage, set(tied_names(model, model.config)))


def is_path(source):
    return isinstance(source, (str, os.PathLike))
