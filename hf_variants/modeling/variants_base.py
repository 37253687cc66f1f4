"""What every model of the family shares: flags for transformers, initialisation, and loading that hides no missing weight."""

import re

from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder

from .attention_backends import ATTENTION_FUNCTIONS
from .awq_loading import register_awq
from .blocks import VariantsDecoderLayer
from .built_config import all_as_built, built_fields, changed_fields
from .configuration_variants import VariantsConfig
from .cross_attention import CROSS_ATTENTIONS
from .expert_loading import experts_split, forget_irreversible
from .experts import VariantsTopKRouter
from .grouped_attention import VariantsAttention
from .int8_loading import loading_the_family, register_int8
from .latent_attention import VariantsLatentAttention
from .parallel_plans import splits_attention
from .room import copy_room
from .vocabulary import nearest

# Callables run as f(model, directory, repo_id) once a model stands in a directory: the package appends its model card here.
# repo_id is None where nothing is uploaded.
AFTER_SAVE = []

# Parts outside the stack; the pooler is saved under either name.
POOLER = ("pooler.", "model.pooler.")
TASK_PARTS = ("score.", "qa_outputs.")
LANGUAGE_PARTS = ("lm_head.", "transform.")


class VariantsPreTrainedModel(PreTrainedModel):
    """Base class of the family's models."""

    config: VariantsConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    supports_gradient_checkpointing = True
    _no_split_modules = [
        *("PreNormLayer", "PreNormedResidualLayer", "PostNormLayer", "PostLayerNormLayer"),
        *("SandwichLayer", "ParallelLayer", "ParallelTwoNormsLayer"),
    ]
    _skip_keys_device_placement = ["past_key_values"]
    _keep_in_fp32_modules_strict = ["e_score_correction_bias"]
    # parts that may start from random values, as task heads do: a language-model head is part of what was trained
    _fresh_parts = ()
    # parts of other heads, which a checkpoint may hold beside what this class has
    _foreign_parts = (*POOLER, *TASK_PARTS, *LANGUAGE_PARTS)
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = False
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    # transformers looks for these in the text of this file; they stand in grouped_attention.py and experts.py
    _can_set_attn_implementation_cached_value = True
    _can_set_experts_implementation_cached_value = True

    @property
    def _can_record_outputs(self):
        recorded = {
            "hidden_states": VariantsDecoderLayer,
            "attentions": [
                OutputRecorder(kind, index=1, layer_name="self_attn") for kind in (VariantsAttention, VariantsLatentAttention)
            ],
            "router_logits": OutputRecorder(VariantsTopKRouter, index=0),
        }
        if getattr(self.config, "add_cross_attention", False):
            kinds = CROSS_ATTENTIONS.values()
            recorded["cross_attentions"] = [OutputRecorder(kind, index=1, layer_name="cross_attn") for kind in kinds]
        return recorded

    def __init__(self, config, *inputs, **kwargs):
        config.check()
        super().__init__(config, *inputs, **kwargs)
        self.built_fields = built_fields(config)
        chosen = config._attn_implementation
        if chosen is not None and chosen not in ATTENTION_FUNCTIONS:
            raise ValueError(
                f"attn_implementation={chosen!r} is not supported by this family, whose toggles it could drop; choose from "
                f"{list(ATTENTION_FUNCTIONS)}"
            )

    def _init_weights(self, module):
        std = self.config.initializer_range
        if hasattr(module, "fill"):
            module.fill()
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, mean=0.0, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=std)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])

    def post_init(self):
        """As transformers'; of the block classes, only those that this model is built of stay whole when it is split, since
        accelerate refuses to wrap by a name that it does not find.
        """
        super().post_init()
        present = {type(module).__name__ for module in self.modules()}
        self._no_split_modules = [name for name in self._no_split_modules if name in present]

    def save_pretrained(self, save_directory, *args, **kwargs):
        """As transformers', and writes the files of this folder and whatever `AFTER_SAVE` adds beside the weights."""
        is_main_process = kwargs.get("is_main_process", args[0] if args else True)
        with all_as_built(self):
            super().save_pretrained(save_directory, *args, **kwargs)
            if is_main_process:
                self.complete_folder(save_directory)

    def gather_sharded_state_dict_for_save(self, model_to_save, state_dict, distributed_config, **kwargs):
        """As transformers', but gathered from shards a tied weight is two tensors, of which a checkpoint holds one."""
        gathered = super().gather_sharded_state_dict_for_save(model_to_save, state_dict, distributed_config, **kwargs)
        tied = getattr(self, "all_tied_weights_keys", None) or {}
        doubled = {name for name, source in tied.items() if source in gathered} if distributed_config is not None else ()
        return {name: tensor for name, tensor in gathered.items() if name not in doubled}

    def changed_fields(self):
        """Fields of `config` set otherwise since the model was built, without effect on it: {name: (built, now)}."""
        changed = changed_fields(self.built_fields, self.config)
        for name, part in self.named_modules():
            if hasattr(part, "built_fields") and part.config is not self.config:
                own = changed_fields(part.built_fields, part.config)
                changed |= {f"{name.removeprefix('model.')}.{field}": values for field, values in own.items()}
        return changed

    def complete_folder(self, directory, repo_id=None):
        """Write code and whatever `AFTER_SAVE` adds beside the weights; beside an adapter, which has no code, nothing."""
        if getattr(self, "_hf_peft_config_loaded", False):
            return
        copy_room(__file__, directory)
        for write in AFTER_SAVE:
            write(self, directory, repo_id)

    def _upload_modified_files(self, working_dir, repo_id, *args, **kwargs):
        # transformers uploads from within save_pretrained, with a blank model card that it wrote over ours
        self.complete_folder(working_dir, repo_id)
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)

    @staticmethod
    def _load_pretrained_model(model, state_dict, checkpoint_files, load_config, *args, **kwargs):
        with experts_split(model, load_config) as ready:
            loaded = PreTrainedModel._load_pretrained_model(model, state_dict, checkpoint_files, ready, *args, **kwargs)
        forget_irreversible(model)
        return loaded

    @classmethod
    def get_init_context(cls, *args, **kwargs):
        """As transformers', which has every layer draw values on the meta device, where there are none to keep: a tenth of the
        time of a load. What a checkpoint lacks is drawn after this context.
        """
        return [*super().get_init_context(*args, **kwargs), init.no_init_weights()]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """As transformers', but a checkpoint that does not fit is an error instead of random weights and a log line.

        Raises:
            ValueError: for missing, unexpected or mis-shaped weights, or a file that cannot be read. A fresh task head (its
                weights missing, or of another shape and `ignore_mismatched_sizes=True`) stays allowed, as does a head that
                this class does not have. With `output_loading_info=True` the model and the report are returned without
                judging them, unless shapes differ and `ignore_mismatched_sizes` is not set.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        # transformers' own error for mis-shaped weights names none of them, so it is kept from raising it
        may_reshape = kwargs.pop("ignore_mismatched_sizes", False)
        refuse_tensor_parallel(cls, pretrained_model_name_or_path, kwargs)
        # here and not by the package alone: this file travels
        register_awq()
        register_int8()
        try:
            with loading_the_family():
                model, info = super().from_pretrained(
                    pretrained_model_name_or_path,
                    *args,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,
                    **kwargs,
                )
        except Exception as error:
            refuse_damaged(pretrained_model_name_or_path, error)
            refuse_unknown_override(cls, error)
            raise
        refuse_misfit(cls, pretrained_model_name_or_path, info, may_reshape, only_shapes=wants_info)
        return (model, info) if wants_info else model

    def init_continuous_batching(self, *args, **kwargs):
        """Refused: the paged cache knows neither latents nor score terms, and would drop them silently."""
        raise ValueError(
            "continuous batching is not supported by this family: its paged attention drops soft-caps, sinks and ALiBi and "
            "mis-shapes MLA latents; use generate()"
        )

    def generate_batch(self, *args, **kwargs):
        """Refused, as `init_continuous_batching`."""
        self.init_continuous_batching()


def refuse_misfit(cls, source, info, may_reshape=False, only_shapes=False):
    """Raise a ValueError that lists the weights of a checkpoint that do not fit `cls`.

    Args:
        info: the loading report of transformers.
        may_reshape: a task head of another shape is made anew.
        only_shapes: missing and unexpected weights are left to the caller, who gets the report.
    """
    found = {
        "missing": [key for key in info["missing_keys"] if not key.startswith(cls._fresh_parts)],
        "unexpected": [key for key in info["unexpected_keys"] if not key.startswith(cls._foreign_parts)],
    }
    found = {} if only_shapes else found
    found["mis-shaped"] = [
        f"{key}: {tuple(stored)} in the file, {tuple(wanted)} by the config"
        for key, stored, wanted in info["mismatched_keys"]
        if not (may_reshape and (only_shapes or key.startswith(cls._fresh_parts)))
    ]
    parts = [
        f"{len(keys)} {name} ({', '.join(sorted(keys)[:6])}{', ...' if len(keys) > 6 else ''})"
        for name, keys in found.items()
        if keys
    ]
    if parts:
        pooler = any(key.startswith(POOLER) for key in found.get("missing", ()))
        hint = (
            "VariantsModel and task_head='pooler' alone save a pooler: to load without it, pass pooler=False (and "
            "task_head='linear' where it is 'pooler'). "
        )
        raise ValueError(
            f"the weights in {source!s} do not fit {cls.__name__} with this config: {'; '.join(parts)}. Load it with the "
            "config it was saved with, or convert it with hf_variants.convert.from_native. "
            f"{hint if pooler else ''}To take the model with random values there, pass output_loading_info=True (and "
            "ignore_mismatched_sizes=True where shapes differ)"
        )


def refuse_damaged(source, error):
    """Raise a ValueError where `error` says that a weight file cannot be read."""
    text = str(error)
    if type(error).__name__ == "SafetensorError" or "safetensors" in text.lower() and "invalid" in text.lower():
        raise ValueError(f"a weight file in {source!s} is truncated or damaged ({text}); fetch or convert it again") from error


def refuse_unknown_override(cls, error):
    """Raise a ValueError where `error` says that a keyword of from_pretrained is neither an argument nor a config key."""
    found = re.search(r"__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if found and isinstance(error, TypeError):
        key = found[1]
        raise ValueError(
            f"{key!r} is neither an argument of from_pretrained nor a key of {cls.config_class.__name__}"
            f"{nearest(key, cls.config_class.own_fields())}"
        ) from error


def refuse_tensor_parallel(cls, source, kwargs):
    """Refuse a tensor-parallel load that the config cannot be split for, before any process reshapes a weight."""
    size = _tensor_parallel_size(kwargs)
    if size <= 1:
        return
    config = kwargs.get("config")
    if not hasattr(config, "stacks"):
        rest = {
            key: value for key, value in kwargs.items() if key not in ("config", "distributed_config", "tp_plan", "tp_size")
        }
        config, _ = cls.config_class.from_pretrained(config or source, return_unused_kwargs=True, **rest)
    for stack in config.stacks:
        check_tensor_parallel(stack, size)


def _tensor_parallel_size(kwargs):
    from os import environ

    given = kwargs.get("distributed_config")
    given = kwargs if given is None else given if isinstance(given, dict) else vars(given)
    size, plan = given.get("tp_size"), given.get("tp_plan")
    if plan == {}:
        # an empty plan splits experts alone
        return 1
    if size is None and plan is not None:
        size = environ.get("WORLD_SIZE", 1)
    return int(size or 1)


def check_tensor_parallel(config, tp_size):
    """Raise a ValueError where attention cannot be split over `tp_size` ranks without changing its result."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if splits_attention(config) and (kv_heads % tp_size or heads % tp_size):
        divisors = [n for n in range(1, kv_heads + 1) if kv_heads % n == 0]
        raise ValueError(
            f"tensor-parallel size {tp_size} does not divide num_key_value_heads={kv_heads} (num_attention_heads={heads}): a "
            f"key-value head cannot be cut; choose tp_size from {divisors}"
        )
