"""Fine-tuning end to end on a tiny model with experts: what is learned, reached, merged, resumed, converted and refused."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from hf_variants.finetune import FinetuneSpec, finetune, load_adapter
from hf_variants.training import build_spec
from tests.finetune.tiny import WORDS, mapping, write_model, write_records

pytest.importorskip("trl")
IDS = torch.arange(3, 40).view(1, -1)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("base"))


def run(model_path, folder, *task_and_method, lines=None, **keys):
    spec = build_spec(FinetuneSpec, mapping(model_path, folder, *task_and_method, **keys))
    return finetune(spec, announce=[].append if lines is None else lines.append)


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.fixture(scope="module")
def chatting(model_path, tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("lora"), []
    result = run(model_path, folder, "supervised", "lora", lines=lines, trainer={"max_steps": 6, "save_steps": 4})
    return folder, result, lines


def test_an_adapter_learns_reaches_the_experts_and_merges(chatting, model_path):
    folder, result, lines = chatting
    assert result["after"]["loss"] < result["before"]["loss"] and result["steps"] == 6
    assert result["trainable"] < result["parameters"] and result["examples"] == {"train": 16, "eval": 4}
    assert any("experts" in name for name in load_file(folder / "out" / "adapter_model.safetensors"))
    merged = AutoModelForCausalLM.from_pretrained(folder / "out" / "merged")
    torch.testing.assert_close(logits(merged), logits(load_adapter(folder / "out")), rtol=0, atol=1e-4)
    assert (logits(merged) - logits(AutoModelForCausalLM.from_pretrained(model_path))).abs().max() > 1e-3
    assert result["merged"]["max_difference"] < 1e-4
    assert "{% " in AutoTokenizer.from_pretrained(folder / "out" / "merged").chat_template.replace("{%-", "{% ")
    assert [sample["prompt"] for sample in result["samples"]] and not list((folder / "out").glob("*.bin"))


def test_the_card_tells_of_the_run_and_of_the_model(chatting, model_path):
    folder, result, _ = chatting
    for place in (folder / "out", folder / "out" / "merged"):
        card = (place / "README.md").read_text()
        assert "| learning rate | 0.005, cosine" in card and "| seed | 0 |" in card and "`supervised.jsonl`" in card
        assert f"| loss | {result['before']['loss']:,.4g} | {result['after']['loss']:,.4g} |" in card
        section = card[card.index("run begin") : card.index("run end")]
        assert str(folder) not in section and model_path not in section and (place / "loss.svg").is_file()
    assert "| `num_experts` |" in card


@pytest.mark.parametrize("form", ["messages", "prompt"])
def test_exactly_the_answers_are_learned(model_path, tmp_path, form):
    from hf_variants.finetune.adapters import adapter_config
    from hf_variants.finetune.examples import read_examples
    from hf_variants.finetune.run import load_base
    from hf_variants.finetune.tokenizers import open_tokenizer
    from hf_variants.finetune.trainers import arguments_of, make_trainer

    keys = mapping(model_path, tmp_path)
    if form == "prompt":
        rows = [{"prompt": f"Say {word}:", "completion": f" {word} it is"} for word in WORDS * 3]
        write_records(tmp_path / "supervised.jsonl", rows)
    spec = build_spec(FinetuneSpec, keys)
    tokenizer, examples = open_tokenizer(spec, model_path), read_examples(spec.data, "supervised")
    model = load_base(spec, model_path, [], tokenizer)
    trainer = make_trainer(spec, arguments_of(spec), model, tokenizer, examples, adapter_config(spec))
    answers = [{"messages": lambda row: row["messages"][1]["content"], "prompt": lambda row: row["completion"]}[form]]
    for row, source in zip(trainer.train_dataset, examples.train, strict=True):
        learned = [label for label in row["labels"] if label != -100]
        assert tokenizer.decode(learned) == answers[0](source) + tokenizer.eos_token
        start = row["labels"].index(learned[0])
        assert row["input_ids"][start : start + len(learned)] == learned


def test_a_finished_run_is_skipped_and_a_changed_one_refused(chatting, model_path):
    folder, result, _ = chatting
    lines, steps = [], {"max_steps": 6, "save_steps": 4}
    assert run(model_path, folder, "supervised", "lora", lines=lines, trainer=steps) == result
    assert lines == [f"finetune: already finished in {folder / 'out'}, skipped"]
    with pytest.raises(ValueError, match="adapter.r: 16 -> 8"):
        run(model_path, folder, "supervised", "lora", trainer=steps, adapter={"r": 8})


def test_a_run_killed_after_its_last_step_makes_no_further_one(chatting, model_path):
    folder, result, _ = chatting
    before = load_file(folder / "out" / "adapter_model.safetensors")
    record = json.loads((folder / "out" / "stage.json").read_text())
    (folder / "out" / "stage.json").write_text(json.dumps({**record, "status": "started", "result": None}))
    lines = []
    again = run(model_path, folder, "supervised", "lora", lines=lines, trainer={"max_steps": 6, "save_steps": 4})
    assert f"training: continues from {folder / 'out' / 'checkpoint-6'}" in lines
    assert again["steps"] == 6 and again["after"] == result["after"] and again["before"] == result["before"]
    after = load_file(folder / "out" / "adapter_model.safetensors")
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"trainer": {"max_stps": 1}}, "did you mean 'max_steps'.*names of SFTConfig"),
        ({"trainer": {"max_length": 9}}, "trainer.max_length=9 does not belong here; use data.sequence_length"),
        ({"trainer": {"loss_type": "ntl"}}, "task='supervised'.*ntl"),
        ({"data": {"sequence_length": 200}}, "sequence_length=200 exceeds max_position_embeddings=128"),
        ({"chat_template": "absent.jinja"}, "chat_template='absent.jinja' is not a file"),
        ({"toggles": {"qk_nrm": "head"}}, "did you mean 'qk_norm'"),
        ({"gguf_file": "x.gguf"}, "holds no model: .*x.gguf"),
        ({"trainer": {"dataloader_drop_last": True, "per_device_train_batch_size": 64}}, "do not fill one batch"),
    ],
)
def test_mistakes_stop_before_training(model_path, tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        run(model_path, tmp_path, **keys)
    assert not list(tmp_path.glob("out/checkpoint-*"))


def test_a_base_that_was_trained_again_is_another_base(model_path, tmp_path):
    import shutil

    from hf_variants.finetune.base import base_fingerprint

    def fingerprint(path):
        return base_fingerprint(build_spec(FinetuneSpec, mapping(str(path), tmp_path)))

    shutil.copytree(model_path, tmp_path / "copy")
    assert fingerprint(tmp_path / "copy") == fingerprint(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3)
    model.save_pretrained(tmp_path / "copy")
    assert fingerprint(tmp_path / "copy") != fingerprint(model_path)


def test_a_template_for_texts_is_refused(model_path, tmp_path):
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    with pytest.raises(ValueError, match="has no effect: the examples are texts, not messages"):
        run(model_path, tmp_path, "preference", chat_template=str(tmp_path / "template.jinja"))


@pytest.mark.slow
def test_two_processes_fine_tune_one_adapter(model_path, tmp_path):
    """The shipped script as torchrun starts it."""
    import subprocess
    import sys

    import yaml

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(mapping(model_path, tmp_path, "supervised", "lora")))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "recipes/finetune.py"]
    done = subprocess.run([*command, str(recipe)], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    stage = json.loads((tmp_path / "out" / "stage.json").read_text())
    assert stage["status"] == "finished" and stage["result"]["steps"] == 2
    assert stage["result"]["merged"]["max_difference"] < 1e-4 and done.stdout.count("parameters are trained") == 1


def test_a_tokenizer_beyond_the_vocabulary_is_refused(tmp_path):
    path = write_model(tmp_path / "base", vocab_size=300)
    with pytest.raises(ValueError, match="ids up to 32[0-9], but the model's vocab_size=300"):
        run(path, tmp_path)


def test_4_bit_weights_keep_their_gradient_after_an_evaluation(model_path, tmp_path):
    from hf_variants.finetune.adapters import adapter_config
    from hf_variants.finetune.run import load_base
    from hf_variants.finetune.trainers import adapted

    spec = build_spec(FinetuneSpec, mapping(model_path, tmp_path, "supervised", "qlora"))
    model = adapted(load_base(spec, model_path, [], None), adapter_config(spec))

    def gradients():
        model.train().zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.requires_grad}

    before = gradients()
    logits(model)
    after = gradients()
    assert any(".experts.3." in name for name in before)
    for name, gradient in before.items():
        torch.testing.assert_close(after[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dora", "qlora"])
def test_other_adapters_reach_the_experts_and_merge(model_path, tmp_path, method):
    result = run(model_path, tmp_path, "supervised", method, trainer={"max_steps": 6})
    names = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert all(any(f".experts.{index}.down_proj.lora_A" in name for name in names) for index in range(4))
    assert any("magnitude" in name for name in names) == (method == "dora")
    assert result["after"]["loss"] < result["before"]["loss"]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "merged")
    torch.testing.assert_close(logits(merged), logits(load_adapter(tmp_path / "out")), rtol=0, atol=1e-4)
    limit = 1e-4 if method == "dora" else 0.2
    assert result["merged"]["max_difference"] < limit


@pytest.mark.slow
def test_dropout_on_experts_takes_them_apart(model_path, tmp_path):
    lines = []
    run(model_path, tmp_path, "supervised", "lora", lines=lines, adapter={"dropout": 0.1})
    assert any("experts are taken apart" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_preferences(model_path, tmp_path, method):
    result = run(model_path, tmp_path, "preference", method, trainer={"max_steps": 12, "beta": 0.5})
    assert result["after"]["loss"] < result["before"]["loss"] and result["after"]["rewards/accuracies"] > 0.9
    if method == "lora":
        assert result["merged"]["max_difference"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("task", ["supervised", "preference", "classification"])
def test_a_loss_that_is_no_number_stops_the_run(model_path, tmp_path, task):
    from hf_variants.training.errors import RunStopped

    wild = {"learning_rate": 1e30, "max_grad_norm": 1e30, "warmup_steps": 0, "max_steps": 6, "save_steps": 1}
    with pytest.raises(RunStopped, match=r"step \d: the .* is (nan|inf).*the last good checkpoint is .*checkpoint-"):
        run(model_path, tmp_path, task, trainer=wild)


@pytest.mark.slow
def test_more_steps_go_on_where_the_run_ended_when_allowed(model_path, tmp_path):
    run(model_path, tmp_path, "supervised", "lora", trainer={"max_steps": 2, "save_steps": 2})
    lines, steps = [], {"max_steps": 4, "save_steps": 2}
    with pytest.raises(ValueError, match="trainer.max_steps: 2 -> 4.*allow_changes=true"):
        run(model_path, tmp_path, "supervised", "lora", trainer=steps)
    result = run(model_path, tmp_path, "supervised", "lora", lines=lines, trainer=steps, allow_changes=True)
    assert result["steps"] == 4 and any("continues from" in line and "checkpoint-2" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_classification(model_path, tmp_path, method):
    result = run(model_path, tmp_path, "classification", method, trainer={"max_steps": 30})
    assert result["classes"] == ["earth", "sky"] and result["after"]["accuracy"] == 1.0
    folder = tmp_path / "out" if method == "full" else tmp_path / "out" / "merged"
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for word, name in (("sun", "sky"), ("sea", "earth")):
        scores = model(**tokenizer(f"here is the {word}", return_tensors="pt")).logits
        assert model.config.id2label[scores.argmax().item()] == name


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "dora"])
def test_continued_pretraining(model_path, tmp_path, method):
    result = run(model_path, tmp_path, "continued", method, data={"sequence_length": 32}, trainer={"max_steps": 8})
    assert result["after"]["perplexity"] < result["before"]["perplexity"]
    folder = tmp_path / "out" if method == "full" else tmp_path / "out" / "merged"
    assert logits(AutoModelForCausalLM.from_pretrained(folder)).isfinite().all()


@pytest.mark.slow
def test_a_native_checkpoint_is_converted_on_the_way_and_can_go_back(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    from hf_variants.convert import to_native
    from tests.tokenizers_for_tests import byte_level_bpe

    tokenizer = byte_level_bpe()
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    lines, toggles = [], {"qk_norm": "head"}
    result = run(str(tmp_path / "llama"), tmp_path, "supervised", "lora", lines=lines, toggles=toggles)
    assert any("4 weights are fresh" in line for line in lines) and result["merged"]["max_difference"] < 1e-4
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "merged")
    assert merged.config.qk_norm == "head" and to_native(merged, "qwen3").config.model_type == "qwen3"
