"""What the caches hold and what a decoding step computes: windows, latents, and no expansion of the past."""

import pytest
import torch
from decoding import build, draw_ids, model_of, tiny
from transformers import DynamicCache, StaticCache

from tests.variants import MLA

LENGTH = 11
LATENT = [name for name in ("mla", "mla_q_lora", "mla_qk_head", "mla_qk_l2", "mla_sinks", "mla_sliding", "mla_yarn")]


def filled_cache(model, length=LENGTH, steps=2):
    cache, ids = DynamicCache(config=model.config), draw_ids(2, length)
    with torch.no_grad():
        model(ids[:, : length - steps], past_key_values=cache, use_cache=True)
        for column in range(length - steps, length):
            model(ids[:, column : column + 1], past_key_values=cache, use_cache=True)
    return cache


@pytest.mark.parametrize(
    "name", ["sliding", "alternating", "chunked", "chunked_alternating", "mla_alternating", "nested_theta"]
)
def test_a_windowed_layer_keeps_its_window_alone(name):
    model = model_of(name)
    cache = filled_cache(model)
    for layer, plan in zip(cache.layers, model.model.plan, strict=True):
        kept = {"sliding_attention": 4 - 1, "chunked_attention": 5 - 1, "full_attention": LENGTH}[plan.layer_type]
        assert layer.keys.shape[2] == layer.values.shape[2] == kept
        assert layer.get_seq_length() == LENGTH


def test_a_window_of_one_keeps_nothing():
    cache = filled_cache(build(tiny("gqa", sliding_window=1)))
    assert all(layer.keys.numel() == layer.values.numel() == 0 for layer in cache.layers)
    assert cache.get_seq_length() == LENGTH


@pytest.mark.parametrize("name", LATENT)
def test_mla_caches_the_latent_alone(name):
    model = model_of(name)
    cache, config = filled_cache(model), model.config
    norms = config.num_attention_heads if config.qk_norm != "none" else 0
    for layer, plan in zip(cache.layers, model.model.plan, strict=True):
        kept = LENGTH if plan.window is None else plan.window - 1
        assert layer.keys.shape == (2, 1, kept, MLA["kv_lora_rank"] + norms)
        assert layer.values.shape == (2, 1, kept, MLA["qk_rope_head_dim"])
    static = StaticCache(config=config, max_cache_len=16)
    with torch.no_grad():
        model(draw_ids(2, 5), past_key_values=static, use_cache=True)
    assert static.layers[0].keys.shape[1:] == (1, 4 if config.sliding_window else 16, MLA["kv_lora_rank"] + norms)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", LATENT)
def test_mla_decodes_absorbed(name, backend):
    """At one query the expansion runs on no more rows than the new token's (its norm needs that one), never on the past."""
    model, rows = build(tiny(name)), []
    model.set_attn_implementation(backend)
    cache, ids = DynamicCache(config=model.config), draw_ids(2, LENGTH)
    with torch.no_grad():
        model(ids[:, :-1], past_key_values=cache, use_cache=True)
        for layer in model.model.layers:
            layer.self_attn.kv_b_proj.register_forward_hook(lambda m, args, out: rows.append(args[0].shape[1]))
        step = model(ids[:, -1:], past_key_values=cache, use_cache=True).logits[:, -1]
        assert rows == ([1] * len(model.model.layers) if model.config.qk_norm != "none" else [])
        whole = model(ids, use_cache=False).logits[:, -1]
    assert LENGTH in rows
    assert (step - whole).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["gqa", "sliding", "mla", "alibi", "moe", "learned"])
def test_the_cache_holds_nothing_beside_keys_and_values_where_no_rule_needs_it(name):
    model = model_of(name)
    assert len(filled_cache(model).layers) == model.config.num_hidden_layers


@pytest.mark.parametrize("name", ["dynamic", "longrope", "mla_longrope"])
def test_the_record_of_length_rules_is_one_layer_more(name):
    model = model_of(name)
    cache = filled_cache(model)
    assert len(cache.layers) == model.config.num_hidden_layers + 1
    assert cache.layers[-1].keys.shape == (2, 1, LENGTH, 4)
    width = model.config.hidden_size if "longrope" in name else 1
    assert cache.layers[-1].values.shape == (2, 1, LENGTH, width)
