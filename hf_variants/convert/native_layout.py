"""Names and layout of tensors on disk <-> in memory, as transformers maps them for a model class.

Notable here: the library's own renamings and converters are used (Mixtral's experts are one tensor each on disk and fused in
memory; old GPT-2 files lack the prefix), cut into steps that each take a few tensors, so that they can be streamed.
"""

import re
from copy import deepcopy

from hf_variants.convert.skeletons import tensors_of
from hf_variants.convert.stages import Step

# Tables that old files carry and that the library recomputes; next-token prediction networks, which it does not build.
_UNBUILT = re.compile(
    r"(rotary_emb\.inv_freq|embeddings\.position_ids|\.attn\.(bias|masked_bias)|\.attention\.(bias|masked_bias))$|(^|\.)mtp[_.]"
)
_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")
# What a next-token prediction layer has beside an ordinary one (DeepSeek-V3 and after), which tells it from a layer that a
# wrong num_hidden_layers would cut off.
_PREDICTION = re.compile(r"\.(eh_proj|enorm|hnorm|shared_head)\.")


def load_steps(names, model, mapping=None):
    """Steps from tensors of these names on disk to those of `model.state_dict()`.

    Args:
        mapping: the library's transforms; None takes those of the class.

    Returns:
        (list of Step, names that have no place in the model).
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(model) if mapping is None else mapping
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    converter_of = {pattern: entry for entry in converters for pattern in entry.source_patterns}
    expected, prefix = tensors_of(model), model.base_model_prefix
    groups, homeless = {}, []
    for name in sorted(names, key=dot_natural_key):
        renamed, pattern = rename_source_key(name, renamings, converters, prefix, expected)
        if renamed not in expected and name in expected:
            renamed, pattern = rename_source_key(name, [], [], prefix, expected)
        if renamed not in expected:
            homeless.append(name)
            continue
        groups.setdefault(renamed, []).append((name, pattern))
    return [_step(target, taken, converter_of, model) for target, taken in groups.items()], homeless


def save_steps(names, model):
    """Steps from tensors of `model.state_dict()` to those that `model.save_pretrained` writes."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        PrefixChange,
        WeightConverter,
        WeightRenaming,
        apply_converters,
        apply_renamings,
        dot_natural_key,
    )

    mapping = [e for e in get_model_conversion_mapping(model, add_legacy=False) if not isinstance(e, PrefixChange)]
    mapping = [entry.reverse_transform() for entry in reversed(mapping)]
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    converter_of = {pattern: entry for entry in converters for pattern in entry.source_patterns}
    groups = {}
    for name in sorted(names, key=dot_natural_key):
        target, pattern = apply_converters(name, converters)
        target = target if pattern is not None else apply_renamings(name, renamings)
        groups.setdefault(target, []).append((name, pattern))
    after = lambda name: apply_renamings(name, renamings)  # noqa: E731
    return [_step(target, taken, converter_of, model, after) for target, taken in groups.items()]


def harmless_names(names, num_layers):
    """Those of `names` without a place in the model that may be left behind: what the native class does not build either.

    These are recomputed tables and next-token prediction layers beyond the stack; an ordinary layer there is none of them.
    """
    layer_of = {name: int(found.group(1)) for name in names if (found := _LAYER.search(name))}
    predicting = {layer_of[name] for name in layer_of if _PREDICTION.search(name) and layer_of[name] >= num_layers}
    return {name for name in names if _UNBUILT.search(name) or layer_of.get(name) in predicting}


def _step(target, taken, converter_of, model, after=lambda name: name):
    sources, patterns = zip(*taken, strict=True)
    if patterns[0] is None:
        if len(sources) > 1:
            raise ValueError(f"tensors {list(sources)} all mean {target}; remove all but one")
        return Step(sources, lambda tensors: {target: tensors[sources[0]]}, renames=True)

    def compute(tensors):
        converter = deepcopy(converter_of[patterns[0]])
        for name, pattern in taken:
            converter.add_tensor(target, name, pattern, tensors[name])
        try:
            made = converter.convert(target, model=model, config=model.config)
        except (ValueError, RuntimeError, KeyError) as error:
            raise ValueError(f"tensors {list(sources)[:8]} cannot be converted into {target}: {error}") from error
        return {after(name): tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()}

    return Step(sources, compute)
