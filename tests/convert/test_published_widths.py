"""Widths of published models, two layers of each, on the meta device: every tensor has its place in both directions.

Tiny models cannot show a trap of sizes: 71 heads, heads wider than the hidden size divided by them, one key-value head beside
dozens of query heads, partial rotations that round, an expert narrower than its shared neighbour.
"""

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from hf_variants.convert import config_from_native, config_to_native, find_family
from hf_variants.convert.config_conversion import as_plain_dict
from hf_variants.convert.weight_rules import apply_rules, check_state
from hf_variants.modeling.modeling_variants import VariantsForCausalLM


def _shape(hidden, width, heads, kv_heads, **more):
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    return {**dict(zip(names, (hidden, width, heads, kv_heads), strict=True)), **more}


_TIED = {"tie_word_embeddings": True}
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
_LLAMA3["original_max_position_embeddings"] = 8192
_FACTORS = {"short_factor": [1.0] * 64, "long_factor": [1.5] * 64, "short_mscale": 1.243163121016122}
_FACTORS |= {"long_mscale": 1.243163121016122, "original_max_position_embeddings": 4096, "rope_theta": 1e4}

WIDTHS = {
    "Llama 3.1 8B": ("llama", _shape(4096, 14336, 32, 8, vocab_size=128256, rope_parameters=_LLAMA3)),
    "SmolLM2 135M": ("llama", _shape(576, 1536, 9, 3, vocab_size=49152, **_TIED)),
    "Mistral Nemo": ("mistral", _shape(5120, 14336, 32, 8, head_dim=128, vocab_size=131072, sliding_window=None)),
    "Mixtral 8x7B": ("mixtral", _shape(4096, 14336, 32, 8, num_local_experts=8)),
    "Qwen2.5 0.5B": ("qwen2", _shape(896, 4864, 14, 2, vocab_size=151936, **_TIED)),
    "Qwen3 0.6B": ("qwen3", _shape(1024, 3072, 16, 8, head_dim=128, vocab_size=151936, **_TIED)),
    "Qwen3 30B-A3B": ("qwen3_moe", _shape(2048, 6144, 32, 4, head_dim=128, moe_intermediate_size=768, num_experts=128)),
    "Qwen1.5 MoE": ("qwen2_moe", _shape(2048, 5632, 16, 16, moe_intermediate_size=1408, num_experts=60)),
    "Gemma 2B": ("gemma", _shape(2048, 16384, 8, 1, head_dim=256, vocab_size=256000)),
    "Gemma 2 27B": ("gemma2", _shape(4608, 36864, 32, 16, head_dim=128, query_pre_attn_scalar=144)),
    "Gemma 3 270M": ("gemma3_text", _shape(640, 2048, 4, 1, head_dim=256, query_pre_attn_scalar=256)),
    "DeepSeek V2 Lite": (
        "deepseek_v2",
        _shape(2048, 10944, 16, 16, **_LATENT, q_lora_rank=None, moe_intermediate_size=1408, first_k_dense_replace=1),
    ),
    "DeepSeek V3": (
        "deepseek_v3",
        _shape(7168, 18432, 128, 128, **_LATENT, q_lora_rank=1536, moe_intermediate_size=2048, first_k_dense_replace=1),
    ),
    "GPT-2 XL": ("gpt2", {"n_embd": 1600, "n_head": 25}),
    "SantaCoder": ("gpt_bigcode", {"n_embd": 2048, "n_head": 16, "vocab_size": 49280}),
    "GPT-J 6B": ("gptj", {"n_embd": 4096, "n_head": 16, "rotary_dim": 64}),
    "CodeGen 350M": ("codegen", {"n_embd": 1024, "n_head": 16, "rotary_dim": 32}),
    "GPT-NeoX 20B": ("gpt_neox", {"hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64}),
    "OPT 125M": ("opt", {"hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12, "word_embed_proj_dim": 768}),
    "OPT 350M": (
        "opt",
        {
            **{"hidden_size": 1024, "ffn_dim": 4096, "num_attention_heads": 16, "word_embed_proj_dim": 512},
            "do_layer_norm_before": False,
        },
    ),
    "BLOOM 7B1": ("bloom", {"hidden_size": 4096, "n_head": 32, "vocab_size": 250880}),
    "MPT 30B": ("mpt", {"d_model": 7168, "n_heads": 64, "vocab_size": 50432}),
    "Falcon 7B": ("falcon", {"hidden_size": 4544, "num_attention_heads": 71}),
    "Falcon 40B": (
        "falcon",
        {"hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": True},
    ),
    "Falcon RW 1B": (
        "falcon",
        {
            **{"hidden_size": 2048, "num_attention_heads": 32, "vocab_size": 50304, "alibi": True, "bias": True},
            **{"multi_query": False, "parallel_attn": False},
        },
    ),
    "Phi 2": ("phi", _shape(2560, 10240, 32, 32, partial_rotary_factor=0.4, vocab_size=51200)),
    "Phi 4 mini": ("phi3", _shape(3072, 8192, 24, 8, partial_rotary_factor=0.75, vocab_size=200064, **_TIED)),
    "Phi 3.5 MoE": (
        "phimoe",
        _shape(
            *(4096, 6400, 32, 8),
            **{"attention_bias": True, "lm_head_bias": True, "sliding_window": 131072},
            rope_parameters={"rope_type": "longrope", **_FACTORS},
        ),
    ),
    "StableLM 2 12B": (
        "stablelm",
        _shape(5120, 13824, 32, 8, partial_rotary_factor=0.25, qk_layernorm=True, use_parallel_residual=True),
    ),
    "StarCoder 2 3B": ("starcoder2", _shape(3072, 12288, 24, 2, vocab_size=49152, sliding_window=4096)),
    "Command R7B": ("cohere2", _shape(4096, 14336, 32, 8, vocab_size=256000)),
    "gpt-oss 20B": ("gpt_oss", _shape(2880, 2880, 64, 8, head_dim=64, num_local_experts=32)),
    "GLM 4 9B": ("glm", _shape(4096, 13696, 32, 2, head_dim=128, vocab_size=151552)),
    "Nemotron 4": ("nemotron", _shape(3072, 9216, 24, 8, head_dim=128, vocab_size=256000)),
    "Ernie 4.5 0.3B": ("ernie4_5", _shape(1024, 3072, 16, 2, head_dim=128, vocab_size=103424)),
    "Seed-OSS 36B": ("seed_oss", _shape(5120, 27648, 80, 8, head_dim=128)),
    "MiniMax M2": ("minimax_m2", _shape(3072, 1536, 48, 8, head_dim=128, rotary_dim=64, num_local_experts=256)),
    "Solar Open": ("solar_open", {"hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}),
    "DBRX": (
        "dbrx",
        {
            **{"d_model": 6144, "n_heads": 48, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 5e5}},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
    ),
    "Llama 4 Scout": (
        "llama4_text",
        _shape(5120, 8192, 40, 8, intermediate_size_mlp=16384, no_rope_layers=[1, 0], rope_parameters=_LLAMA3),
    ),
    "Ministral 3 3B": ("ministral3", _shape(3072, 9216, 32, 8, head_dim=128, vocab_size=131072, **_TIED)),
    "Trinity Mini": ("afmoe", _shape(2048, 6144, 32, 4, head_dim=128, moe_intermediate_size=1024, num_experts=128)),
    "Granite 4.0 micro": (
        "granitemoehybrid",
        _shape(
            *(2560, 8192, 40, 8),
            **{"layer_types": ["full_attention"] * 2, "num_local_experts": 0, "shared_intermediate_size": 8192, **_TIED},
            **{"mamba_n_heads": 64, "position_embedding_type": "rope", "vocab_size": 100352},
        ),
    ),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_every_tensor_has_its_place(name):
    family, keys = WIDTHS[name]
    layers = next(key for key in ("n_layer", "n_layers", "num_hidden_layers") if key in _declared(family))
    with torch.device("meta"):
        native = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**{**keys, layers: 2}))
        config = config_from_native(native.config)
        ours = VariantsForCausalLM(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    theirs = {name: tensor for name, tensor in native.state_dict().items() if name not in tied}
    found = apply_rules(find_family(family).weights, theirs, config)
    check_state(found, {name: tensor for name, tensor in ours.state_dict().items() if name not in tied}, name)
    check_state(apply_rules(find_family(family).weights, found, config, back=True), theirs, name)
    assert as_plain_dict(config_to_native(config)) == as_plain_dict(native.config)


def _declared(family):
    cls = CONFIG_MAPPING[family]
    return {name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})} | set(cls.attribute_map.values())
