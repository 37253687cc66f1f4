"""Counts from the config equal the tensors and the cache of real models, toggle by toggle; `test_count.py` has the FLOPs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hf_variants import VariantsConfig, VariantsForCausalLM, VariantsForMaskedLM, VariantsForSeq2SeqLM
from hf_variants.analysis import count_parameters, flops_per_token, kv_cache_size
from hf_variants.presets import list_presets, load_preset
from tests.analysis.small import tiny
from tests.variants import ACROSS, BASE, ENCODERS

MLA = {"attention_type": "mla", "kv_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12}
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 6}
LAYERNORM = {"norm_type": "layernorm"}

TOGGLES = {
    "plain": {},
    "mqa": {"attention_type": "mqa"},
    "gqa": {"num_key_value_heads": 2},
    "head_dim": {"head_dim": 16},
    "biases": {"attention_bias": True, "mlp_bias": True, "lm_head_bias": True},
    "qkv-bias": {"attention_bias": True, "attention_out_bias": False},
    "tied": {"tie_word_embeddings": True},
    "tied-bias": {"tie_word_embeddings": True, "lm_head_bias": True},
    "mla": MLA,
    "mla-q-lora": {**MLA, "q_lora_rank": 20},
    "mla-bias": {**MLA, "q_lora_rank": 20, "attention_bias": True},
    "mla-layernorm": {**MLA, "q_lora_rank": 20, "norm_type": "layernorm", "qk_norm": "head"},
    "mla-head-norm": {**MLA, "qk_norm": "head"},
    "mla-l2-norm": {**MLA, "qk_norm": "l2"},
    "mla-sinks": {**MLA, "attention_sinks": True},
    "mla-window": {**MLA, **ALTERNATING},
    "window": {"sliding_window": 6},
    "window-of-one": {"sliding_window": 1},
    "alternating": {**ALTERNATING, "num_key_value_heads": 2},
    "chunk": {"attention_chunk_size": 6},
    "sinks": {"attention_sinks": True},
    "softcaps": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0},
    "qk-head": {"qk_norm": "head", "num_key_value_heads": 2},
    "qk-per-head": {"qk_norm": "per_head", "num_key_value_heads": 2},
    "qk-per-head-layernorm": {"qk_norm": "per_head", **LAYERNORM},
    "qk-full": {"qk_norm": "full", "num_key_value_heads": 2},
    "qk-l2": {"qk_norm": "l2"},
    "qk-head-layernorm": {"qk_norm": "head", **LAYERNORM},
    "qk-full-layernorm": {"qk_norm": "full", "num_key_value_heads": 2, **LAYERNORM},
    "alibi": {"position_embedding_type": "alibi"},
    "learned": {"position_embedding_type": "learned", "position_embedding_offset": 2},
    "sinusoidal-halves": {"position_embedding_type": "sinusoidal_halves"},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "no-positions": {"position_embedding_type": "none"},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}},
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
        }
    },
    "last-bias": {"mlp_out_bias": True},
    "plain-mlp": {"mlp_type": "plain", "hidden_act": "gelu", "mlp_bias": True},
    "experts": MOE,
    "experts-first-dense": {**MOE, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "experts-biases": {**MOE, "router_bias": True, "expert_bias": True},
    "experts-shared": {**MOE, "num_shared_experts": 2, "shared_expert_gate": True, "mlp_bias": True},
    "experts-plain": {**MOE, "mlp_type": "plain", "expert_bias": True},
    "experts-bias-balance": {
        **MOE,
        "router_balance": "bias",
        "router_scoring": "sigmoid",
        "n_group": 4,
        "topk_group": 2,
    },
    "layernorm": LAYERNORM,
    "layernorm-no-bias": {**LAYERNORM, "norm_bias": False},
    "no-affine": {"norm_affine": False, "qk_norm": "head"},
    "unit-offset": {"norm_unit_offset": True},
    "embedding-norm": {"embedding_norm": True, **LAYERNORM},
    "no-first-norm": {"first_attention_norm": False},
    "head-transform": {"lm_head_act": "gelu", "lm_head_transform_bias": False, "tie_word_embeddings": True},
    "narrow": {"embedding_size": 20, "embedding_norm": True, "position_embedding_type": "learned"},
    "narrow-tokens": {"embedding_size": 20, "embedding_projection": "tokens", "position_embedding_type": "learned"},
    "narrow-tied": {"embedding_size": 20, "lm_head_act": "gelu", "tie_word_embeddings": True},
    **{
        f"placement-{name}": {"norm_placement": name}
        for name in ("pre_normed_residual", "post", "post_ln", "sandwich", "parallel", "parallel_two_norms")
    },
}


@pytest.mark.parametrize("name", TOGGLES)
def test_b61_parameters_equal_the_model(name):
    config = tiny(**TOGGLES[name])
    with torch.device("meta"):
        model = VariantsForCausalLM(config)
    counts = count_parameters(config)
    assert counts.total == sum(parameter.numel() for parameter in model.parameters())
    persistent = {key: value for key, value in model.state_dict().items() if key not in dict(model.named_parameters())}
    persistent.pop("lm_head.weight", None)
    assert counts.buffers == sum(value.numel() for value in persistent.values())


@pytest.mark.parametrize("name", ENCODERS)
def test_b61_parameters_of_an_encoder_equal_the_model(name):
    config = VariantsConfig(**{**BASE, **ENCODERS[name]})
    with torch.device("meta"):
        model = VariantsForMaskedLM(config)
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", list_presets())
def test_presets_equal_the_model(name):
    config = load_preset(name)
    with torch.device("meta"):
        kind = VariantsForSeq2SeqLM if config.is_encoder_decoder else None
        model = (kind or (VariantsForCausalLM if config.is_causal else VariantsForMaskedLM))(config)
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", TOGGLES)
def test_b60_cache_bytes_equal_the_cached_tensors(name):
    config = tiny(**TOGGLES[name])
    model = VariantsForCausalLM(config).eval()
    for length in (1, 5, 6, 20):
        ids = torch.randint(50, (2, length))
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values
        tensors = [t for layer in cache.layers if layer.is_initialized for t in (layer.keys, layer.values)]
        measured = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        assert kv_cache_size(config, length, batch_size=2, dtype_bytes=4).bytes == measured, length


@pytest.mark.parametrize("name", TOGGLES)
def test_parameters_with_cross_attention_equal_the_model(name):
    config = tiny(**TOGGLES[name], **ACROSS)
    with torch.device("meta"):
        model = VariantsForCausalLM(config)
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())


CROSSED = ["plain", "gqa", "mla", "mla-q-lora", "mla-head-norm", "placement-sandwich", "window"]


@pytest.mark.parametrize("name", CROSSED)
def test_flops_and_cache_with_cross_attention_equal_what_is_computed_and_kept(name):
    config = tiny(**TOGGLES[name], **ACROSS)
    model, states = VariantsForCausalLM(config).eval(), torch.randn(1, 9, 20)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            model(torch.tensor([[3]]), encoder_hidden_states=states, use_cache=False)
        assert counter.get_total_flops() == flops_per_token(config, 1, encoder_length=9).total
        cache = model(torch.randint(50, (1, 11)), encoder_hidden_states=states, use_cache=True).past_key_values
        layers = (*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers)
        measured = sum(part.numel() * 4 for layer in layers for part in (layer.keys, layer.values))
        assert kv_cache_size(config, 11, dtype_bytes=4, encoder_length=9).bytes == measured
        with FlopCounterMode(display=False) as counter:
            model(torch.tensor([[3]]), encoder_hidden_states=states, past_key_values=cache, use_cache=True)
        if name != "window":  # its mask leaves out what eager multiplies
            assert counter.get_total_flops() == flops_per_token(config, 12, mode="decode", encoder_length=9).total
