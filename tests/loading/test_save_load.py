"""Saving and loading: bitwise for every toggle, tied heads, dtypes, shards, devices, tokenizers, split loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.distributed.configuration_utils import DistributedConfig

from hf_variants import VariantsForCausalLM, VariantsModel
from hf_variants.modeling.variants_base import check_tensor_parallel
from hf_variants.registration import AUTO_CLASSES
from tests.tokenizers_for_tests import HARD_TEXTS, byte_level_bpe, metaspace_bpe
from tests.variants import EXPERTS, MLA, TOGGLES, build, draw_ids, far, tiny

ROOT = Path(__file__).resolve().parents[2]


def logits_of(model, ids=None):
    with torch.no_grad():
        return model.eval()(draw_ids(2, 19) if ids is None else ids)[0]


@pytest.mark.parametrize("name", TOGGLES)
def test_save_load_is_bitwise(tmp_path, name):
    model = build(tiny(name))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is VariantsForCausalLM
    stored, found = model.state_dict(), loaded.state_dict()
    assert stored.keys() == found.keys()
    assert all(torch.equal(found[key], value) and found[key].dtype == value.dtype for key, value in stored.items())
    assert torch.equal(logits_of(model), logits_of(loaded))
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == loaded.config.to_dict()
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert json.loads((again / "config.json").read_text()) == json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize("auto", AUTO_CLASSES, ids=lambda auto: auto.__name__)
def test_every_auto_class_loads_its_head(tmp_path, auto):
    model_class = AUTO_CLASSES[auto]
    causal = model_class.__name__ != "VariantsForMaskedLM"
    model = build(tiny("alternating", is_causal=causal, num_labels=4), model_class)
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path)
    assert type(loaded) is model_class
    assert torch.equal(logits_of(loaded), logits_of(model))


def test_stack_alone_from_a_model_with_a_head_and_back(tmp_path):
    model = build(tiny("mla"))
    model.save_pretrained(tmp_path / "head")
    stack = AutoModel.from_pretrained(tmp_path / "head")
    assert torch.equal(logits_of(stack), model.model(draw_ids(2, 19)).last_hidden_state)
    stack.save_pretrained(tmp_path / "stack")
    assert all(not key.startswith("model.") for key in load_file(tmp_path / "stack" / "model.safetensors"))
    assert torch.equal(logits_of(VariantsModel.from_pretrained(tmp_path / "stack")), logits_of(stack))


# ---- B39, B40: tied heads ----
@pytest.mark.parametrize("tie", [False, True])
def test_b39_tie_survives_save_and_reload(tmp_path, tie):
    model = build(tiny("gqa", tie_word_embeddings=tie))
    model.save_pretrained(tmp_path)
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tie
    loaded = VariantsForCausalLM.from_pretrained(tmp_path)
    assert (loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()) is tie
    assert torch.equal(logits_of(loaded), logits_of(model))


def test_b39_checkpoint_with_two_different_tensors_and_tie(tmp_path):
    """The file holds a head of its own: it is kept, never replaced by the embedding (nor drawn at random)."""
    model = build(tiny("gqa", tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    loaded = VariantsForCausalLM.from_pretrained(tmp_path, tie_word_embeddings=True)
    assert torch.equal(logits_of(loaded), logits_of(model))
    loaded.save_pretrained(tmp_path / "again")
    again = VariantsForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(logits_of(again), logits_of(model))


def test_b39_checkpoint_with_two_equal_tensors_and_tie_is_tied(tmp_path):
    model = build(tiny("tied"))
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = VariantsForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(logits_of(loaded), logits_of(model))


def test_b39_untied_config_over_a_tied_checkpoint_is_refused(tmp_path):
    build(tiny("tied")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"1 missing \(lm_head.weight\)"):
        VariantsForCausalLM.from_pretrained(tmp_path, tie_word_embeddings=False)


@pytest.mark.parametrize("model_class", AUTO_CLASSES.values(), ids=lambda cls: cls.__name__)
def test_b40_tied_keys_are_a_dict(model_class):
    keys = model_class._tied_weights_keys
    assert keys is None or isinstance(keys, dict)
    assert (keys == {"lm_head.weight": "model.embed_tokens.weight"}) is hasattr(model_class, "head")


# ---- dtypes, shards, devices ----
@pytest.mark.parametrize("name", ["gqa", "moe_bias_balance", "mla_yarn", "nested_theta"])
def test_bfloat16_is_stored_and_read_as_such(tmp_path, name):
    model = build(tiny(name)).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    wide = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for key, value in model.state_dict().items():
        assert torch.equal(wide.state_dict()[key], value.float()), key
    for key, value in loaded.state_dict().items():
        expected = torch.float32 if key.endswith("e_score_correction_bias") else torch.bfloat16
        assert value.dtype == expected, key
    # frequencies are no weights: they are computed in fp32 whatever the weights' dtype
    frequencies = [value for key, value in loaded.named_buffers() if "inv_freq" in key]
    assert all(value.dtype == torch.float32 for value in frequencies)
    # the median: rounding sends single tokens to another expert
    expected = logits_of(wide)
    assert (logits_of(loaded) - expected).abs().median() < 0.03 * expected.abs().median()


@pytest.mark.parametrize("name", ["gqa", "moe_groups", "tied"])
def test_sharded(tmp_path, name):
    model = build(tiny(name))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert torch.equal(logits_of(VariantsForCausalLM.from_pretrained(tmp_path)), logits_of(model))
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("model-*.safetensors"))


@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
@pytest.mark.parametrize("name", ["gqa", "mla_longrope", "alibi", "sinusoidal", "moe_bias_balance"])
def test_device_map(tmp_path, name, device_map):
    model = build(tiny(name))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=device_map)
    assert not any(value.is_meta for value in [*loaded.parameters(), *loaded.buffers()])
    assert far(logits_of(loaded.to("cpu")), logits_of(model)) <= 1e-5


@pytest.mark.parametrize("name", ["gqa", "mla_longrope", "moe_bias_balance", "learned"])
def test_layers_offloaded_to_disk(tmp_path, name):
    model = build(tiny(name))
    model.save_pretrained(tmp_path)
    device_map = {"model": "cpu", "lm_head": "cpu", "model.layers.1": "disk"}
    device_map = {key: value for key, value in device_map.items() if key != "model"}
    for child, _ in model.model.named_children():
        device_map.setdefault(f"model.{child}", "cpu")
    del device_map["model.layers"]
    device_map["model.layers.0"] = "cpu"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=device_map, offload_folder=tmp_path / "off")
    assert far(logits_of(loaded), logits_of(model)) <= 1e-5


def test_state_dict_with_a_config_instead_of_a_directory():
    model = build(tiny("gqa"))
    loaded = VariantsForCausalLM.from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert torch.equal(logits_of(loaded), logits_of(model))
    partial = {key: value for key, value in model.state_dict().items() if "k_proj" not in key}
    with pytest.raises(ValueError, match="k_proj"):
        VariantsForCausalLM.from_pretrained(None, config=model.config, state_dict=partial)


# ---- B42: tokenizers beside our config ----
@pytest.mark.parametrize("make", [byte_level_bpe, metaspace_bpe])
def test_b42_tokenizer_beside_our_config(tmp_path, make):
    tokenizer = make()
    tokenizer.save_pretrained(tmp_path)
    build(tiny("gqa")).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in HARD_TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert loaded(text, add_special_tokens=False)["input_ids"] == ids
        assert loaded.decode(ids) == tokenizer.decode(ids)
        if make is byte_level_bpe:
            assert loaded.decode(ids) == text


# ---- tensor parallelism ----
@pytest.mark.parametrize(
    "how",
    [{"tp_plan": "auto"}, {"tp_size": 4}, {"distributed_config": DistributedConfig(tp_size=4)}],
    ids=["plan", "size", "config"],
)
def test_b32_tensor_parallel_size_over_the_key_value_heads(tmp_path, monkeypatch, how):
    build(tiny("gqa")).save_pretrained(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    for loader in (VariantsForCausalLM, AutoModelForCausalLM):
        with pytest.raises(ValueError, match=r"size 4 does not divide num_key_value_heads=2 .* choose tp_size from \[1, 2\]"):
            loader.from_pretrained(tmp_path, **how)


@pytest.mark.parametrize(
    "overrides",
    [MLA, {"qk_norm": "full"}, {"attention_sinks": True}, {"position_embedding_type": "alibi"}]
    + [{**EXPERTS, "mlp_type": "plain"}, {**EXPERTS, "expert_bias": True}],
    ids=lambda given: "-".join(given)[:40],
)
def test_tensor_parallel_keeps_whole_what_it_cannot_split(overrides):
    """tests/distributed holds such models on two processes against one."""
    config = tiny("gqa", **overrides)
    check_tensor_parallel(config, 2)
    plan = build(config).tp_plan
    split = {name.rsplit(".", 1)[-1] for name in plan if "self_attn" in name}
    assert split == (set() if "num_experts" not in overrides else split) and any("mlp" in name for name in plan)
    assert not [name for name in plan if "mlp.experts" in name]


@pytest.mark.slow
def test_two_processes_give_the_logits_of_one(tmp_path):
    wide = {"moe_intermediate_size": 32}
    cases = {"gqa": {}, "qk_head": {}, "alternating": {}, "attention_bias": {}, "gated_bias": {}, "plain_bias": {}, "tied": {}}
    cases |= {"nested_longrope": {}, "moe_groups": wide, "moe_shared_gate": wide, "moe_bias_balance": wide, "mla": {}}
    task = {}
    for name, overrides in cases.items():
        model, ids = build(tiny(name, **overrides)), draw_ids(2, 21)
        save_file({"ids": ids, "logits": logits_of(model, ids)}, tmp_path / f"{name}.safetensors")
        model.save_pretrained(tmp_path / name)
        task[name] = [str(tmp_path / name), str(tmp_path / f"{name}.safetensors")]
    (tmp_path / "task.json").write_text(json.dumps(task))
    script = str(Path(__file__).with_name("load_split.py"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
    done = subprocess.run(
        [*launch, "task.json", "result.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        env=split_environment(),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["gqa"][1] == 12, "one of two key-value heads of 12 channels stands on each process"
    for name, (difference, _) in result.items():
        assert isinstance(difference, float) and difference <= 3e-5, f"{name}: {difference}"


def split_environment():
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
