"""A compiled decoding step, exported forwards and models on the meta device, for every toggle."""

import pytest
import torch
from accelerate import init_empty_weights
from decoding import (
    FAMILIES,
    PROMPT,
    TOGGLES,
    build,
    draw_ids,
    every_toggle,
    generate,
    model_of,
    relative,
    tiny,
    without_cache,
)
from transformers import StaticCache
from transformers.generation import CompileConfig

from hf_variants import VariantsForCausalLM, VariantsForMaskedLM

FEW = ("gqa", "mla_alternating", "sliding", "sinks_softcap_chunked", "alibi_terms", "longrope", "moe_groups")
STEPS = 8


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@every_toggle(fast=("gqa", "mla_alternating", "longrope"))
@torch.no_grad()
def test_a_decoding_step_compiles_whole_and_once(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    _, expected = without_cache(model, ids, new=STEPS)
    cache = StaticCache(config=model.config, max_cache_len=20)
    step, logits = torch.compile(model, fullgraph=True, backend="aot_eager"), []
    out = model(ids, past_key_values=cache, use_cache=True).logits[:, -1]
    for index in range(STEPS):
        logits.append(out)
        # the first step compiles; a window that fills up may compile once more
        with torch._dynamo.config.patch(error_on_recompile=index > 1):
            token = out.argmax(-1, keepdim=True)
            out = step(token, past_key_values=cache, use_cache=True).logits[:, -1]
    assert relative(torch.stack(logits), expected) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_generate_compiles_its_decoding_steps(name):
    # a model of its own: generate keeps the compiled call on it
    model, ids = build(tiny(name)), draw_ids(2, PROMPT)
    rows = generate(model, ids, max_new_tokens=12)
    config = CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    config._compile_all_devices = True
    torch._dynamo.utils.counters.clear()
    compiled = generate(model, ids, max_new_tokens=12, cache_implementation="static", compile_config=config)
    assert torch.equal(compiled, rows)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


@every_toggle(fast=FEW)
@torch.no_grad()
def test_an_exported_forward_of_any_length_equals_the_model(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    length = torch.export.Dim("length", min=3, max=48)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    shapes = {"input_ids": {1: length}, "attention_mask": {1: length}, "use_cache": None}
    program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False).module()
    for width in (5, 21):
        ids = draw_ids(2, width, seed=3)
        ids[0, :3] = 0
        inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "use_cache": False}
        real = inputs["attention_mask"].bool()
        assert relative(program(**inputs).logits[real], model(**inputs).logits[real]) < 1e-5


@pytest.mark.parametrize("name", [*FEW, "learned", "moe"])
@torch.no_grad()
def test_an_exported_encoder_equals_the_model(name):
    if "is_causal" in TOGGLES[name]:
        pytest.skip("causal by its own toggle")
    model, ids = build(tiny(name, is_causal=False), VariantsForMaskedLM), draw_ids(2, PROMPT)
    program = torch.export.export(model, (), {"input_ids": ids}, strict=False).module()
    other = draw_ids(2, PROMPT, seed=4)
    assert relative(program(input_ids=other).logits, model(other).logits) < 1e-5


class DecodingStep(torch.nn.Module):
    """One cached token as a function of tensors: the cache's tensors are the buffers that `torch.export` asks for."""

    def __init__(self, model, cache):
        super().__init__()
        self.model, self.cache = model, cache
        for index, layer in enumerate(cache.layers):
            for part in ("keys", "values", "cumulative_length"):
                self.register_buffer(f"{part}_{index}", getattr(layer, part), persistent=False)

    def forward(self, input_ids, position_ids):
        return self.model(input_ids, position_ids=position_ids, past_key_values=self.cache, use_cache=True).logits


@every_toggle(fast=("gqa", "mla", "alternating", "moe"))
@torch.no_grad()
def test_an_exported_decoding_step_equals_the_model(name):
    model, ids = model_of(name), draw_ids(1, PROMPT + 1)
    cache = StaticCache(config=model.config, max_cache_len=16)
    expected = model(ids, use_cache=False).logits[:, -1:]
    model(ids[:, :-1], past_key_values=cache, use_cache=True)
    filled = [(layer.keys.clone(), layer.values.clone(), layer.cumulative_length.clone()) for layer in cache.layers]
    inputs = (ids[:, -1:], torch.tensor([[PROMPT]]))
    program = torch.export.export(DecodingStep(model, cache), inputs, strict=False)
    for layer, tensors in zip(cache.layers, filled, strict=True):
        for part, tensor in zip(("keys", "values", "cumulative_length"), tensors, strict=True):
            getattr(layer, part).copy_(tensor)
    assert relative(program.module()(*inputs), expected) < 1e-5


@pytest.mark.parametrize("name", TOGGLES)
def test_models_are_built_on_the_meta_device(name):
    config = tiny(name)
    expected = {key: value.shape for key, value in model_of(name).state_dict().items()}
    with torch.device("meta"):
        on_meta = VariantsForCausalLM(config)
    with init_empty_weights():
        empty = VariantsForCausalLM(config)
    empty.tie_weights()  # accelerate gives every name a parameter of its own
    for model in (on_meta, empty):
        assert {key: value.shape for key, value in model.state_dict().items()} == expected
        assert all(parameter.is_meta for parameter in model.parameters())
        assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in model_of(name).parameters())


def test_the_few_are_toggles():
    assert set(FEW) <= set(TOGGLES) and set(FAMILIES) <= set(TOGGLES)
