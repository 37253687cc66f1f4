"""Prefill and greedy decoding, with growing and with static caches, of one row and of many."""

import torch
from transformers import LlamaConfig

from benchmarks.case import OURS, REFERENCE, Case, Ready
from benchmarks.pairs import SMOLLM2, models, random_ids
from hf_variants import VariantsConfig
from hf_variants.analysis import count_parameters, flops_per_token

SHAPE = {**SMOLLM2, "num_hidden_layers": 12}
CONFIG = LlamaConfig(**SHAPE)
OUR_CONFIG = VariantsConfig(**{key: value for key, value in SHAPE.items() if key not in ("eos_token_id", "bos_token_id")})


def prefill_of(model, ids):
    """`Ready` for one forward over a prompt; returns the logits of its last token."""

    @torch.no_grad()
    def run():
        return model(ids, logits_to_keep=1, use_cache=False).logits

    return Ready(run, ids.numel())


def decode_of(model, ids, tokens, **options):
    """`Ready` for greedy generation of `tokens` behind the prompt ids [B, T]; returns the generated ids."""
    given = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0, **options}
    mask = torch.ones_like(ids)

    @torch.no_grad()
    def run():
        return model.generate(ids, attention_mask=mask, **given)[:, ids.shape[1] :]

    return Ready(run, tokens * ids.shape[0])


def step_of(model, ids, cached, tokens):
    """`Ready` for `tokens` single-token forwards behind `cached` tokens of random keys; returns the last logits.

    The cache is filled with random numbers, for a forward over so long a prompt would take most of the time.
    """
    from transformers import DynamicCache

    cache = fill_cache(model, ids.shape[0], cached)

    @torch.no_grad()
    def run():
        token = ids[:, :1]
        for _ in range(tokens):
            logits = model(token, past_key_values=cache, use_cache=True).logits
            token = logits[:, -1:].argmax(-1)
        return logits

    def prepare():
        extra = cache.get_seq_length() - cached
        if extra:
            cache.crop(-extra)

    assert isinstance(cache, DynamicCache)
    return Ready(run, tokens * ids.shape[0], prepare)


def fill_cache(model, batch, length, seed=3):
    """A `DynamicCache` of `length` random tokens, in the shapes that one forward of `model` leaves behind."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.ones(batch, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    generator = torch.Generator().manual_seed(seed)
    for layer in cache.layers:
        for name in ("keys", "values"):
            held = getattr(layer, name)
            width = 1 if name == "values" and getattr(model.config, "kv_lora_rank", None) else held.shape[3]
            # rotary keys of MLA lie in another order natively, so all their dimensions get one number
            drawn = torch.randn(*held.shape[:2], length, width, generator=generator).expand(-1, -1, -1, held.shape[3]).clone()
            setattr(layer, name, drawn.to(held.dtype))
    return cache


def _decode_case(name, title, batch, prompt, tokens, targets, seconds=20):
    def build(sides):
        ids = random_ids(CONFIG, batch, prompt)
        return {side: decode_of(model, ids, tokens) for side, model in models(CONFIG, sides).items()}

    return Case(name, title, build, targets=targets, bytes=weight_bytes() * tokens, seconds=seconds, tolerance=0.0)


def weight_bytes(size=4):
    """Bytes that decoding one token reads: every weight once (the tied table as the head)."""
    return count_parameters(OUR_CONFIG).total * size


def _prefill(sides):
    ids = random_ids(CONFIG, 4, 512)
    return {side: prefill_of(model, ids) for side, model in models(CONFIG, sides).items()}


def _long_cache(sides):
    ids = random_ids(CONFIG, 1, 8)
    return {side: step_of(model, ids, 8192 - 64, 8) for side, model in models(CONFIG, sides).items()}


def static_options():
    """Options of `generate` for a static cache and a compiled step, on a CPU too."""
    from transformers.generation import CompileConfig

    compiled = CompileConfig(fullgraph=True, dynamic=False, backend="inductor", mode="default")
    compiled._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": compiled}


def _static(sides):
    ids = random_ids(CONFIG, 1, 32)
    return {side: decode_of(model, ids, 64, **static_options()) for side, model in models(CONFIG, sides).items()}


def graphs_of(model, shapes, tokens=4):
    """Graphs that the compiler is asked for while `model` decodes prompts of these shapes [(rows, tokens)]."""
    counted = torch._dynamo.utils.counters["stats"]
    before = counted["unique_graphs"]
    for rows, length in shapes:
        decode_of(model, random_ids(model.config, rows, length), tokens, **static_options()).run()
    return counted["unique_graphs"] - before


def graphs_of_shapes_seen_before(sides=None):
    """{"graphs", "graphs_first"}: graphs compiled when rows and lengths come again, and when they came first.

    In a small model; the longest prompts come first, for `generate` keeps a static cache as long as any before.
    """
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
    model = models(LlamaConfig(**{**SHAPE, **small, "num_key_value_heads": 2}), (OURS,))[OURS]
    shapes = [(1, 24), (2, 24), (1, 16), (2, 16)]
    first = graphs_of(model, shapes)
    if not first:
        raise ValueError("decode_static: nothing was compiled, so compiling once means nothing")
    return {"graphs": graphs_of(model, [*reversed(shapes), *shapes]), "graphs_first": first}


CASES = [
    Case(
        "prefill",
        "prefill, 12 layers of SmolLM2's shape, 4 x 512 tokens",
        _prefill,
        targets={"speed": 1.05},
        flops=(flops_per_token(OUR_CONFIG, 512).total - flops_per_token(OUR_CONFIG, 512).parts["lm_head"]) * 2048,
    ),
    _decode_case("decode", "greedy decode, DynamicCache, 1 row", 1, 32, 48, {"speed": 1.25}),
    Case(
        "decode_static",
        "greedy decode, static cache, compiled, 1 row",
        _static,
        sides=(REFERENCE, OURS),
        targets={"share": 0.85, "graphs": 0},
        also=graphs_of_shapes_seen_before,
        bytes=weight_bytes() * 64,
        seconds=10,
        tolerance=0.0,
    ),
    _decode_case("decode_batch_8", "greedy decode, DynamicCache, 8 rows", 8, 32, 32, {"speed": 1.10}),
    _decode_case("decode_batch_32", "greedy decode, DynamicCache, 32 rows", 32, 32, 16, {"speed": 1.10}),
    Case(
        "decode_long_cache",
        "greedy decode behind 8k cached tokens, 1 row",
        _long_cache,
        targets={"speed": 1.10},
        bytes=(weight_bytes() + 12 * 2 * 3 * 64 * 4 * 8160) * 8,
    ),
]
