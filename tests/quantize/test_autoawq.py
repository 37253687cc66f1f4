"""AutoAWQ in an interpreter of its own: what is handed over, what comes back, and what is said when it does not."""

import json
import os
import shutil
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hf_variants.convert import from_native
from hf_variants.jobs import QuantizeSpec
from hf_variants.jobs.quantization import check_quantization
from hf_variants.quantize import autoawq, autoawq_worker, quantize_checkpoint
from hf_variants.quantize.batches import probe_batch
from hf_variants.quantize.store import leftovers
from hf_variants.training.spec_parsing import build_spec
from tests.quantize.quantized import calibration, fitting
from tests.variants import draw_ids, far

FACTS = {"autoawq": "0.2.9", "transformers": "4.51.3", "torch": "2.6.0", "model_types": ["llama", "mistral"]}
SHAPE = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ROPE = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
GOOD = 'cp {given}/logits.safetensors "$2"; echo \'{{"event": "loaded"}}\'\n'
WRITTEN = 'cp -r {given}/output "$2/output"; echo \'{{"event": "written"}}\'\n'


def slow(*values):
    """One more of a kind that is tried already."""
    return pytest.param(*values, marks=pytest.mark.slow)


def native(**overrides):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(**{**SHAPE, "max_position_embeddings": 64, "rope_parameters": ROPE, **overrides})
    ).eval()


def interpreter(folder, work="", check=None):
    """A program that answers as an interpreter with AutoAWQ would, by lines of a shell."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "facts.json").write_text(json.dumps(FACTS))
    check = f"cat {folder}/facts.json" if check is None else check
    file = folder / "python"
    file.write_text(f'#!/bin/sh\nif [ "$2" = check ]; then\n{check}\nexit $?\nfi\n{work}')
    file.chmod(0o755)
    return str(file)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A native checkpoint, what an AutoAWQ would make of it (here: rounded codes), and the logits of its probe."""
    folder = tmp_path_factory.mktemp("made")
    native().save_pretrained(folder / "full")
    quantize_checkpoint(folder / "full", folder / "output", method="rtn", group_size=32, to="native", dtype=torch.float32)
    model = native()
    with torch.no_grad():
        logits = model(probe_batch(from_native(model))["input_ids"]).logits
    save_file({"logits": logits.contiguous()}, folder / "logits.safetensors")
    return folder


def quantize(made, target, work, **options):
    python = interpreter(target.parent / "environment", work.format(given=made))
    settings = {"group_size": 32, "calibration": calibration(8), "dtype": torch.float32, **options}
    return quantize_checkpoint(made / "full", target, producer="autoawq", producer_python=python, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["variants", slow("native")])
def test_what_it_wrote_is_brought_in_measured_and_checked(to, made, tmp_path):
    seen = []
    work = GOOD + 'echo \'{{"event": "layer", "done": 1, "of": 2}}\'\n' + WRITTEN
    options = {"to": to, "eval_ids": draw_ids(4, 16), "progress": lambda *event: seen.append(event)}
    report = quantize(made, tmp_path / "q", work, **options)
    assert seen == [(1, 2, "AutoAWQ, layer 0"), (1, 2, "model.layers.0"), (2, 2, "model.layers.1")]
    assert report["producer"] == {
        "name": "autoawq",
        "autoawq": "0.2.9",
        "transformers": "4.51.3",
        "torch": "2.6.0",
        "clip": True,
    }
    assert report["perplexity"]["awq"] == pytest.approx(report["perplexity"]["rtn"]) and report["quantized_modules"] == 14
    assert report["calibration"]["tokens"] == calibration(8).numel() and report["max_logit_difference"] < 1e-4
    assert json.loads((tmp_path / "q" / "quantization_report.json").read_text()) == report
    if to == "variants":
        assert "groups of 32, by AutoAWQ 0.2.9 |" in (tmp_path / "q" / "README.md").read_text()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(made / "output", dtype=torch.float32)
    assert ours.config.model_type == ("llama" if to == "native" else "variants")
    with torch.no_grad():
        assert far(ours(draw_ids(2, 16)).logits, theirs(draw_ids(2, 16)).logits) < 1e-5
    assert leftovers(tmp_path / "q") == []


def _without_a_tensor(output):
    file = output / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, file)


def _cut_short(output):
    file = output / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _another_embedding(output):
    file = output / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"] += 1
    save_file(tensors, file)


def _left_dense(output):
    file = output / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.self_attn.o_proj"
    shape = tensors[f"{name}.qweight"].shape
    tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(name)}
    save_file({**tensors, f"{name}.weight": torch.ones(shape[1] * 8, shape[0])}, file)


def _settings(**changes):
    def change(output):
        file = output / "config.json"
        config = json.loads(file.read_text())
        config["quantization_config"] |= changes
        file.write_text(json.dumps(config))

    return change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_a_tensor, r"not whole: it lacks \['model.layers.1.mlp.up_proj.scales'\]"),
        slow(_cut_short, "model.safetensors cannot be read"),
        slow(_another_embedding, "changed model.embed_tokens.weight"),
        (_left_dense, r"left dense, or coded, other matrices .*\['model.layers.0.self_attn.o_proj'\]"),
        (_settings(bits=3), r"wrote \{'bits': 3\}, but asked for were \{'bits': 4\}"),
        slow(_settings(group_size=64), r"wrote \{'group_size': 64\}, but asked for were \{'group_size': 32\}"),
        slow(_settings(version="gemv"), r"wrote \{'version': 'gemv'\}"),
        slow(lambda output: (output / "config.json").unlink(), "wrote no config.json"),
    ],
)
def test_what_it_wrote_wrongly_is_named(spoil, message, made, tmp_path):
    given = tmp_path / "given"
    shutil.copytree(made, given)
    spoil(given / "output")
    with pytest.raises(RuntimeError, match=message):
        quantize(given, tmp_path / "q", GOOD + WRITTEN)
    assert not (tmp_path / "q").exists() and leftovers(tmp_path / "q") == []


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (GOOD + "echo 'Error: no room' >&2\nexit 3\n", "ended with code 3 after loaded; it said: Error: no room"),
        slow("exit 1\n", "ended with code 1 after nothing; it said: nothing"),
        (GOOD + "kill -9 $$\n", "was ended by signal 9 after loaded"),
        slow(GOOD, "ended with code 0 after loaded"),
        (GOOD + "echo hello; exec sleep 60\n", "no line of its account: 'hello'"),
        slow(GOOD + "seq 10000 >&2\nexit 1\n", r"it said: \.\.\. .*9999 10000$"),
    ],
)
def test_how_it_failed_is_told_with_the_end_of_what_it_said(work, message, made, tmp_path):
    with pytest.raises(RuntimeError, match=message):
        quantize(made, tmp_path / "q", work)
    assert not (tmp_path / "q").exists() and leftovers(tmp_path / "q") == []


def test_another_reading_of_the_checkpoint_stops_it_before_it_quantizes(made, tmp_path):
    given = tmp_path / "given"
    shutil.copytree(made, given)
    save_file({"logits": load_file(made / "logits.safetensors")["logits"] * 1.5}, given / "logits.safetensors")
    with pytest.raises(RuntimeError, match=r"transformers 4\.51\.3 beside AutoAWQ reads this checkpoint otherwise"):
        quantize(given, tmp_path / "q", GOOD + "exec sleep 60\n")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            "echo \"ModuleNotFoundError: No module named 'awq'\" >&2; exit 1",
            r'no AutoAWQ .*"autoawq==0.2.9".*No module named .awq.',
        ),
        ("echo hello", "no AutoAWQ that can be imported.*It said: hello"),
        ("echo '{}'", "no AutoAWQ that can be imported"),
    ],
)
def test_an_interpreter_without_it_is_refused_with_what_to_install(check, message, made, tmp_path):
    python = interpreter(tmp_path, check=check)
    with pytest.raises(ValueError, match=message):
        quantize_checkpoint(
            made / "full", tmp_path / "q", calibration=calibration(), producer="autoawq", producer_python=python
        )


@pytest.mark.parametrize(
    ("name", "overrides", "options", "message"),
    [
        ("gqa", {"qk_norm": "head"}, {}, "takes no model_type='qwen3', the native type of this model"),
        slow("moe_shared_gate", {}, {}, "names experts otherwise"),
        slow("gqa", {}, {"group_size": 256}, "in_features=64 is not a multiple of group_size=256"),
        ("gqa", {}, {}, r"clip=True: AutoAWQ clips 64 outputs at a time.*v_proj \(32\)"),
    ],
)
def test_members_that_it_cannot_take(name, overrides, options, message, tmp_path):
    fitting(name, **overrides).save_pretrained(tmp_path / "full")
    python = interpreter(tmp_path / "environment", "exit 9\n")
    options = {"group_size": 32, "calibration": calibration(8), **options}
    with pytest.raises(ValueError, match=message):
        quantize_checkpoint(tmp_path / "full", tmp_path / "q", producer="autoawq", producer_python=python, **options)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"producer_python": None},
            'runs in an interpreter of its own.*pip install torch "transformers==4.51.3" "autoawq==0.2.9"',
        ),
        ({"producer_python": "/absent/python"}, "producer_python='/absent/python' does not exist"),
        ({"producer_python": __file__}, "is not executable"),
        ({"producer": "own"}, "producer_python=.* means nothing to producer='own'"),
        ({"method": "rtn"}, "method='rtn' is nothing that producer='autoawq' makes"),
        ({"group_size": -1}, "group_size=-1 is nothing that producer='autoawq' makes"),
        ({"symmetric": True, "max_bytes": 5}, "symmetric and max_bytes mean nothing to producer='autoawq'"),
        ({"leave_unquantized": ["*.o_proj"], "compensate": False}, "leave_unquantized and compensate mean nothing"),
        ({"pairs": {"source": "x.jsonl"}}, "pairs mean nothing to producer='autoawq'"),
    ],
)
def test_keys_that_it_does_not_read_are_refused_before_anything_is_read(keys, message):
    given = {"model_path": "absent", "output_dir": "absent-too", "producer": "autoawq", "producer_python": sys.executable}
    with pytest.raises(ValueError, match=message):
        check_quantization(build_spec(QuantizeSpec, {**given, "calibration": "x.txt", **keys}))


def test_the_worker_hands_over_our_tokens_and_reads_the_older_config_as_ours(monkeypatch, tmp_path):
    model, asked, told = native(), {}, []
    ours, rows = from_native(model), draw_ids(3, 16)
    probe = probe_batch(ours)["input_ids"]
    autoawq._write_job(tmp_path, model, FACTS, {"group_size": 32, "clip": False}, rows, probe)
    older = json.loads((tmp_path / "source" / "config.json").read_text())
    assert older["rope_theta"] == 500.0 and older["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert "rope_parameters" not in older and older["torch_dtype"] == "float32"
    quantizer = ModuleType("awq.quantize.quantizer")
    quantizer.AwqQuantizer = type("AwqQuantizer", (), {})

    def load(folder, **options):
        asked["load"] = options
        work = lambda *args, **given: asked.update(given) or list(quantizer.tqdm(["first", "second"]))  # noqa: E731
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=options["torch_dtype"])
        return SimpleNamespace(model=loaded, quantize=work, save_quantized=lambda folder: asked.update(saved=folder))

    awq = SimpleNamespace(__version__="0.2.9", AutoAWQForCausalLM=SimpleNamespace(from_pretrained=load))
    table = SimpleNamespace(AWQ_CAUSAL_LM_MODEL_MAP={"llama": 0, "no_such_type": 0})
    modules = {"awq": awq, "awq.models": awq, "awq.models.auto": table, "awq.quantize": SimpleNamespace(quantizer=quantizer)}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    autoawq_worker.main(["check"], told.append)
    assert told.pop()["model_types"] == ["llama"]
    autoawq_worker.main([str(tmp_path)], told.append)
    assert told == [
        {"event": "loaded"},
        {"event": "layer", "done": 1, "of": 2},
        {"event": "layer", "done": 2, "of": 2},
        {"event": "written"},
    ]
    assert asked["calib_data"] == rows.tolist() and asked["max_calib_samples"] == 3 and asked["max_calib_seq_len"] == 16
    assert asked["quant_config"] == {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    assert issubclass(asked["quantizer_cls"], quantizer.AwqQuantizer)
    assert asked["apply_clip"] is False and asked["load"]["trust_remote_code"] is False
    assert asked["saved"] == str(tmp_path / "output")
    autoawq._compare(tmp_path, autoawq._full_logits(ours), FACTS)
    with torch.no_grad():
        assert far(load_file(tmp_path / "logits.safetensors")["logits"], model(probe).logits) < 1e-5


class _Searching:
    """Tries scales as autoawq 0.2.9 does: what it goes back to is kept by `.cpu()`."""

    def _compute_best_scale(self, x, w_mean, x_mean, module, linears, output):
        kept = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
        for scale in (2.0, 3.0):
            for linear in linears:
                linear.weight.mul_(scale)
                linear.weight.data = linear.weight.data + 1
            module.load_state_dict(kept)
        return scale


@pytest.mark.parametrize("kept", [True, False])
def test_weights_are_whole_again_after_autoawqs_search_on_a_cpu(kept):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    before = module[0].weight.detach().clone()
    quantizer = (autoawq_worker._with_copies(_Searching) if kept else _Searching)()
    with torch.no_grad():
        assert quantizer._compute_best_scale(None, None, None, module, [module[0]], None) == 3.0
    # without our copies they would not be
    assert torch.equal(module[0].weight, before) == kept
    assert "state_dict" not in vars(module)


@pytest.mark.slow
@pytest.mark.skipif("HF_VARIANTS_AUTOAWQ_PYTHON" not in os.environ, reason="HF_VARIANTS_AUTOAWQ_PYTHON names no interpreter")
def test_the_real_autoawq(tmp_path):
    native(intermediate_size=256).save_pretrained(tmp_path / "full")
    assert AutoConfig.from_pretrained(tmp_path / "full").rope_parameters == ROPE
    report = quantize_checkpoint(
        tmp_path / "full",
        tmp_path / "q",
        group_size=32,
        calibration=calibration(8),
        eval_ids=draw_ids(4, 16),
        producer="autoawq",
        producer_python=os.environ["HF_VARIANTS_AUTOAWQ_PYTHON"],
    )
    assert report["producer"]["name"] == "autoawq" and report["quantized_modules"] == 14
    assert report["perplexity"]["awq"] < 1.2 * report["perplexity"]["full"]
