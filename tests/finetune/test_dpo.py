"""Preference runs of the recipe are TRL's: losses, rewards and weights of `DPOTrainer` on the native Llama, whichever way the
reference is kept; and the reference stays the model that the run began with.
"""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hf_variants.convert import to_native
from hf_variants.finetune import FinetuneSpec, finetune
from hf_variants.finetune.adapters import adapter_config
from hf_variants.finetune.base import prepare_base
from hf_variants.finetune.examples import read_examples
from hf_variants.finetune.run import load_base
from hf_variants.finetune.tokenizers import open_tokenizer
from hf_variants.finetune.trainers import arguments_of, make_trainer
from hf_variants.training import build_spec
from tests.finetune.tiny import mapping, write_model
from tests.tokenizers_for_tests import byte_level_bpe

trl = pytest.importorskip("trl")
COMPARED = ("loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected")


@pytest.fixture(scope="module")
def native_path(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("native"), byte_level_bpe()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    heads = {"num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def spec_of(path, folder, method, **trainer):
    trainer = {"max_steps": 3, "eval_steps": 3, "beta": 0.5, "learning_rate": 1e-2, "report_to": "none", **trainer}
    return build_spec(FinetuneSpec, mapping(path, folder, "preference", method, trainer=trainer))


def ours(spec):
    """The trainer that the recipe makes."""
    from transformers import AutoConfig

    base = prepare_base(spec, AutoConfig.from_pretrained(spec.model_path), announce=lambda line: None)
    tokenizer, examples = open_tokenizer(spec, base), read_examples(spec.data, spec.task)
    model = load_base(spec, base, [], tokenizer)
    return make_trainer(spec, arguments_of(spec), model, tokenizer, examples, adapter_config(spec))


def plain(spec):
    """TRL's own on the native model, with the same arguments."""
    tokenizer, examples = open_tokenizer(spec, spec.model_path), read_examples(spec.data, spec.task)
    model = AutoModelForCausalLM.from_pretrained(spec.model_path)
    parts = {"train_dataset": examples.train, "eval_dataset": examples.eval, "processing_class": tokenizer}
    return trl.DPOTrainer(model, args=arguments_of(spec), **parts, peft_config=adapter_config(spec))


def history(trainer):
    """The compared numbers of every line, evaluations before the first step and after the last included."""
    trainer.train()
    names = [prefix + name for name in COMPARED for prefix in ("", "eval_")]
    return [{name: line[name] for name in names if name in line} for line in trainer.state.log_history]


@pytest.mark.parametrize(
    ("method", "precompute"),
    [
        ("full", False),
        ("lora", True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("full", True), ("lora", False))),
    ],
)
def test_a_run_is_that_of_trl_on_the_native_model(native_path, tmp_path, method, precompute):
    for name in ("ours", "plain"):
        (tmp_path / name).mkdir()
    options = {"precompute_ref_log_probs": precompute}
    first, second = (spec_of(native_path, tmp_path / name, method, **options) for name in ("ours", "plain"))
    family, native = ours(first), plain(second)
    if method == "lora":
        adapters = {name: weight for name, weight in family.model.named_parameters() if "lora_" in name}
        twins = {name: weight for name, weight in native.model.named_parameters() if "lora_" in name}
        assert adapters.keys() == twins.keys() and len(adapters) == 2 * 7 * 2
        for name, weight in twins.items():
            weight.data.copy_(adapters[name].data)
    # the reference: another model, an adapter switched off, or numbers that were computed before
    assert (family.ref_model is None) == (native.ref_model is None) == (method == "lora" or precompute)
    found, expected = history(family), history(native)
    assert len(found) == len(expected) and sum(map(len, expected)) == 6 * 5
    for line, other in zip(found, expected, strict=True):
        assert line == pytest.approx(other, rel=1e-4, abs=1e-4)
    # before the first step policy and reference are one
    assert found[0]["eval_loss"] == pytest.approx(math.log(2), abs=1e-6) and found[0]["eval_rewards/margins"] == 0
    assert found[-2]["eval_loss"] != pytest.approx(math.log(2), abs=1e-3)
    trained = to_native(family.model).state_dict() if method == "full" else dict(family.model.named_parameters())
    for name, weight in native.model.named_parameters():
        if weight.requires_grad:
            torch.testing.assert_close(trained[name], weight, rtol=0, atol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("toggles", [{}, {"qk_norm": "head"}])
def test_the_reference_of_a_run_that_goes_on_is_its_beginning(tmp_path, monkeypatch, toggles):
    """Rewards are against the base also after a kill, where the base was toggled or converted on the way too."""
    from hf_variants.training import trainer as trainers

    path = write_model(tmp_path / "model")

    def run(name, last=None):
        (tmp_path / name).mkdir(exist_ok=True)
        keys = {"max_steps": 4, "save_steps": 2, "eval_steps": 4}
        spec = build_spec(FinetuneSpec, mapping(path, tmp_path / name, "preference", trainer=keys, toggles=toggles))
        original = trainers.VariantsTrainer.training_step

        def step(self, *args, **kwargs):
            if self.state.global_step == last:
                raise KeyboardInterrupt
            return original(self, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(trainers.VariantsTrainer, "training_step", step)
            return finetune(spec, announce=lambda line: None)

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("cut", last=3)
    resumed = run("cut")
    assert resumed["after"] == whole["after"] and whole["before"]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    folders = [tmp_path / name / "out" for name in ("whole", "cut")]
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    logs = [json.loads((folder / "training_log.json").read_text()) for folder in folders]
    assert logs[0][-2].get("rewards/margins") == logs[1][-2].get("rewards/margins")
