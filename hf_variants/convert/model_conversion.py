"""Native model <-> a model of ours with the same head: the two functions of this room that users call.

Notable here: weights are copied, never shared, and only permuted, so the way there and back is bitwise; nothing is
ever left at random values, because every tensor of the target must come from exactly one rule.
"""

import copy
import os

import torch

from hf_variants.convert.checkpoint_config import known_dtype
from hf_variants.convert.config_conversion import config_from_native, config_to_native, set_tied
from hf_variants.convert.heads import (
    OURS,
    head_of,
    head_of_ours,
    native_class,
    our_class,
)
from hf_variants.convert.native_checkpoint import known_family, load_native
from hf_variants.convert.registry import find_family
from hf_variants.convert.same_build import refuse_other_build
from hf_variants.convert.skeletons import head_name, head_table, loaded_dtypes, release_head, skeleton, tied_names
from hf_variants.convert.vision_conversion import OURS as VISION
from hf_variants.convert.vision_conversion import (
    is_vision_type,
    vision_config_from_native,
    vision_config_to_native,
    vision_family,
    vision_state_back,
    vision_state_into,
)
from hf_variants.convert.weight_rules import apply_rules, check_state


def from_native(model_or_path, *, head=None, dtype=None, gguf_file=None, attn_implementation=None, **load_kwargs):
    """Bring a native model into the family, with equal outputs.

    Args:
        model_or_path: a native model in memory (`LlamaForCausalLM` ...), a directory, or a hub id.
        head: what to load of a path: "causal_lm", "masked_lm", "sequence_classification", "token_classification",
            "question_answering" or "base" (the stack alone); None takes the class that its config names. Decoders have
            "causal_lm" alone.
        dtype: dtype of the result; None keeps that of the checkpoint or of the model.
        gguf_file: name of a GGUF file in the directory or repository; its weights are dequantized.
        attn_implementation: attention backend of the result; None takes the default of the family.
        load_kwargs: passed to the native `from_pretrained` (`revision`, `token`, `cache_dir`, `subfolder` ...).

    Returns:
        VariantsForCausalLM, or the class of the native head, in eval mode on the device of the native model, with its own
            copy of the weights and the native generation config. `config.native` keeps what no toggle means, for the way
            back. Where the tie flag and the weights disagree, the weights decide, and a warning says so.

    Raises:
        ValueError: unknown family (naming the nearest), a native setting that ours cannot mean (with the reason),
            missing or left-over tensors (by name), quantized weights, a head that the family does not have.
    """
    dtype = known_dtype(None if dtype == "auto" else dtype)
    if isinstance(model_or_path, (str, os.PathLike)):
        native, loaded = load_native(model_or_path, dtype=dtype, gguf_file=gguf_file, head=head, **load_kwargs), True
    else:
        native, loaded = model_or_path, False
        refuse_no_model(native)
        _refuse_load_arguments(gguf_file, head, load_kwargs)
    if is_vision_type(native.config.model_type):
        return _vision_from_native(native, None if loaded else dtype, attn_implementation)
    found = known_family(native.config, "the model")
    head = head_of(type(native), native.config, found)
    refuse_unfit(native)
    if not loaded:
        refuse_other_build(native, _plain(native_class(native.config, head), native))
    config = config_from_native(native.config)
    set_tied(config, is_tied(native, found.head_told_by_weights))
    cls = our_class(head)
    state = apply_rules(found.rules(head), _state_without_tied_head(native, config), config)
    state = state if loaded else _in_dtype(state, dtype, cls, config)
    model = build_model(cls, config, state, attn_implementation)
    _copy_generation_config(native, model)
    return model


def to_native(model, family=None, *, attn_implementation=None):
    """Take a model of ours to the native transformers class with the same head, with equal outputs.

    The toggles of `model.config` decide; what they do not mean comes from `config.native`, else from the native
    defaults.

    Args:
        model: VariantsForCausalLM, or another head that the family has; one that came from `from_native` goes back to bitwise
            equal weights and an equal config.
        family: native model type, such as "llama"; None takes the one the model came from, else the first that can
            express its toggles (a warning says which, and which others could).
        attn_implementation: attention backend of the result; None takes the native default.

    Returns:
        Native model in eval mode, of the dtype and on the device of `model`, with its own copy of the weights.

    Raises:
        ValueError: naming every toggle that the family cannot express; quantized weights; another head.
    """
    from hf_variants.modeling.built_config import without_effect

    refuse_no_model(model)
    if model.config.model_type == VISION:
        return _vision_to_native(model, family, attn_implementation)
    refuse_foreign(model)
    refuse_unfit(model)
    if changed := model.changed_fields():
        raise ValueError(without_effect(changed, "Save the model and load it with the changed toggle, then convert it"))
    refuse_other_build(model, _plain(type(model), model), deep=False)
    config = copy.deepcopy(model.config)
    set_tied(config, is_tied(model))
    native_config = config_to_native(config, family)
    found = find_family(native_config.model_type)
    head = head_of_ours(type(model), found)
    state = apply_rules(found.rules(head), _state_without_tied_head(model, config), config, back=True)
    cls = native_class(native_config, head)
    native = build_model(cls, native_config, _as_narrow_as(cls, native_config, state, model.dtype), attn_implementation)
    _copy_generation_config(model, native)
    return native


def _vision_from_native(native, dtype, attn_implementation):
    """As `from_native`, of a vision-language model."""
    from hf_variants.modeling.modeling_variants_vision import VariantsForImageTextToText

    found = vision_family(native.config.model_type)
    refuse_unfit(native)
    wanted = native_class(native.config, "image_text_to_text").__name__
    if wanted not in [base.__name__ for base in type(native).__mro__]:
        raise ValueError(f"{type(native).__name__} cannot be converted: {wanted} is needed")
    config = vision_config_from_native(native.config)
    config.tie_word_embeddings = is_tied(native)
    state = vision_state_into(found, _state_without_tied_head(native, config), config)
    state = _in_dtype(state, dtype, VariantsForImageTextToText, config)
    model = build_model(VariantsForImageTextToText, config, state, attn_implementation)
    _copy_generation_config(native, model)
    return model


def _vision_to_native(model, family, attn_implementation):
    """As `to_native`, of a vision-language model."""
    from hf_variants.modeling.built_config import without_effect

    refuse_unfit(model)
    changed = {**model.changed_fields(), **model.model.language_model.changed_fields()}
    if changed:
        raise ValueError(without_effect(changed, "Save the model and load it with the changed toggle, then convert it"))
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = is_tied(model)
    native_config = vision_config_to_native(config, family)
    found = vision_family(native_config.model_type)
    state = vision_state_back(found, _state_without_tied_head(model, config), config, native_config)
    native = build_model(native_class(native_config, "image_text_to_text"), native_config, state, attn_implementation)
    _copy_generation_config(model, native)
    return native


def _copy_generation_config(source, target):
    if getattr(source, "generation_config", None) is not None and target.can_generate():
        target.generation_config = copy.deepcopy(source.generation_config)
        start = getattr(target.config, "decoder_start_token_id", None)
        if target.generation_config.decoder_start_token_id is None and start is not None:
            target.generation_config.decoder_start_token_id = start


def _refuse_load_arguments(gguf_file, head, load_kwargs):
    named = {"gguf_file": gguf_file, "head": head}
    given = {**{name: value for name, value in named.items() if value is not None}, **load_kwargs}
    if given:
        raise ValueError(f"{sorted(given)} say how to load a path or hub id, but a model in memory was given; leave them out")


def refuse_foreign(model):
    """Raises ValueError for a model that is none of ours."""
    # Compared by name: a process can hold two copies of a class that was loaded as remote code.
    if not set(OURS.values()) & {cls.__name__ for cls in type(model).__mro__}:
        raise ValueError(f"{type(model).__name__} is no model of this family; choose from {list(OURS.values())}")


def refuse_no_model(model):
    """Raises ValueError for what is no model of transformers, with the way to the one inside of a wrapper."""
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return
    inside = [
        name for name in ("_orig_mod", "module", "base_model") if isinstance(getattr(model, name, None), torch.nn.Module)
    ]
    ways = {"_orig_mod": "give what torch.compile wraps, model._orig_mod", "module": "give what it wraps, model.module"}
    ways["base_model"] = "for an adapter call merge_and_unload(), and give what it returns"
    told = ways[inside[0]] if inside else "give a folder, a Hub id, or a model that transformers loaded"
    raise ValueError(f"{type(model).__name__} cannot be converted: it is no model of transformers; {told}")


def refuse_unfit(model):
    """Only whole, dense models on one device have the tensors of the rules. Raises ValueError."""
    if getattr(model, "_hf_peft_config_loaded", False) or any(".lora_" in name for name, _ in model.named_modules()):
        raise ValueError(
            f"{type(model).__name__} has an adapter on its layers, whose weights are none of the model's: convert what PEFT's "
            "merge_and_unload() returns, or delete the adapter"
        )
    if getattr(model.config, "quantization_config", None) is not None:
        raise ValueError(
            f"{type(model).__name__} holds quantized weights: quantization_config={model.config.quantization_config}. "
            "Convert the unquantized model and quantize the result"
        )
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1 or any(device.type == "meta" for device in devices):
        raise ValueError(f"the weights lie on {sorted(map(str, devices))}; load the model whole on one device")


def is_tied(model, told_by_weights=False):
    """Whether head and embedding are one table, judged by the weights themselves, which a flag may contradict.

    told_by_weights: whether the flag of the family says nothing, so that nothing is to be warned of.
    """
    from transformers.utils import logging

    flag, output = bool(model.config.tie_word_embeddings), model.get_output_embeddings()
    if output is None:
        return flag
    embedding, head = head_table(model).weight, output.weight
    tied = embedding is head or (flag and torch.equal(embedding, head))
    if tied != flag and not told_by_weights:
        found = "are one tensor" if tied else "hold different values"
        logging.get_logger(__name__).warning(
            f"tie_word_embeddings={flag}, but lm_head and the embedding {found}; converted with "
            f"tie_word_embeddings={tied}, which keeps the logits"
        )
    return tied


def _plain(cls, model):
    return skeleton(cls, copy.deepcopy(model.config), model.dtype, attn_implementation="eager")


def _state_without_tied_head(model, config):
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return {name: tensor for name, tensor in state.items() if name not in tied_names(model, config)}


def _in_dtype(state, dtype, cls, config):
    """Cast a state dict as loading it in `dtype` would: some of it stays in fp32."""
    if dtype is None:
        return state
    dtype_of = loaded_dtypes(skeleton(cls, copy.deepcopy(config), dtype), dtype)
    return {name: tensor.to(dtype_of(name)) if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _as_narrow_as(cls, config, state, dtype):
    """A state dict without the fp32 that ours keeps and `cls` does not (MiniMax-M2's selection bias)."""
    if dtype == torch.float32:
        return state
    dtype_of = loaded_dtypes(skeleton(cls, copy.deepcopy(config), dtype), dtype)
    return {n: t.to(dtype) if t.dtype == torch.float32 and dtype_of(n) == dtype else t for n, t in state.items()}


def build_model(cls, config, state, attn_implementation):
    """A model of class `cls` in eval mode that owns copies of the tensors of `state`; ValueError where unfit."""
    from transformers.initialization import no_init_weights

    embedding = next(tensor for name, tensor in state.items() if tensor.dim() == 2 and tensor.is_floating_point())
    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    with no_init_weights():
        model = cls._from_config(config, dtype=embedding.dtype, **chosen)
    if model.config.is_encoder_decoder and config.tie_word_embeddings and head_name(model) in state:
        release_head(model)
    tied = tied_names(model, config)
    expected = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    check_state(state, expected, cls.__name__)
    # Assigned, not copied into place: a tensor kept in fp32 inside a half-precision model stays fp32.
    owned = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    model.load_state_dict(owned, strict=False, assign=True)
    if model.config.is_encoder_decoder:
        model.tie_weights(recompute_mapping=False)
    else:
        model.tie_weights()
    return model.to(embedding.device).eval()
