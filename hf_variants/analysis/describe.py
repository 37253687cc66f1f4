"""What a config is and costs, as plain data and as a table.

Notable here: `describe` returns only JSON types, so the command line, the model card and the report show the same
numbers; equal layers share one line.
"""

from io import StringIO

from ..modeling.vocabulary import RELATIVE
from .cache_size import cross_numbers_per_state, kv_cache_size
from .counts import STACK_NAMES, count_parameters
from .diagram import diagram, layer_rows
from .flops import flops_per_token
from .layer_pattern import spans

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


def check_dtype(dtype):
    """Refuse a dtype whose size is not known. Raises ValueError."""
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype={dtype!r} is unknown; choose from {sorted(DTYPE_BYTES)}")


def usual_lengths(config, length=None):
    """Lengths at which costs are shown: `length` (None: the context), a quarter, a 16th and a 64th of it, shortest first."""
    longest = config.max_position_embeddings if length is None else length
    return sorted({max(longest // 4**step, 1) for step in range(4)})


def costs_by_length(config, lengths, dtype="bfloat16"):
    """[{length, flops_per_token, flops_of_last_token, kv_bytes}, ...] for tokens counts `lengths`."""
    check_dtype(dtype)
    return [
        {
            "length": length,
            "flops_per_token": flops_per_token(config, length).total,
            "flops_of_last_token": flops_per_token(config, length, "decode").total,
            "kv_bytes": kv_cache_size(config, length, dtype_bytes=DTYPE_BYTES[dtype]).bytes,
        }
        for length in lengths
    ]


def native_families(config):
    """Model types of the native families that mean exactly this config, best known first."""
    from hf_variants.convert.config_source import expressible_families

    return expressible_families(config)


def describe(config, length=None, dtype="bfloat16"):
    """Facts and costs of a config.

    Args:
        config: a config of the family.
        length: tokens at which FLOPs and cache are counted; None takes `max_position_embeddings`.
        dtype: of weights and cache, a key of `DTYPE_BYTES`.

    Returns:
        dict of JSON types with `choices`, `layers`, `parameters`, `flops`, `kv_cache`, and the last two `by_length`.

    Raises:
        ValueError: for an unknown dtype or a length below 1.
    """
    check_dtype(dtype)
    size = DTYPE_BYTES[dtype]
    length = config.max_position_embeddings if length is None else length
    parameters = count_parameters(config)
    prefill, decode = (flops_per_token(config, length, mode) for mode in ("prefill", "decode"))
    return {
        "choices": _choices(config),
        "layers": layer_kinds(config),
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
        "kv_cache": cache_facts(config, length, dtype),
        "by_length": costs_by_length(config, usual_lengths(config, length), dtype),
    }


def cache_facts(config, length, dtype="bfloat16"):
    """The `kv_cache` of `describe`."""
    cache = kv_cache_size(config, length, dtype_bytes=DTYPE_BYTES[dtype])
    return {
        "length": length,
        "dtype": dtype,
        "bytes": cache.bytes,
        "bytes_per_token": cache.per_token,
        "bytes_per_token_beyond_windows": cache.per_token_beyond,
        "bytes_per_encoder_state": int(cross_numbers_per_state(config.stacks[-1]) * DTYPE_BYTES[dtype]),
        "share_of_multi_head": _share_of_multi_head(config, cache),
    }


def _share_of_multi_head(config, cache):
    """Cache bytes relative to full attention with one key and value per query head of the same widths."""
    config = config.stacks[-1]
    width = config.num_attention_heads * (config.query_head_dim + config.value_head_dim)
    full = width * config.num_hidden_layers * (cache.length + cache.encoder_length) * cache.batch_size * cache.dtype_bytes
    return cache.bytes / full if full else 0.0


def _attention_words(config):
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    if config.attention_type == "mla":
        queries = f"queries {config.q_lora_rank}" if config.q_lora_rank else "queries not compressed"
        return f"MLA, {heads} heads, latent {config.kv_lora_rank} + rotary key {config.qk_rope_head_dim}, {queries}"
    name = "MHA" if kv == heads else "MQA" if kv == 1 else "GQA"
    return f"{name}, {heads} query and {kv} key-value heads of {config.head_dim}"


def _position_words(config):
    if config.position_embedding_type in RELATIVE:
        name = config.position_embedding_type.replace("_", " and ")
        words = f"{config.relative_attention_num_buckets} buckets up to {config.relative_attention_max_distance} tokens"
        return f"{name}, {words}" + (" in each layer" if config.relative_attention_per_layer else "")
    if config.position_embedding_type != "rope":
        doubled = ", angles in float64" if config.sinusoid_dtype == "float64" else ""
        return config.position_embedding_type + (", scaled, in bfloat16" if config.alibi_scaled_bf16 else doubled)
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


def by_stack(config, facts):
    """{name: value} of `facts(stack)` for a config of one stack; of both, the names behind that of their stack."""
    if len(config.stacks) == 1:
        return facts(config)
    named = zip(STACK_NAMES, config.stacks, strict=True)
    return {f"{name} {fact}": value for name, stack in named for fact, value in facts(stack).items()}


def _choices(config):
    choices = by_stack(config, _choices_of_stack)
    if len(config.stacks) > 1:
        flags = {
            "one token table": config.share_embeddings,
            "tied head": config.tie_word_embeddings,
            "constants on the logits": config.final_logits_bias,
        }
        start = config.decoder_start_token_id if config.decoder_start == "token" else "the last label"
        choices["both"] = ", ".join([f"decoder starts with {start}", *(name for name, on in flags.items() if on)])
    return choices


def _choices_of_stack(config):
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
    return kind if plan.cross_width is None else f"{kind} and cross", plan.mlp, rope


def layer_kinds(config):
    """Kinds of layers in order of first use: [{"layers": "0-2", "count": 3, "attention": "full", ...}, ...]."""
    if len(config.stacks) > 1:
        return [
            {**kind, "layers": f"{name} {kind['layers']}"}
            for name, stack in zip(STACK_NAMES, config.stacks, strict=True)
            for kind in layer_kinds(stack)
        ]
    kinds = {}
    for plan in config.layer_plan():
        kinds.setdefault(_layer_words(plan), []).append(plan.index)
    described = []
    for (attention, mlp, rope), indices in kinds.items():
        positions = rope if config.position_embedding_type == "rope" else config.position_embedding_type
        described.append(
            {
                "layers": spans(indices),
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


def _parameter_rows(facts):
    parameters = facts["parameters"]
    total = parameters["total"]
    yield "all", f"{total:,}", f"{parameters['active']:,}", "100.0%"
    for part, count in parameters["parts"].items():
        yield (
            f"  {part.replace('_', ' ')}",
            f"{count:,}",
            f"{parameters['active_parts'].get(part, 0):,}",
            f"{count / total:.1%}",
        )


def _choice_table(facts, title):
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column("fact", style="bold", max_width=24)
    table.add_column("value")
    for name, words in facts["choices"].items():
        table.add_row(name.replace("_", "-"), words)
    table.add_section()
    for kind in facts["layers"]:
        words = f"{kind['attention']} attention, {kind['mlp']}, {kind['positions']}"
        table.add_row(f"layers {kind['layers']}", words + (f" ({kind['count']} layers)" if kind["count"] > 1 else ""))
    if "native_families" in facts:
        table.add_section()
        table.add_row("native families", ", ".join(facts["native_families"]) or "none means exactly this")
    return table


def _drawing(config, head=True):
    from rich.table import Table
    from rich.text import Text

    if len(config.stacks) > 1:
        drawn = []
        for name, stack in zip(STACK_NAMES, config.stacks, strict=True):
            drawn += [Text(f"\n{name}", style="bold"), *_drawing(stack, head=name == "decoder")]
        return tuple(drawn)
    positions = None if config.position_embedding_type == "rope" else config.position_embedding_type

    def words(plan):
        attention, mlp, rope = _layer_words(plan)
        return f"{attention} attention, {mlp}, {positions or rope}"

    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(min_width=14)
    rows.add_column()
    equations, feed_forward = list(layer_rows(config))[:2], list(layer_rows(config))[2:]
    for name, what in (*equations, ("attention", _attention_words(config)), *feed_forward):
        rows.add_row(name, what)
    return Text("\n".join(["", *diagram(config, words, head), ""])), rows


def _count_table(facts):
    from rich.table import Table

    parameters, dtype = facts["parameters"], facts["kv_cache"]["dtype"]
    table = Table(caption_justify="left")
    for name in ("parameters", "total", "active per token", "share"):
        table.add_column(name, justify="left" if name == "parameters" else "right", no_wrap=True)
    for row in _parameter_rows(facts):
        table.add_row(*row)
    buffers = f" Beside them {parameters['buffers']:,} values that no gradient changes." if parameters["buffers"] else ""
    active = parameters["active"] / parameters["total"]
    table.caption = f"{human_bytes(parameters['bytes'])} as {dtype}, {active:.1%} active per token.{buffers}"
    return table


def _length_table(facts):
    from rich.table import Table

    cache = facts["kv_cache"]
    # an encoder decodes nothing and caches nothing
    decodes = cache["bytes_per_token"] > 0
    columns = ["tokens", "FLOPs per token, mean", "FLOPs of the last, from the cache", f"KV cache, {cache['dtype']}"]
    table = Table(caption_justify="left")
    for name in columns if decodes else columns[:2]:
        table.add_column(name, justify="right")
    for row in facts["by_length"]:
        flops = [human_count(row[name]) for name in ("flops_per_token", "flops_of_last_token")]
        cells = [f"{row['length']:,}", *flops, human_bytes(row["kv_bytes"])]
        table.add_row(*(cells if decodes else cells[:2]))
    how = "Counted from the config: forward pass, matrix products only, a multiply-add is two operations."
    table.caption = f"{_cache_words(cache)} {how}" if decodes else how
    return table


def _cache_words(cache):
    beyond = cache["bytes_per_token_beyond_windows"]
    past = "" if beyond == cache["bytes_per_token"] else f", {beyond:,} once every window is full"
    share = f"at {cache['length']:,} tokens {cache['share_of_multi_head']:.1%} of full multi-head attention"
    across = cache["bytes_per_encoder_state"]
    states = f", and {across:,} per state of the encoder, of which there are as many here" if across else ""
    return f"KV bytes per token: {cache['bytes_per_token']:,}{past}{states}; {share}."


def describe_table(config, length=None, dtype="bfloat16", title=None, families=False):
    """The facts of `describe` as rich tables with a diagram between them; `families` adds the native ones it equals."""
    facts = describe(config, length, dtype)
    if families:
        facts["native_families"] = native_families(config)
    return facts_table(config, facts, title)


def facts_table(config, facts, title=None):
    """The `facts` that `describe` gave of `config`, with `native_families` or without, as `describe_table` shows them."""
    from rich.console import Group

    return Group(_choice_table(facts, title), *_drawing(config), "", _count_table(facts), "", _length_table(facts))


def describe_text(config, length=None, dtype="bfloat16", title=None, width=110):
    """What `describe_table` shows, as plain text."""
    from rich.console import Console

    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(describe_table(config, length, dtype, title))
    return stream.getvalue()
