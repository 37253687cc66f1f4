"""Memory plans of encoder-decoders: what autograd keeps of both stacks, what devices hold, what cannot be divided."""

import json

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForSeq2SeqLM, VariantsSeq2SeqConfig, cli
from hf_variants.analysis import count_parameters, kv_cache_bytes, plan_memory
from hf_variants.analysis.activations import layer_memory, outer_memory
from hf_variants.analysis.memory_batch import Batch
from hf_variants.analysis.memory_plan import divided_widths
from tests.analysis.measured import Held
from tests.variants import BASE, TOGGLES, tiny_pair

ALIGNED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# name -> toggle of the encoder, of the decoder, keys of both
PAIRS = {
    "grouped": ("gqa", "gqa", {}),
    "latent": ("mla", "mla", {}),
    "latent normed": ("mla", "mla_qk_head", {}),
    "relative": ("gqa", "gqa", {"position_embedding_type": "relative", "rope_parameters": None}),
    "terms": ("gqa", "sinks_softcap_sliding", {}),
    "alibi": ("alibi", "alibi", {}),
    "normed heads": ("qk_head", "qk_head", {}),
    "normed channels": ("gqa", "gqa", {"qk_norm": "full", "norm_type": "layernorm"}),
    "clipped": ("gqa", "gqa", {"clip_qkv": 3.0}),
    "gated": ("gqa", "gqa", {"attn_output_gate": "channel"}),
    "dropout": ("gqa", "gqa", {"hidden_dropout": 0.1}),
    "attention dropout": ("gqa", "gqa", {"attention_dropout": 0.1}),
    "layer norms": ("gqa", "gqa", {"norm_type": "layernorm"}),
    "experts": ("moe", "moe", ALIGNED),
    **{
        topology: ("gqa", "gqa", {"norm_placement": topology})
        for topology in ("pre_normed_residual", "post", "post_ln", "sandwich", "parallel", "parallel_two_norms")
    },
}


def pair_of(name):
    encoder, decoder, keys = PAIRS[name]
    return tiny_pair(encoder, decoder, keys)


def kept_by_autograd(config, rows, states, length, autocast=False):
    """Bytes of the distinct tensors between forward and backward pass, and of the states, without the model's own."""
    torch.manual_seed(0)
    model = VariantsForSeq2SeqLM(config).train()
    inputs = {"input_ids": torch.randint(1, config.encoder.vocab_size, (rows, states))}
    inputs["labels"] = torch.randint(1, config.vocab_size, (rows, length))
    held = Held(model)
    with held.saved(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        held.add(model(**inputs).encoder_last_hidden_state)
    return held.bytes


def counted(config, rows, states, length, dtype="float32"):
    read, batch = Batch(rows, states, dtype), Batch(rows, length, dtype)
    encoder = sum(layer_memory(config.encoder, plan, read).total for plan in config.encoder.layer_plan())
    decoder = sum(layer_memory(config.decoder, plan, batch, read).total for plan in config.decoder.layer_plan())
    outside = (*outer_memory(config.encoder, read, headless=True), *outer_memory(config.decoder, batch))
    return encoder + decoder + sum(outside)


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_counted_of_both_stacks_is_what_autograd_keeps(name):
    config = pair_of(name)
    assert counted(config, 2, 18, 12) == pytest.approx(kept_by_autograd(config, 2, 18, 12), rel=0.01)


@pytest.mark.parametrize("name", ["grouped", "latent"])
def test_under_autocast_each_projection_casts_the_states_for_itself(name):
    from hf_variants.analysis.counts import distinct_layers, layer_sizes

    config = pair_of(name)
    casts = 2 * sum(
        size.matrix * times
        for stack in config.stacks
        for plan, times in distinct_layers(stack)
        for size in layer_sizes(stack, plan).values()
    )
    kept = kept_by_autograd(config, 2, 18, 16, autocast=True)
    assert counted(config, 2, 18, 16, "mixed") + casts == pytest.approx(kept, rel=0.05)


SMALL = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}


def small(**keys):
    joined = {name: keys.pop(name) for name in ("share_embeddings", "tie_word_embeddings") if name in keys}
    decoder = {**SMALL, "num_key_value_heads": 2, "num_hidden_layers": 3, **keys}
    return VariantsSeq2SeqConfig(encoder={**SMALL, **keys}, decoder=decoder, decoder_start_token_id=1, **joined)


@pytest.mark.parametrize("joined", [{}, {"share_embeddings": True}, {"share_embeddings": True, "tie_word_embeddings": True}])
def test_states_are_those_of_the_model(joined):
    config, total = small(**joined), count_parameters(small(**joined)).total
    plan = plan_memory(config, length=8, encoder_length=12, dtype="float32", optimizer="adamw")
    assert plan["parameters"] == total == sum(weight.numel() for weight in VariantsForSeq2SeqLM(config).parameters())
    assert plan["held"] == {"weights": 4 * total, "optimizer": 8 * total}
    assert plan["phases"][-1]["parts"]["gradients"] == 4 * total
    names = [phase["phase"] for phase in plan["phases"]]
    walk = ["decoder layer 2", "decoder layer 1", "decoder layer 0", "decoder embedding", "encoder layer 1", "encoder layer 0"]
    assert names == ["loss", *(f"backward, {name}" for name in (*walk, "encoder embedding")), "optimizer"]


def test_both_lengths_and_checkpointing_count():
    plan = lambda **options: plan_memory(small(), dtype="float32", **options)["phases"]  # noqa: E731
    activations = lambda phases, name: next(p["parts"]["activations"] for p in phases if p["phase"] == name)  # noqa: E731
    base = {"length": 16, "encoder_length": 16}
    for longer in ({"length": 32}, {"encoder_length": 32}):
        assert activations(plan(**{**base, **longer}), "loss") > activations(plan(**base), "loss") * 1.2
    assert plan(length=16) == plan(**base)
    assert activations(plan(**base, checkpointing=True), "loss") < activations(plan(**base), "loss") / 2
    # what the encoder keeps waits until its own turn
    waits = activations(plan(**base), "backward, decoder embedding")
    assert waits > activations(plan(**base), "backward, encoder layer 0") > 0


def test_devices_divide_both_stacks():
    config, total = small(), 4 * count_parameters(small()).total
    held = lambda **options: plan_memory(config, length=8, dtype="float32", **options)["held"]  # noqa: E731
    assert held(devices=4, sharding="ddp") == {"weights": total, "optimizer": 2 * total}
    assert held(devices=4, sharding="zero1")["optimizer"] == total // 2
    assert held(devices=4, sharding="fsdp")["weights"] == total // 4
    # tables and the head are divided as far as 97 rows go; norms stay whole
    parts = count_parameters(config).parts
    tables = sum(parts[name] for name in ("encoder_embedding", "decoder_embedding", "decoder_lm_head"))
    norms = sum(size for name, size in parts.items() if name.endswith("norms"))
    split = (total // 4 - tables - norms) // 2
    assert held(devices=2, tensor_parallel=2)["weights"] == 4 * (split + norms + tables // 97 * 49)
    experts = small(num_experts=4, moe_intermediate_size=32)
    parts = count_parameters(experts).parts
    routed = parts["encoder_experts"] + parts["decoder_experts"]
    laid_out = plan_memory(experts, length=8, dtype="float32", devices=4, sharding="ddp", expert_parallel=4)["held"]
    assert laid_out["weights"] == 4 * (count_parameters(experts).total - routed * 3 // 4)


@pytest.mark.parametrize("joined", [{}, {"share_embeddings": True}, {"share_embeddings": True, "tie_word_embeddings": True}])
def test_a_table_has_the_gradients_of_its_rows_on_a_device(joined):
    """What waits beside the gradients while the last table is differentiated, under accumulation the whole of it."""
    for size, rows in ((1, 97), (2, 49)):
        options = {"length": 8, "dtype": "float32", "devices": size, "tensor_parallel": size, "accumulation": 2}
        last, step = (phase["parts"]["gradients"] for phase in plan_memory(small(**joined), **options)["phases"][-2:])
        assert last - step == rows * 32 * 4


def test_generating_keeps_both_caches():
    options = {"length": 16, "encoder_length": 48, "rows": 2, "dtype": "bfloat16"}
    plan = plan_memory(small(), purpose="generate", **options)
    phases = {phase["phase"]: phase["parts"] for phase in plan["phases"]}
    assert phases["prefill"]["cache"] == kv_cache_bytes(small(), 16, 2, 2, 48)
    own = kv_cache_bytes(small(), 16, 2, 2, 0)
    assert phases["decoding"]["cache"] == kv_cache_bytes(small(), 16, 2, 2, 48) + own // 8
    assert "cache" not in phases["encoding"] and phases["encoding"]["workspace"] > 0
    half = plan_memory(small(), purpose="generate", devices=2, tensor_parallel=2, **options)["phases"][1]["parts"]
    assert half["cache"] == phases["prefill"]["cache"] // 2


def test_a_decoder_alone_reads_states_that_are_given():
    decoder = VariantsConfig(**SMALL, add_cross_attention=True, cross_attention_hidden_size=24)
    short, long = (plan_memory(decoder, length=8, encoder_length=n, dtype="float32")["phases"][0] for n in (8, 64))
    keys = 2 * 2 * 32 * 56 * 4  # of two layers
    assert long["parts"]["activations"] - short["parts"]["activations"] == keys + 24 * 56 * 4


REFUSED = [
    ({"encoder_length": 0}, "encoder_length=0 must be a whole number"),
    ({"encoder_length": 1.5}, "encoder_length=1.5 must be"),
    (
        {"devices": 4, "tensor_parallel": 4},
        r"does not divide decoder.num_key_value_heads=2; sizes that divide this model are \[1, 2\]",
    ),
    ({"devices": 3, "tensor_parallel": 3}, "tensor_parallel=3 does not divide encoder.num_key_value_heads=4"),
    ({"devices": 2, "expert_parallel": 2}, "needs routed experts"),
]


@pytest.mark.parametrize("options, match", REFUSED)
def test_what_cannot_be_planned_of_a_pair(options, match):
    with pytest.raises(ValueError, match=match):
        plan_memory(small(), length=8, **options)


def test_an_encoder_length_without_an_encoder_is_refused():
    with pytest.raises(ValueError, match="encoder_length=8 is what an encoder reads for a decoder, and there is none"):
        plan_memory(VariantsConfig(**SMALL), length=8, encoder_length=8)


# keys -> what tensor parallelism of 3 cannot cut evenly, by the names that the message gives
UNEVEN = {
    "intermediate_size=100": {"intermediate_size": 100},
    "num_key_value_heads=4 and num_attention_heads=4": {"num_attention_heads": 4, "hidden_size": 32},
    "moe_intermediate_size=32": {"num_experts": 4, "moe_intermediate_size": 32},
    "shared_expert_intermediate_size=40": {
        **{"num_experts": 4, "moe_intermediate_size": 33, "num_shared_experts": 1, "shared_expert_intermediate_size": 40},
    },
    "intermediate_size=101": {**TOGGLES["mla"], "intermediate_size": 101},
}


@pytest.mark.parametrize("words", UNEVEN)
def test_widths_that_do_not_divide_are_named_with_the_sizes_that_do(words):
    keys = {"num_attention_heads": 6, "hidden_size": 36, "intermediate_size": 96, **UNEVEN[words]}
    config = VariantsConfig(**{**SMALL, **keys})
    with pytest.raises(ValueError, match="tensor_parallel=3 does not divide") as refused:
        plan_memory(config, length=8, devices=3, tensor_parallel=3)
    assert words in str(refused.value)
    sizes = json.loads(str(refused.value).rpartition("are ")[2])
    assert sizes == [n for n in range(1, 200) if not any(number % n for number in divided_widths(config).values())]
    for size in sizes:
        assert plan_memory(config, length=8, devices=size, tensor_parallel=size)["peak"]["bytes"] > 0


def test_attention_that_stays_whole_keeps_its_whole_cache():
    keys = {**BASE, "attention_sinks": True, "num_attention_heads": 4, "num_key_value_heads": 1}
    options = {"purpose": "generate", "length": 16, "dtype": "bfloat16"}
    one, two = (plan_memory(VariantsConfig(**keys), devices=n, tensor_parallel=n, **options) for n in (1, 2))
    assert two["phases"][0]["parts"]["cache"] == one["phases"][0]["parts"]["cache"]


def test_command_line_of_a_pair(tmp_path, capsys):
    (tmp_path / "pair.json").write_text(json.dumps(small().to_dict()))
    words = ["plan-memory", str(tmp_path / "pair.json"), "--length", "8", "--encoder-length", "24", "--dtype", "float32"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--plot", str(tmp_path / "plan.png")])
    out = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0 and "1 x 24 of the encoder" in out and (tmp_path / "plan.png").stat().st_size > 1000
    with pytest.raises(SystemExit):
        cli.main([*words, "--json"])
    options = {"length": 8, "encoder_length": 24, "dtype": "float32", "sharding": None}
    expected = [plan_memory(small(), checkpointing=each, **options) for each in (False, True)]
    assert json.loads(capsys.readouterr().out) == expected
