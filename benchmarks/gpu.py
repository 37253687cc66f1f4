"""`python -m benchmarks.gpu [--tiny] [--seconds 330] [--output FILE]`: the family on one CUDA card, against native.

Needs torch, transformers and this repository alone. Measures training MFU, decoding, the backends of soft-caps, ALiBi, sinks
and windows, MLA decoding and experts. Sections run one after another, each on the same weights in both sides; none is begun
after `--seconds`, and every section's numbers are written as soon as they are known, so an interrupted run keeps its own.
`--tiny` runs every section on small shapes on whatever device there is, which is how the tests run it.

Notable here: MFU is (3 x forward matrix FLOPs of the family's counters) / seconds / the card's own matrix product rate,
measured in the same run, not a number from a data sheet. A section that fails says so in the results and the next one runs.
"""

import argparse
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
)

from hf_variants.analysis import flops_per_token
from hf_variants.convert import from_native

TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call, device, repeats=5):
    """Median seconds of a call, after two that are not counted."""
    taken = []
    for number in range(repeats + 2):
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        if number > 1:
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def peak_of(call, device):
    """GiB allocated at the height of a call; None where the device keeps no such count."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    call()
    wait(device)
    return torch.cuda.max_memory_allocated(device) / 2**30


def pair_of(config, device, dtype, native_attention="sdpa", ours_attention="sdpa"):
    """(native, ours) on the same random weights."""
    torch.manual_seed(0)
    native = AutoModelForCausalLM.from_config(config, attn_implementation=native_attention, dtype=dtype).eval()
    ours = from_native(native, attn_implementation=ours_attention)
    return native.to(device), ours.to(device)


def step(model, ids):
    model.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()


def compared(pair, call, device, units):
    """Units per second of both sides, their ratio, and peaks where the device counts them."""
    found = {}
    for side, model in zip(("native", "ours"), pair, strict=True):
        run = partial(call, model)
        found[side] = {"per_second": units / seconds_of(run, device), "peak_gib": peak_of(run, device)}
    found["speed"] = found["ours"]["per_second"] / found["native"]["per_second"]
    return found


def ids_of(config, device, batch, length):
    return torch.randint(1, config.vocab_size, (batch, length), device=device)


def matrix_rate(device, dtype, size):
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: left @ right, device)


def shape(tiny, **large):
    small = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return {"vocab_size": 256, **small, **TOKENS} if tiny else {"vocab_size": 32000, **large, **TOKENS}


BIG = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
}


def training(device, dtype, tiny):
    """Training MFU of a model of about 0.8 billion parameters."""
    config = LlamaConfig(**shape(tiny, **BIG))
    batch, length = (1, 32) if tiny else (4, 2048)
    pair, ids = pair_of(config, device, dtype), ids_of(config, device, batch, length)
    for model in pair:
        model.train()
    found = compared(pair, lambda model: step(model, ids), device, ids.numel())
    flops = 3 * flops_per_token(pair[1].config, length).total
    rate = matrix_rate(device, dtype, 128 if tiny else 8192)
    for side in ("native", "ours"):
        found[side]["mfu"] = flops * found[side]["per_second"] / rate
    return {**found, "matrix_tflops": rate / 1e12}


def decoding(device, dtype, tiny):
    """Greedy decoding of one row, with a growing cache."""
    config = LlamaConfig(**shape(tiny, **BIG))
    tokens = 4 if tiny else 64
    ids = ids_of(config, device, 1, 8)
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    return compared(pair_of(config, device, dtype), lambda model: model.generate(ids, **options), device, tokens)


def backends(make, native_attention, device, dtype, tiny, length=4096):
    """Training steps of each of our backends against one native one; flex needs a GPU for gradients."""
    config, found = make(tiny), {}
    ids = ids_of(config, device, 1, 48 if tiny else length)
    for name in ("sdpa", "flex_attention"):
        if name == "flex_attention" and device.type == "cpu":
            continue
        pair = pair_of(config, device, dtype, native_attention, name)
        for model in pair:
            model.train()
        found[name] = compared(pair, lambda model: step(model, ids), device, ids.numel())
    return found


def gemma2(tiny):
    return Gemma2Config(**shape(tiny, **{**BIG, "num_hidden_layers": 4}), head_dim=64, query_pre_attn_scalar=64)


def bloom(tiny):
    return BloomConfig(
        vocab_size=256 if tiny else 32000,
        hidden_size=64 if tiny else 2048,
        n_layer=2 if tiny else 4,
        n_head=4 if tiny else 32,
        **TOKENS,
    )


def sinks(tiny):
    from transformers import GptOssConfig

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128}
    return GptOssConfig(**shape(tiny, **{**BIG, "num_hidden_layers": 4, "intermediate_size": 1024}), head_dim=64, **experts)


def window(tiny):
    return MistralConfig(**shape(tiny, **{**BIG, "num_hidden_layers": 4}), sliding_window=8 if tiny else 512)


def latent(device, dtype, tiny):
    """MLA decoding behind 8k cached tokens: native expands them at each step."""
    large = {**BIG, "num_hidden_layers": 4, "num_key_value_heads": 32}
    config = DeepseekV3Config(
        **{**shape(tiny, **large), "num_key_value_heads": 4 if tiny else 32},
        first_k_dense_replace=4,
        q_lora_rank=None,
        kv_lora_rank=32 if tiny else 512,
        qk_nope_head_dim=16 if tiny else 128,
        qk_rope_head_dim=16 if tiny else 64,
        v_head_dim=16 if tiny else 128,
        n_routed_experts=8,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
    )
    prompt, tokens = ids_of(config, device, 1, 24 if tiny else 8192), 2 if tiny else 16

    @torch.no_grad()
    def steps(model):
        cache = caches[id(model)]
        for _ in range(tokens):
            model(prompt[:, :1], past_key_values=cache, use_cache=True)
        cache.crop(-tokens)

    pair, caches = pair_of(config, device, dtype), {}
    for model in pair:
        with torch.no_grad():
            caches[id(model)] = model(prompt, use_cache=True, logits_to_keep=1).past_key_values
    return compared(pair, steps, device, tokens)


def experts(device, dtype, tiny):
    """Training step of eight experts with grouped products."""
    config = MixtralConfig(**shape(tiny, **{**BIG, "num_hidden_layers": 4}), num_local_experts=8, num_experts_per_tok=2)
    pair, ids = pair_of(config, device, dtype), ids_of(config, device, 1 if tiny else 4, 32 if tiny else 1024)
    for model in pair:
        model.train()
    return compared(pair, lambda model: step(model, ids), device, ids.numel())


SECTIONS = {
    "training": training,
    "decoding": decoding,
    "softcap": partial(backends, gemma2, "eager"),
    "alibi": partial(backends, bloom, "eager"),
    "sinks": partial(backends, sinks, "eager"),
    "window": partial(backends, window, "sdpa"),
    "latent": latent,
    "experts": experts,
}


def card(device):
    """What the numbers were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"


def write(results, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    partial_file = target.with_suffix(".partial")
    partial_file.write_text(json.dumps(results, indent=2), encoding="utf-8")
    os.replace(partial_file, target)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all when none is named")
    parser.add_argument("--tiny", action="store_true", help="small shapes, on any device")
    parser.add_argument("--seconds", type=float, default=330.0, help="no section is begun after so many seconds (330)")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/gpu.json"))
    options = parser.parse_args(argv)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        raise SystemExit(f"unknown section {unknown[0]!r}; choose from {list(SECTIONS)}")
    if not torch.cuda.is_available() and not options.tiny:
        raise SystemExit("no CUDA device; --tiny runs every section on small shapes on the CPU")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype, began, results = (
        torch.bfloat16 if device.type == "cuda" else torch.float32,
        time.perf_counter(),
        {"card": card(device)},
    )
    for name in options.sections or SECTIONS:
        if time.perf_counter() - began > options.seconds:
            results[name] = {"skipped": f"{options.seconds:.0f} seconds were over"}
        else:
            try:
                results[name] = SECTIONS[name](device, dtype, options.tiny)
            except Exception as error:
                results[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
        print(name, json.dumps(results[name]), flush=True)
        write(results, options.output)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return results


if __name__ == "__main__":
    main()
