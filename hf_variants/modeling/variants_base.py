"""What every model of the family shares: flags for transformers, initialisation, and loading that hides no missing weight."""

from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder

from .attention_scores import ATTENTION_FUNCTIONS
from .blocks import VariantsDecoderLayer
from .configuration_variants import VariantsConfig
from .experts import VariantsTopKRouter
from .grouped_attention import VariantsAttention
from .latent_attention import VariantsLatentAttention
from .room import copy_room

# Callables run as f(model, directory) after a model has been saved: the package appends its model card here.
AFTER_SAVE = []

_HEADS = ("lm_head.", "score.", "qa_outputs.")


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
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = False
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    # transformers looks for these in the text of this file; they stand in grouped_attention.py and experts.py
    _can_set_attn_implementation_cached_value = True
    _can_set_experts_implementation_cached_value = True
    _can_record_outputs = {
        "hidden_states": VariantsDecoderLayer,
        "attentions": [OutputRecorder(VariantsAttention, index=1), OutputRecorder(VariantsLatentAttention, index=1)],
        "router_logits": OutputRecorder(VariantsTopKRouter, index=0),
    }

    def __init__(self, config, *inputs, **kwargs):
        config.check()
        super().__init__(config, *inputs, **kwargs)
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

    def save_pretrained(self, save_directory, *args, **kwargs):
        """As transformers', and writes the files of this folder and whatever `AFTER_SAVE` adds beside the weights."""
        is_main_process = kwargs.get("is_main_process", args[0] if args else True)
        super().save_pretrained(save_directory, *args, **kwargs)
        if is_main_process:
            copy_room(__file__, save_directory)
            for write in AFTER_SAVE:
                write(self, save_directory)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """As transformers', but a checkpoint that does not fit is an error instead of random weights and a log line.

        Raises:
            ValueError: for missing, unexpected or mis-shaped weights, or a file that cannot be read. A fresh task head (its
                weights missing) stays allowed, as does a head that this class does not have. With
                `output_loading_info=True` the model and the report are returned without judging them.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        refuse_tensor_parallel(cls, pretrained_model_name_or_path, kwargs)
        try:
            model, info = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        except Exception as error:
            raise _readable(error, pretrained_model_name_or_path) from error
        if wants_info:
            return model, info
        refuse_misfit(cls, pretrained_model_name_or_path, info)
        return model

    def init_continuous_batching(self, *args, **kwargs):
        """Refused: the paged cache knows neither latents nor score terms, and would drop them silently."""
        raise ValueError(
            "continuous batching is not supported by this family: its paged attention drops soft-caps, sinks and ALiBi and "
            "mis-shapes MLA latents; use generate()"
        )

    def generate_batch(self, *args, **kwargs):
        """Refused, as `init_continuous_batching`."""
        self.init_continuous_batching()


def refuse_misfit(cls, source, info):
    """Raise a ValueError that lists the weights of a checkpoint that do not fit `cls`."""
    fresh = ("score.", "qa_outputs.")
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(fresh))
    unexpected = sorted(key for key in info["unexpected_keys"] if not key.startswith(_HEADS))
    mismatched = sorted(str(key) for key in info["mismatched_keys"])
    found = {"missing": missing, "unexpected": unexpected, "mis-shaped": mismatched}
    parts = [
        f"{len(keys)} {name} ({', '.join(keys[:6])}{', ...' if len(keys) > 6 else ''})" for name, keys in found.items() if keys
    ]
    if parts:
        raise ValueError(
            f"the weights in {source!s} do not fit {cls.__name__} with this config: {'; '.join(parts)}. Nothing was filled in "
            "at random. Load it with the config it was saved with, convert it with hf_variants.convert.from_native, or pass "
            "output_loading_info=True to take the model as it is together with this list"
        )


def _readable(error, source):
    """A ValueError for an unreadable or mis-shaped file; any other error as it is."""
    name, text = type(error).__name__, str(error)
    if name == "SafetensorError" or "safetensors" in text.lower() and "invalid" in text.lower():
        return ValueError(f"a weight file in {source!s} is truncated or damaged ({text}); fetch or convert it again")
    if isinstance(error, RuntimeError) and ("mismatch" in text.lower() or "size" in text.lower()):
        return ValueError(f"the weights in {source!s} do not have the shapes that the config asks for: {text}")
    return error


def refuse_tensor_parallel(cls, source, kwargs):
    """Refuse a tensor-parallel load that the config cannot be split for, before any process reshapes a weight."""
    size = _tensor_parallel_size(kwargs)
    if size <= 1:
        return
    config = kwargs.get("config")
    if not isinstance(config, cls.config_class):
        config = cls.config_class.from_pretrained(config or source)
    check_tensor_parallel(config, size)


def _tensor_parallel_size(kwargs):
    import os

    plan, distributed = kwargs.get("tp_plan"), kwargs.get("distributed_config")
    size = getattr(distributed, "tp_size", None) if distributed is not None else None
    if size is None and plan is not None:
        size = kwargs.get("tp_size") or os.environ.get("WORLD_SIZE", 1)
    return int(size or 1)


def check_tensor_parallel(config, tp_size):
    """Raise a ValueError where attention cannot be split over `tp_size` ranks without changing its result."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if kv_heads % tp_size or heads % tp_size:
        divisors = [n for n in range(1, kv_heads + 1) if kv_heads % n == 0]
        raise ValueError(
            f"tensor-parallel size {tp_size} does not divide num_key_value_heads={kv_heads} (num_attention_heads={heads}): a "
            f"key-value head cannot be cut; choose tp_size from {divisors}"
        )
    toggles = {"attention_type='mla'": config.attention_type == "mla", "qk_norm='full'": config.qk_norm == "full"}
    toggles |= {"attention_sinks=True": config.attention_sinks}
    toggles |= {"position_embedding_type='alibi'": config.position_embedding_type == "alibi"}
    for name, used in toggles.items():
        if used:
            raise ValueError(
                f"tensor-parallel size {tp_size} with {name} is not supported: it holds numbers of all heads that the plan "
                "does not split; use tp_size=1, or FSDP"
            )
