"""What a config is and costs, as plain data and as a table.

Notable here: `describe` returns only JSON types, so the command line, the model card and the report show the same
numbers; equal layers share one line.
"""

from io import StringIO
from itertools import groupby

from .cache_size import kv_cache_size
from .counts import count_parameters
from .flops import flops_per_token

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


def describe(config, length=None, dtype="bfloat16"):
    """Facts and costs of a config.

    Args:
        config: a `VariantsConfig`.
        length: tokens at which FLOPs and cache are counted; None takes `max_position_embeddings`.
        dtype: of weights and cache, a key of `DTYPE_BYTES`.

    Returns:
        dict of JSON types with `choices`, `layers`, `parameters`, `flops` and `kv_cache`.

    Raises:
        ValueError: for an unknown dtype or a length below 1.
    """
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype={dtype!r} is unknown; choose from {sorted(DTYPE_BYTES)}")
    size = DTYPE_BYTES[dtype]
    length = config.max_position_embeddings if length is None else length
    parameters = count_parameters(config)
    prefill, decode = (flops_per_token(config, length, mode) for mode in ("prefill", "decode"))
    cache = kv_cache_size(config, length, dtype_bytes=size)
    return {
        "choices": _choices(config),
        "layers": _layer_kinds(config),
        "parameters": {
            "total": parameters.total,
            "active": parameters.active,
            "non_embedding": parameters.non_embedding,
            "buffers": parameters.buffers,
            "bytes": (parameters.total + parameters.buffers) * size,
            "parts": parameters.parts,
            "active_parts": parameters.active_parts,
        },
        "flops": {
            "length": length,
            "prefill_per_token": prefill.total,
            "decode_last_token": decode.total,
            "prefill_parts": prefill.parts,
        },
        "kv_cache": {
            "length": length,
            "dtype": dtype,
            "bytes": cache.bytes,
            "bytes_per_token": cache.per_token,
            "bytes_per_token_beyond_windows": cache.per_token_beyond,
            "share_of_multi_head": _share_of_multi_head(config, cache),
        },
    }


def _share_of_multi_head(config, cache):
    """Cache bytes relative to full attention with one key and value per query head of the same widths."""
    width = config.num_attention_heads * (config.query_head_dim + config.value_head_dim)
    full = width * config.num_hidden_layers * cache.length * cache.batch_size * cache.dtype_bytes
    return cache.bytes / full if full else 0.0


def _attention_words(config):
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    if config.attention_type == "mla":
        queries = f"queries {config.q_lora_rank}" if config.q_lora_rank else "queries not compressed"
        return f"MLA, {heads} heads, latent {config.kv_lora_rank} + rotary key {config.qk_rope_head_dim}, {queries}"
    name = "MHA" if kv == heads else "MQA" if kv == 1 else "GQA"
    return f"{name}, {heads} query and {kv} key-value heads of {config.head_dim}"


def _position_words(config):
    if config.position_embedding_type != "rope":
        return config.position_embedding_type + (", scaled, in bfloat16" if config.alibi_scaled_bf16 else "")
    words = []
    for key in config.rope_keys:
        rope = config.rope_of(key)
        factor = f" x {rope['factor']:g}" if rope.get("factor") else ""
        where = "" if key == "default" else f"{key}: "
        words.append(f"{where}{rope['rope_type']}{factor}, theta {rope['rope_theta']:g}")
    return "rope (" + "; ".join(words) + ")"


def _expert_words(config):
    if not config.has_experts:
        return "none"
    shared = f" + {config.num_shared_experts} shared" if config.num_shared_experts else ""
    return (
        f"{config.num_experts_per_tok} of {config.num_experts}{shared}, width {config.moe_intermediate_size}, "
        f"{config.router_scoring} scores, balance {config.router_balance}"
    )


def _extras(config):
    flags = {
        f"QK-norm {config.qk_norm}{'' if config.qk_norm_layers == 'all' else ' on rotated layers'}": config.qk_norm != "none",
        f"output gate per {config.attn_output_gate}": config.attn_output_gate != "none",
        f"query temperature from {config.floor_scale} tokens on": config.attn_temperature_tuning,
        "router weights on expert inputs": config.apply_router_weight_on_input,
        f"attention soft-cap {config.attn_logit_softcapping}": config.attn_logit_softcapping is not None,
        f"final soft-cap {config.final_logit_softcapping}": config.final_logit_softcapping is not None,
        "attention sinks": config.attention_sinks,
        "tied head": config.tie_word_embeddings,
        "embedding norm": config.embedding_norm,
        f"{config.type_vocab_size} token types": config.type_vocab_size > 0,
        f"tables {config.embedding_size} wide": config.embedding_size != config.hidden_size,
        "pooler": config.pooler,
    }
    return ", ".join(name for name, on in flags.items() if on) or "none"


def _choices(config):
    return {
        "shape": f"{config.num_hidden_layers} layers, hidden {config.hidden_size}, vocabulary {config.vocab_size}",
        "context": f"{config.max_position_embeddings} tokens",
        "attention": _attention_words(config),
        "positions": _position_words(config),
        "feed_forward": f"{config.mlp_type} {config.hidden_act}, width {config.intermediate_size}",
        "experts": _expert_words(config),
        "norm": f"{config.norm_type}, {config.norm_placement}",
        "extras": _extras(config),
    }


def _layer_words(plan):
    reach = plan.window or plan.chunk
    kind = plan.layer_type.replace("_attention", "") + (f" {reach}" if reach else "")
    rope = "no rotation" if plan.rope_key is None else "rotated"
    return kind, plan.mlp, rope


def _spans(indices):
    """Layer numbers in short: `0-2`, `0, 2, ..., 40`, or `0, 5-7, 9`."""
    steps = {later - earlier for earlier, later in zip(indices, indices[1:], strict=False)}
    if len(indices) > 3 and len(steps) == 1 and steps != {1}:
        return f"{indices[0]}, {indices[1]}, ..., {indices[-1]}"
    runs = []
    for _, group in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        run = [index for _, index in group]
        runs.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(runs)


def _layer_kinds(config):
    """Kinds of layers in order of first use: [{"layers": "0-2", "count": 3, "attention": "full", ...}, ...]."""
    kinds = {}
    for plan in config.layer_plan():
        kinds.setdefault(_layer_words(plan), []).append(plan.index)
    described = []
    for (attention, mlp, rope), indices in kinds.items():
        positions = rope if config.position_embedding_type == "rope" else config.position_embedding_type
        described.append(
            {
                "layers": _spans(indices),
                "count": len(indices),
                "attention": attention,
                "mlp": mlp,
                "positions": positions,
            }
        )
    return described


def human_count(number):
    """1234567 as `1.23 M`."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f}"


def human_bytes(number):
    """1536 as `1.50 KiB`."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(number) >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f} B"


def _cost_rows(facts):
    parameters, flops, cache = facts["parameters"], facts["flops"], facts["kv_cache"]
    yield "parameters", f"{parameters['total']:,} ({human_bytes(parameters['bytes'])} as {cache['dtype']})"
    active = parameters["active"] / parameters["total"]
    yield "active per token", f"{parameters['active']:,} ({active:.1%})"
    for part, count in parameters["parts"].items():
        yield f"  {part.replace('_', ' ')}", f"{count:,} ({count / parameters['total']:.1%})"
    yield f"FLOPs per token, forward, mean over {flops['length']} tokens", human_count(flops["prefill_per_token"])
    yield f"FLOPs of token {flops['length']} from the cache", human_count(flops["decode_last_token"])
    yield (
        f"KV cache of {cache['length']} tokens, {cache['dtype']}",
        (f"{human_bytes(cache['bytes'])} ({cache['share_of_multi_head']:.1%} of full multi-head attention)"),
    )
    yield (
        "KV bytes per token",
        f"{cache['bytes_per_token']:,}; {cache['bytes_per_token_beyond_windows']:,} past windows",
    )


def describe_table(config, length=None, dtype="bfloat16", title=None):
    """The facts of `describe` as a `rich.table.Table`."""
    from rich.table import Table

    facts = describe(config, length, dtype)
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column("fact", style="bold", no_wrap=True)
    table.add_column("value")
    for name, words in facts["choices"].items():
        table.add_row(name.replace("_", "-"), words)
    table.add_section()
    for kind in facts["layers"]:
        words = f"{kind['attention']} attention, {kind['mlp']}, {kind['positions']}"
        table.add_row(f"layers {kind['layers']}", words + (f" ({kind['count']} layers)" if kind["count"] > 1 else ""))
    table.add_section()
    for name, value in _cost_rows(facts):
        table.add_row(name, value)
    table.caption = "counted from the config: matrix products only, a multiply-add is two operations"
    return table


def describe_text(config, length=None, dtype="bfloat16", title=None, width=110):
    """The table of `describe_table` as plain text."""
    from rich.console import Console

    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(describe_table(config, length, dtype, title))
    return stream.getvalue()
