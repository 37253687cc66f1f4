"""Encoder-decoders and vision-language models under torch.compile and torch.export, with compiled caches and with drafts.

Notable here: as test_compile_and_export.py and test_strategies.py have it for single stacks.
"""

import pytest
import torch
from transformers import EncoderDecoderCache, StaticCache
from transformers.generation import CompileConfig

from tests.generation.decoding import relative
from tests.variants import build, draw_ids, tiny, tiny_pair
from tests.vision import BRIDGES, IMAGE, MIXED, batch, vlm

# toggles of encoder and decoder
PAIRS = {
    "grouped": ("gqa", "gqa"),
    "tables": ("relative_per_layer", "learned_relative"),
    "latent": ("mla", "mla_qk_head"),
    "windows": ("alternating", "sliding"),
    "experts": ("moe_aux_loss", "moe_aux_loss"),
}
IDS, REAL = draw_ids(2, 7), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 0]])
SOURCE = {"input_ids": IDS, "attention_mask": REAL}
GREEDY = {"do_sample": False, "max_new_tokens": 8, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pair(name, seed=0):
    return build(tiny_pair(*PAIRS[name]), seed=seed)


def but_slow(names, *fast):
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


def compiled_cache():
    """Options of generate for a compiled cache whose steps are compiled whole, on any device."""
    config = CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    config._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": config}


def written(model, inputs, **options):
    with torch.no_grad():
        return model.generate(**inputs, **{**GREEDY, **options})[:, -GREEDY["max_new_tokens"] :]


@pytest.mark.parametrize("name", but_slow(PAIRS, "tables"))
@torch.no_grad()
def test_a_decoding_step_of_an_encoder_decoder_compiles_whole_and_once(name):
    # more tokens than the windows have, so that none fills up between two steps
    model, rows = pair(name), draw_ids(2, 5, seed=2)
    states = model.model.encoder(**SOURCE, use_cache=False)
    caches = [StaticCache(config=model.config.decoder, max_cache_len=length) for length in (20, IDS.shape[1])]
    more = {
        "attention_mask": REAL,
        "encoder_outputs": states,
        "use_cache": True,
        "past_key_values": EncoderDecoderCache(*caches),
    }
    step = torch.compile(model, fullgraph=True, backend="aot_eager")
    out = model(decoder_input_ids=rows, **more).logits[:, -1]
    for index in range(5):
        expected = model(**SOURCE, decoder_input_ids=rows, use_cache=False).logits[:, -1]
        assert relative(out, expected) < 1e-5
        token = expected.argmax(-1, keepdim=True)
        rows = torch.cat((rows, token), dim=1)
        # the first step compiles; a window that fills up may compile once more
        with torch._dynamo.config.patch(error_on_recompile=index > 1):
            out = step(decoder_input_ids=token, **more).logits[:, -1]


@pytest.mark.parametrize("name", but_slow(PAIRS, "grouped", "tables"))
@torch.no_grad()
def test_an_exported_encoder_decoder_of_any_lengths_equals_the_model(name):
    model = pair(name)
    read, write = torch.export.Dim("read", min=3, max=48), torch.export.Dim("write", min=3, max=40)
    written = draw_ids(2, 5, seed=2)
    inputs = {**SOURCE, "decoder_input_ids": written, "decoder_attention_mask": torch.ones_like(written), "use_cache": False}
    lengths = {"input_ids": read, "attention_mask": read, "decoder_input_ids": write, "decoder_attention_mask": write}
    shapes = {**{name: {1: length} for name, length in lengths.items()}, "use_cache": None}
    program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False).module()
    ids = draw_ids(2, 12, seed=3)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    other = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": draw_ids(2, 9, seed=4), "use_cache": False}
    other["decoder_attention_mask"] = torch.ones_like(other["decoder_input_ids"])
    assert relative(program(**other).logits, model(**other).logits) < 1e-5


@torch.no_grad()
def test_an_exported_decoder_of_any_length_needs_no_mask():
    """Without a mask the kernel is told that rows are causal, which a traced length must not make a symbol."""
    model, ids = build(tiny("gqa")), draw_ids(2, 9)
    shapes = {"input_ids": {1: torch.export.Dim("length", min=3, max=48)}, "use_cache": None}
    inputs = {"input_ids": draw_ids(2, 5), "use_cache": False}
    program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False).module()
    assert relative(program(input_ids=ids, use_cache=False).logits, model(ids, use_cache=False).logits) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grouped", "tables", "windows"])
def test_generate_compiles_the_decoding_steps_of_an_encoder_decoder(name):
    model = pair(name)
    rows = written(model, SOURCE)
    torch._dynamo.utils.counters.clear()
    assert torch.equal(written(model, SOURCE, **compiled_cache()), rows)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


@pytest.mark.parametrize("name", but_slow(PAIRS, "tables", "latent"))
def test_an_assistant_does_not_change_what_an_encoder_decoder_writes(name):
    """It runs its own encoder on the same source; one that agrees saves forwards of the model."""
    model, source = pair(name), {"input_ids": IDS[1:], "attention_mask": REAL[1:]}
    rows, calls = written(model, source), []
    assert torch.equal(written(model, source, assistant_model=pair(name, seed=5)), rows)
    model.register_forward_pre_hook(lambda *args: calls.append(1))
    assert torch.equal(written(model, source, assistant_model=pair(name)), rows)
    assert len(calls) < GREEDY["max_new_tokens"]


# how many images each row has is data to gated cross-attention, which torch.export refuses to branch on
@pytest.mark.parametrize("bridge", but_slow([name for name in BRIDGES if "gated" not in name], "projection"))
@torch.no_grad()
def test_an_exported_vision_language_model_equals_the_model(bridge):
    model = vlm(**BRIDGES[bridge])
    inputs = {**batch(model, (1, 2, IMAGE, 3, 4, IMAGE, 5), (6, 7, 8, 9, IMAGE)), "use_cache": False}
    program = torch.export.export(model, (), inputs, strict=False).module()
    other = {**inputs, "pixel_values": inputs["pixel_values"].flip(0) * 2}
    found, expected = program(**other).logits, model(**other).logits
    real = inputs["attention_mask"].bool()
    assert relative(found[real], expected[real]) < 1e-5
    assert relative(model(**inputs).logits[real], expected[real]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("bridge", BRIDGES)
def test_generate_compiles_the_decoding_steps_of_a_vision_language_model(bridge):
    model = vlm(**BRIDGES[bridge])
    inputs = batch(model, *MIXED)
    rows = written(model, inputs)
    torch._dynamo.utils.counters.clear()
    assert torch.equal(written(model, inputs, **compiled_cache()), rows)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


def test_an_assistant_drafts_text_and_is_refused_where_there_are_images():
    model, assistant = vlm(), build(tiny("gqa"), seed=6)
    text = batch(model, (1, 2, 3, 4))
    assert torch.equal(written(model, text, assistant_model=assistant), written(model, text))
    for drafting in (assistant, vlm(seed=5)):
        with pytest.raises(ValueError, match="assistant_model drafts from text alone.*prompt_lookup_num_tokens"):
            written(model, batch(model, (1, 2, IMAGE, 3, 4)), assistant_model=drafting)
