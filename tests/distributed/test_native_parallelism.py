"""transformers' own parallelism on two gloo processes: logits, losses and saved weights equal those of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hf_variants import VariantsConfig
from hf_variants.analysis import plan_memory
from tests.distributed.native import RATE, STEPS, outputs_of

ROOT = Path(__file__).parents[2]
BASE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 32, "num_shared_experts": 1, "mlp_layer_types": ["dense", "sparse"]}
BIAS = {**EXPERTS, "router_scoring": "sigmoid", "router_balance": "bias", "router_bias_update_rate": 0.01}
MLA = {"attention_type": "mla", "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16}
MLA |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
PLAIN = {**EXPERTS, "mlp_type": "plain", "num_shared_experts": 0}
TP, FSDP, EP = {"tp_size": 2}, {"fsdp_size": 2}, {"fsdp_size": 2, "ep_size": 2}

ENCODER = {"is_causal": False}
CLASSES = {"num_labels": 3, "pad_token_id": 0}
HEADS = {
    "masked": "AutoModelForMaskedLM",
    "classes": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "answers": "AutoModelForQuestionAnswering",
}
# name: (toggles, DistributedConfig, whether it is trained); a word of HEADS in the name says the head, else it is causal
CASES = {
    "tp_gqa": ({**WINDOWS, "qk_norm": "head", "attention_bias": True}, TP, True),
    "tp_mla_experts": ({**MLA, **BIAS}, TP, True),
    "tp_sinks": ({"attention_sinks": True}, TP, True),
    "tp_alibi": ({"position_embedding_type": "alibi"}, TP, False),
    "tp_qk_full": ({"qk_norm": "full"}, TP, True),
    "tp_plain_experts": (PLAIN, TP, False),
    "tp_expert_bias": ({**EXPERTS, "expert_bias": True}, TP, False),
    "tp_one_key_value_head": ({**MLA, "num_key_value_heads": 4, "attention_sinks": True}, TP, False),
    "fsdp_gqa_tied": ({**WINDOWS, "tie_word_embeddings": True}, FSDP, True),
    "fsdp_mla_experts": ({**MLA, **BIAS}, FSDP, True),
    "ep_experts": (BIAS, EP, True),
    "ep_expert_bias": ({**EXPERTS, "expert_bias": True}, EP, True),
    "ep_plain_experts": (PLAIN, EP, True),
    "tp_ep_experts": (BIAS, {"tp_size": 2, "ep_size": 2}, True),
    "pp_gqa": (WINDOWS, {"pp_size": 2}, False),
    "tp_masked": ({**ENCODER, "lm_head_act": "gelu"}, TP, True),
    "fsdp_masked": ({**ENCODER, "tie_word_embeddings": True}, FSDP, True),
    "tp_classes": (CLASSES, TP, True),
    "ep_classes": ({**CLASSES, **BIAS}, EP, True),
    "tp_tokens": ({**ENCODER, "num_labels": 5}, TP, True),
    "tp_answers": (ENCODER, TP, True),
    "fsdp_answers": (ENCODER, FSDP, True),
}


def auto_of(name):
    """Name of the Auto class of a case."""
    return next((auto for word, auto in HEADS.items() if word in name), "AutoModelForCausalLM")


def batch_for(auto):
    """Inputs and labels as a head takes them."""
    ids = torch.randint(1, 64, (4, 20))
    labels = {
        "AutoModelForSequenceClassification": {"labels": torch.tensor([0, 2, 1, 2])},
        "AutoModelForTokenClassification": {"labels": ids % 5},
        "AutoModelForQuestionAnswering": {"start_positions": torch.arange(4), "end_positions": torch.arange(6, 10)},
    }
    return {"input_ids": ids, **labels.get(auto, {"labels": ids.clone()})}


def reference(model, batch):
    """Losses of the same training in one process; the model is trained in place."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    model.train()
    for _ in range(STEPS):
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    tasks, models, inputs = {}, {}, {}
    for name, (toggles, parallel, train) in CASES.items():
        torch.manual_seed(0)
        auto = auto_of(name)
        model = getattr(transformers, auto).from_config(VariantsConfig(**{**BASE, **toggles})).eval()
        batch = batch_for(auto)
        with torch.no_grad():
            logits = outputs_of(model, batch)
        save_file({**batch, "logits": logits}, tmp_path / f"{name}.safetensors")
        model.save_pretrained(tmp_path / name)
        tasks[name] = {"parallel": parallel, "train": train, "auto": auto}
        models[name], inputs[name] = model, batch
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*launch, "-m", "tests.distributed.native", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads((tmp_path / "results.json").read_text())
    wrong = {}
    for name, (_, parallel, train) in CASES.items():
        result = results[name]
        if "error" in result or result["difference"] > 1e-5 or (result["sharded"] == 0 and "pp_size" not in parallel):
            wrong[name] = result
        elif train:
            for what, value in differences(models[name], inputs[name], result, tmp_path / f"{name}-trained"):
                wrong[f"{name}: {what}"] = value
        if "pp_size" not in parallel and "error" not in result and auto_of(name) == "AutoModelForCausalLM":
            check_plan(models[name].config, parallel, result["local"])
        kind = type(models[name]).__name__
        if result.get("classes", [None])[0] != (f"FSDP{kind}" if "fsdp_size" in parallel else kind):
            wrong[f"{name}: class"] = result
    assert not wrong, json.dumps(wrong, indent=1)


def check_plan(config, parallel, local):
    """The plan of memory against the weights that rank 0 really holds, as numbers."""
    options = {"tensor_parallel": parallel.get("tp_size", 1), "expert_parallel": parallel.get("ep_size", 1)}
    sharding = "fsdp" if "fsdp_size" in parallel else "none"
    planned = plan_memory(config, length=8, dtype="float32", devices=2, sharding=sharding, **options)["held"]["weights"] / 4
    if sharding == "fsdp":
        # transformers keeps the head and the last norm whole, and of a tied head two copies, where plain FSDP2 divides all
        table = config.vocab_size * config.hidden_size
        planned += config.hidden_size / 2 + table * (1.5 if config.tie_word_embeddings else 0.5)
    # biases of divided projections are counted whole
    assert planned == pytest.approx(local, rel=0.01)


def differences(model, batch, result, folder):
    """What differs between training on two processes and on one, as (name, what)."""
    losses = reference(model, batch)
    if result["losses"] != pytest.approx(losses, abs=1e-5):
        yield "losses", [result["losses"], losses]
    saved = type(model).from_pretrained(folder).state_dict()
    for key, tensor in model.state_dict().items():
        distance = (saved[key] - tensor).abs().max().item()
        if distance > 1e-5:
            yield key, distance
    stored = load_file(folder / "model.safetensors").keys()
    expected = model.state_dict().keys() - (model.all_tied_weights_keys or {}).keys()
    if stored != expected:
        yield "names", sorted(stored ^ expected)
    files = {path.name for path in folder.iterdir()}
    if "modeling_variants.py" not in files or any(file.startswith("_fsdp") for file in files):
        yield "files", sorted(files)
