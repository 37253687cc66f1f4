"""B21, B65: LoRA on "all-linear" reaches every projection and expert; merged, saved and cached models equal the live one."""

import copy
import subprocess
import sys

import pytest
import torch
from peft import LoHaConfig, LoraConfig, PeftModel, get_peft_model
from torch import nn

from hf_variants import VariantsForSequenceClassification
from tests.training_model.support import batch_of, sparse_model, trainer_of, uneven_rows

MIXED = {"num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_shared_experts": 1, "spread": 2.0}
CASES = {
    "intermediate < hidden": {},
    "intermediate > hidden": {"moe_intermediate_size": 80},
    "plain": {"mlp_type": "plain", "hidden_act": "gelu"},
    "biases": {"expert_bias": True, "router_bias": True},
    "one expert": {"num_experts": 1, "num_experts_per_tok": 1},
    "mla": {"attention_type": "mla", "num_key_value_heads": None, "kv_lora_rank": 10},
    "mla, compressed queries": {"attention_type": "mla", "num_key_value_heads": None, "q_lora_rank": 14},
    "bias balancing": {"router_balance": "bias"},
}


def adapted(model, **options):
    """`model` with a random adapter."""
    result = get_peft_model(model, LoraConfig(**{"r": 4, "target_modules": "all-linear", **options}))
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return result.eval()


def ids():
    return torch.stack([row["input_ids"] for row in uneven_rows(2)])


@torch.no_grad()
def logits_of(model):
    return model(ids()).logits


@pytest.mark.parametrize("name", CASES)
def test_b21_every_projection_and_expert_has_a_delta(name):
    model = sparse_model(**MIXED, **CASES[name])
    before = {key: parameter.clone() for key, parameter in model.named_parameters()}
    merged = adapted(copy.deepcopy(model)).merge_and_unload()
    same = {key for key, parameter in merged.named_parameters() if torch.equal(parameter, before[key])}
    matrices = {key for key, parameter in before.items() if parameter.dim() > 1 and not key.endswith("_bias")}
    routers = {f"model.layers.{index}.mlp.gate.weight" for index in (1, 2)}
    assert same & matrices == routers | {"model.embed_tokens.weight", "lm_head.weight"}
    for key in matrices - same:
        if ".experts." in key:  # each of the fused matrices, not only some
            assert (merged.get_parameter(key) != before[key]).flatten(1).any(1).all(), key


@pytest.mark.parametrize("name", CASES)
def test_b65_merged_saved_and_cached_equal_the_live_model(name, tmp_path):
    model = sparse_model(**MIXED, **CASES[name]).eval()
    live_model = adapted(copy.deepcopy(model))
    live = logits_of(live_model)
    assert (live - logits_of(model)).abs().max() > 0.05
    live_model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).eval()), live)
    with torch.no_grad():
        cache = live_model(ids()[:, :7], use_cache=True).past_key_values
        steps = [live_model(ids()[:, [t]], past_key_values=cache, use_cache=True).logits for t in range(7, 12)]
    assert (torch.cat(steps, dim=1) - live[:, 7:]).abs().max() < 1e-5
    merged = live_model.merge_and_unload()
    assert not [key for key in merged.state_dict() if "lora" in key]
    assert (logits_of(merged) - live).abs().max() < 1e-5


def test_b65_a_tied_table_trained_whole_is_merged_and_saved(tmp_path):
    """Of a tied table both copies are trained, or neither: merged and reloaded models say what the live one says."""
    model = sparse_model(**MIXED, tie_word_embeddings=True).eval()
    options = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    live_model = adapted(copy.deepcopy(model), **options)
    with torch.no_grad():
        live_model.get_input_embeddings().weight.add_(0.1 * torch.randn_like(live_model.get_input_embeddings().weight))
    live = logits_of(live_model)
    assert (live - logits_of(model)).abs().max() > 0.05
    live_model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).eval()), live)
    merged = live_model.merge_and_unload()
    assert (logits_of(merged) - live).abs().max() < 1e-5
    merged.save_pretrained(tmp_path / "merged")
    assert (logits_of(type(model).from_pretrained(tmp_path / "merged").eval()) - live).abs().max() < 1e-5


def test_b21_names_mean_dense_shared_and_routed_experts():
    model = adapted(sparse_model(**MIXED), target_modules=["gate_proj", "up_proj", "down_proj"])
    parents = {name.split(".lora_A")[0] for name, _ in model.named_parameters() if ".lora_A" in name}
    kinds = {parent.rpartition("mlp.")[2].replace(".base_layer", "").replace("_proj", "") for parent in parents}
    assert kinds == {"gate", "up", "down", "shared_experts.gate", "shared_experts.up", "shared_experts.down", "experts"}


def test_b21_a_pattern_reaches_experts():
    config = LoraConfig(r=2, target_modules=r".*\.experts\.\d+\.(gate|up|down)_proj", layers_to_transform=None)
    with pytest.warns(RuntimeWarning, match="no module was matched"):
        model = get_peft_model(sparse_model(**MIXED), config)
    assert len(model.peft_config["default"].target_parameters) == 4


def test_b21_part_of_a_fused_tensor_is_refused():
    with pytest.raises(ValueError, match=r"names a part of 'model.layers.1.mlp.experts.gate_up_proj'.*\['gate_proj'\] too"):
        get_peft_model(sparse_model(**MIXED), LoraConfig(target_modules=["up_proj"]))
    get_peft_model(sparse_model(**MIXED), LoraConfig(target_modules=["shared_experts.up_proj"]))


def test_b21_targets_left_out_are_pefts_own_error():
    with pytest.raises(ValueError, match="specify `target_modules`"):
        get_peft_model(sparse_model(**MIXED), LoraConfig())
    model = get_peft_model(sparse_model(**MIXED), LoraConfig(target_parameters=["gate_up_proj"]))
    assert len([name for name, _ in model.named_parameters() if "lora_A" in name]) == 2


def test_b21_attention_alone_leaves_experts():
    model = get_peft_model(sparse_model(**MIXED), LoraConfig(target_modules=["q_proj", "v_proj"]))
    assert not [name for name, _ in model.named_parameters() if "lora" in name and "mlp" in name]


def test_b21_the_router_on_request():
    model = adapted(sparse_model(**MIXED), target_parameters=["gate.weight"])
    adapters = [name for name, _ in model.named_parameters() if ".mlp.gate.lora_A" in name]
    assert len(adapters) == 2


def test_b21_other_methods_say_that_experts_stay_frozen():
    with pytest.warns(UserWarning, match="routed experts of this model are fused tensors and stay frozen"):
        get_peft_model(sparse_model(**MIXED), LoHaConfig(r=2, target_modules="all-linear"))


def test_b21_a_second_adapter_and_switching_off():
    model = sparse_model(**MIXED).eval()
    base = logits_of(model)
    both = adapted(model)
    first = logits_of(both)
    both.add_adapter("second", LoraConfig(r=3, target_modules="all-linear"))
    both.set_adapter("second")
    assert (logits_of(both) - base).abs().max() < 1e-5
    both.set_adapter("default")
    assert torch.equal(logits_of(both), first)
    with both.disable_adapter():
        assert torch.equal(logits_of(both), base)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_b21_trains_under_trainer(tmp_path, checkpointing):
    base = sparse_model(**MIXED, router_balance="aux_loss", router_aux_loss_coef=0.1)
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear"))
    frozen = {name: parameter.clone() for name, parameter in model.named_parameters() if not parameter.requires_grad}
    options = {"optim": "adamw_torch", "learning_rate": 1e-2, "max_steps": 3, "activation_checkpointing": checkpointing}
    trainer = trainer_of(model, uneven_rows(), tmp_path, **options)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    assert "aux_loss" in trainer.state.log_history[1]
    for name, parameter in model.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name]), name
        else:
            assert parameter.abs().sum() > 0, name


def test_b21_task_head_is_saved_not_adapted():
    model = sparse_model(VariantsForSequenceClassification, num_labels=3, **MIXED)
    config = LoraConfig(r=2, target_modules="all-linear", task_type="SEQ_CLS")
    adapted_model = get_peft_model(model, config)
    names = [name for name, parameter in adapted_model.named_parameters() if parameter.requires_grad and "score" in name]
    assert names == ["base_model.model.score.modules_to_save.default.weight"]


def test_lm_head_named_outright_is_adapted_and_trained():
    model = adapted(sparse_model(**MIXED), target_modules=["lm_head"])
    batch = batch_of(uneven_rows(4))
    model.train()(**batch).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    logits = model.eval()(batch["input_ids"]).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    assert model.train()(**batch).loss.item() == pytest.approx(expected.item(), abs=1e-5)


ORDERS = {
    "peft after the model": "import hf_variants; MODEL; import peft; CHECK",
    "peft first": "import peft; import hf_variants; MODEL; CHECK",
    "Trainer first": "import transformers.trainer; import hf_variants, peft; MODEL; CHECK",
}
MODEL = (
    "config = hf_variants.VariantsConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, "
    "num_experts=2); model = hf_variants.VariantsForCausalLM(config)"
)
CHECK = (
    "model = peft.get_peft_model(model, peft.LoraConfig(target_modules='all-linear')); "
    "assert len(model.peft_config['default'].target_parameters) == 2; import transformers.trainer; "
    "assert [c.__name__ for c in transformers.trainer.DEFAULT_CALLBACKS].count('ExpertMetricsCallback') == 1"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDERS)
def test_imports_in_any_order(name):
    code = ORDERS[name].replace("MODEL", MODEL).replace("CHECK", CHECK)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
