"""Tiny GGUF files, written with gguf's own writer: one per architecture that transformers reads and that is a family here.

Notable here: names and shapes are those that transformers' loader asks of a model of the config; the numbers are random, in
several kinds of storage, so what is tested is that they arrive where that loader puts them, in every bit.
"""

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, quants
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

_WIDTHS = {
    **{"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 96, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
_CLASSIC = {key: value for key, value in _WIDTHS.items() if key != "num_key_value_heads"}
# {architecture in the file: (model type, config)}
ARCHITECTURES = {
    "llama": ("llama", _WIDTHS),
    "qwen2": ("qwen2", {**_WIDTHS, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**_WIDTHS, "head_dim": 32}),
    "qwen2moe": ("qwen2_moe", {**_WIDTHS, **_EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}),
    "qwen3moe": ("qwen3_moe", {**_WIDTHS, **_EXPERTS, "moe_intermediate_size": 32, "head_dim": 16, "norm_topk_prob": True}),
    "phi3": ("phi3", {**_WIDTHS, "sliding_window": 8}),
    "stablelm": ("stablelm", {**_WIDTHS, "partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "starcoder2": ("starcoder2", {**_WIDTHS, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {**_WIDTHS, "head_dim": 32, "sliding_window": 8, "attn_logit_softcapping": 30.0}),
    "gemma3": ("gemma3_text", {**_WIDTHS, "head_dim": 32, "sliding_window": 8}),
    "nemotron": ("nemotron", {**_WIDTHS, "tie_word_embeddings": False}),
    "gpt2": ("gpt2", {**_CLASSIC, "n_inner": 256}),
    "bloom": ("bloom", _CLASSIC),
}
_TRANSPOSED = ("attn_qkv.weight", "ffn_down.weight", "ffn_up.weight", "attn_output.weight")


def write_gguf(folder, architecture, *, without=(), told=None, tensors=None, **changed):
    """Write `folder/model.gguf`. Returns the config that was meant.

    Args:
        without: keys of the file to leave out; told: further ones, without the name of the architecture.
        tensors: further tensors, {name: fp32 array}.
        changed: keys of the config.
    """
    model_type, keys = ARCHITECTURES[architecture]
    config = CONFIG_MAPPING[model_type](**{**keys, **changed})
    model = AutoModelForCausalLM.from_config(config)
    folder.mkdir(exist_ok=True)
    writer = GGUFWriter(folder / "model.gguf", architecture)
    values = {**_known(architecture, model_type, config), **(told or {})}
    for key, value in values.items():
        if key not in without:
            _add(writer, f"{architecture}.{key}", value)
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)
    arrays = {name: 0.3 * rng.standard_normal(shape).astype(np.float32) for name, shape in _shapes(architecture, model)}
    for index, (name, array) in enumerate({**arrays, **(tensors or {})}.items()):
        wide = array.ndim > 1 and array.shape[-1] % 32 == 0
        kind = (Kind.Q8_0, Kind.Q4_1, Kind.F16, Kind.Q5_0, Kind.BF16, Kind.Q4_0)[index % 6] if wide else Kind.F32
        plain = {Kind.F16: np.float16, Kind.F32: np.float32}
        data = array.astype(plain[kind]) if kind in plain else quants.quantize(array, kind)
        writer.add_tensor(name, data, raw_dtype=None if kind in plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


def _known(architecture, model_type, config):
    """The keys of a file, as the library's converter and llama.cpp's tell them."""
    mapping = GGUF_CONFIG_MAPPING.get(architecture) or GGUF_CONFIG_MAPPING[model_type.removesuffix("_text")]
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    found = {"vocab_size": config.vocab_size}
    if model_type == "gpt2":
        found["context_length"] = config.n_positions
    for theirs, ours in mapping.items():
        value = rope.get("rope_theta") if theirs == "rope.freq_base" else getattr(config, ours, None) if ours else None
        if value is not None:
            found[theirs] = value
    heads = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found |= {"attention.key_length": heads}
    if rope:
        found["rope.dimension_count"] = int(heads * rope.get("partial_rotary_factor", 1.0))
    also = ("attn_logit_softcapping", "final_logit_softcapping")
    found |= {key: getattr(config, key) for key in also if getattr(config, key, None) is not None}
    if getattr(config, "moe_intermediate_size", None):
        found["expert_feed_forward_length"] = config.moe_intermediate_size
    if getattr(config, "shared_expert_intermediate_size", None):
        found["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if getattr(config, "sliding_window", None):
        found["attention.sliding_window"] = config.sliding_window
    return found


def _add(writer, key, value):
    if isinstance(value, list):
        writer.add_array(key, value)
        return
    add = writer.add_string if isinstance(value, str) else writer.add_bool if isinstance(value, bool) else None
    add = add or (writer.add_uint32 if isinstance(value, int) else writer.add_float32)
    add(key, value)


def _shapes(architecture, model):
    """[(name in the file, shape there)]."""
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    state, shapes = model.state_dict(), {}
    for name, target in get_gguf_hf_weights_map(model, processor).items():
        if target == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        shape = list(state[target].shape)
        if "_exps" in name:
            name = f"{name}.weight"
            shape[1] = shape[1] // 2 if "down" not in name else shape[1]
        if architecture == "gpt2" and name.endswith(_TRANSPOSED):
            shape = shape[::-1]
        shapes[name] = shape[1:] if "ffn_gate_inp_shexp" in name else shape
    return shapes.items()
