"""What a run survives: a stop at any step to equal bits, numbers that are none, a full disk, a dead Hub, corrupt records."""

import json
import resource
import shutil
import subprocess
import sys
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from hf_variants.training import RunStopped, pretrain
from tests.training.runs import quiet, spec_of, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@contextmanager
def callbacks(*added):
    """Every trainer made inside carries these callbacks."""
    from hf_variants.training import trainer

    original = trainer.VariantsTrainer.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        for callback in added:
            self.add_callback(callback)

    trainer.VariantsTrainer.__init__ = init
    try:
        yield
    finally:
        trainer.VariantsTrainer.__init__ = original


class Spy(TrainerCallback):
    """Notes the rows of every step; stops like a kill after step `last`; does `at_step[n](model)` before step n."""

    def __init__(self, last=None, at_step=None):
        self.rows, self.last, self.at_step, self.model = [], last, at_step or {}, None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.model = model
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, args, kwargs):
        if module.training:
            self.rows.append(kwargs["input_ids"].tolist())

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.last:
            raise KeyboardInterrupt
        self.at_step.get(state.global_step + 1, lambda model: None)(self.model)


def run(spec, spy, lines=None):
    with callbacks(spy):
        return pretrain(spec, quiet if lines is None else lines.append)


def test_ten_steps_are_five_and_five_to_the_bit(text, tmp_path):
    whole, first, second = Spy(), Spy(last=5), Spy()
    run(spec_of(text, tmp_path / "whole"), whole)
    with pytest.raises(KeyboardInterrupt):
        run(spec_of(text, tmp_path / "cut"), first)
    run(spec_of(text, tmp_path / "cut"), second)
    assert whole.rows == first.rows + second.rows and len(first.rows) == 5
    paths = [tmp_path / name / "checkpoint-10" for name in ("whole", "cut")]
    weights = [load_file(path / "model.safetensors") for path in paths]
    assert any("e_score_correction_bias" in name and tensor.any() for name, tensor in weights[0].items())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        states = [torch.load(path / name, weights_only=False) for path in paths]
        assert flat(states[0]) == flat(states[1]), name
    logs = [json.loads((path / "trainer_state.json").read_text())["log_history"] for path in paths]
    assert [line.get("loss") for line in logs[0]] == [line.get("loss") for line in logs[1]]


def flat(value):
    """A nested state as plain values that compare by bits."""
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [flat(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def infinite_output(model):
    module = model.model.layers[1].self_attn.o_proj
    module.register_forward_hook(lambda module, args, output: output * float("inf"))


def infinite_gradient(model):
    model.model.layers[0].self_attn.q_proj.weight.register_hook(lambda gradient: gradient * float("nan"))


def broken_weight(model):
    model.model.layers[1].self_attn.k_proj.weight.data[0, 0] = float("nan")


@pytest.mark.parametrize(
    ("damage", "what", "origin", "accumulate"),
    [
        pytest.param(
            infinite_output,
            "the loss is nan",
            "output that is not finite is that of model.layers.1.self_attn.o_proj",
            2,
            marks=pytest.mark.slow,
        ),
        (infinite_gradient, "the norm of the gradients is nan", "is that of model.layers.0.self_attn.q_proj.weight", 2),
        pytest.param(
            broken_weight,
            "the loss is nan",
            "the weight model.layers.1.self_attn.k_proj.weight is not finite",
            1,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_number_that_is_none_stops_the_run(text, tmp_path, damage, what, origin, accumulate):
    cut = {"per_device_train_batch_size": 4 // accumulate, "gradient_accumulation_steps": accumulate}
    with pytest.raises(RunStopped) as stopped:
        run(spec_of(text, tmp_path / "out", trainer=cut), Spy(at_step={7: damage}))
    message = str(stopped.value)
    assert message.startswith(f"step 7: {what}") and origin in message
    assert f"the last good checkpoint is {tmp_path / 'out' / 'checkpoint-5'}" in message
    saved = load_file(tmp_path / "out" / "checkpoint-5" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in saved.values())
    # a gentler rate, from the last good checkpoint
    lines = []
    result = pretrain(
        spec_of(text, tmp_path / "out", trainer={**cut, "learning_rate": 1e-3}, allow_changes=True), lines.append
    )
    assert result["steps"] == 10 and any("trainer.learning_rate: 0.01 -> 0.001" in line for line in lines)


def test_a_full_disk_harms_no_checkpoint(text, tmp_path):
    """Writes beyond a size fail in the kernel, as on a full disk, while checkpoint 10 is written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(model):
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))

    try:
        with pytest.raises(RunStopped, match=r"checkpoint-10 could not be written.*last good checkpoint is .*checkpoint-5"):
            run(spec_of(text, tmp_path / "out"), Spy(at_step={10: fill}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "out" / "checkpoint-10").exists()
    result = pretrain(spec_of(text, tmp_path / "out"), quiet)
    assert result["steps"] == 10


@pytest.mark.slow
def test_a_dead_hub_harms_nothing(text, tmp_path, monkeypatch, caplog):
    from huggingface_hub import HfApi
    from transformers import Trainer

    def upload(self, *args, run_as_future=False, **kwargs):
        error = OSError("the Hub does not answer")
        if not run_as_future:
            raise error
        job = Future()
        job.set_exception(error)
        return job

    monkeypatch.setattr(HfApi, "upload_folder", upload)
    monkeypatch.setattr(Trainer, "init_hf_repo", lambda self, **kwargs: setattr(self, "hub_model_id", "me/run"))
    trainer = {"push_to_hub": True, "hub_strategy": "every_save"}
    result = pretrain(spec_of(text, tmp_path / "out", trainer=trainer), quiet)
    assert result["steps"] == 10 and result["failed_uploads"] >= 3
    assert "the Hub does not answer" in caplog.text
    assert (tmp_path / "out" / "checkpoint-10" / "trainer_state.json").is_file()


def test_corrupt_records_are_skipped_counted_and_limited(text, tmp_path):
    documents = [part for part in open(text).read().split("\n\n")]
    lines = [json.dumps({"text": document}).encode() for document in documents] * 3
    lines[4:4] = [b'{"text": "cut', b'{"text": 3}', b'{"text": "\xff"}']
    (tmp_path / "data.jsonl").write_bytes(b"\n".join(lines))
    said = []
    source = {"data": {"source": str(tmp_path / "data.jsonl"), "corrupt_limit": 0.06}, "trainer": {"max_steps": 1}}
    result = pretrain(spec_of(None, tmp_path / "out", **source), said.append)
    assert result["corrupt_records"] == 3
    (line,) = [line for line in said if "corrupt" in line]
    assert "3 of 63 records are corrupt" in line and "line 5: not JSON" in line and "'text' is a int" in line
    source["data"]["corrupt_limit"] = 0.04
    with pytest.raises(ValueError, match=r"3 of 63 records are corrupt, more than the share data.corrupt_limit=0.04"):
        pretrain(spec_of(None, tmp_path / "other", **source), quiet)
    assert not (tmp_path / "other").exists()


BAD = {
    "one token per row": ({"data": {"sequence_length": 1}}, "sequence_length=1 must be at least 2"),
    "no room for bytes": ({"tokenizer": {"vocab_size": 100}}, "vocab_size=100 must be at least 259"),
    "no share": ({"data": {"corrupt_limit": 1.0}}, r"corrupt_limit=1.0 must lie in \[0, 1\)"),
    "two kinds of source": ({"data": {"sources": [{"source": "a.txt"}]}}, "either data.source or data.sources"),
    "rows beyond the context": ({"data": {"sequence_length": 128}}, "sequence_length=128 exceeds max_position_embeddings=64"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_found_before_the_tokenizer_is_trained(text, tmp_path, name, monkeypatch):
    monkeypatch.setattr("hf_variants.training.pretraining.train_tokenizer", lambda *_: pytest.fail("trained a tokenizer"))
    sections, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        pretrain(spec_of(text, tmp_path / "out", **sections), quiet)
    assert not (tmp_path / "out").exists()


def test_binary_and_empty_data(tmp_path):
    (tmp_path / "zeros.txt").write_bytes(b"\x89PNG\0\0\x01" * 100)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "latin.txt").write_bytes("caf\xe9\n\nna\xefve\n".encode("latin-1"))
    for name, message in (("zeros.txt", "is binary"), ("empty.jsonl", "holds no document"), ("latin.txt", "not UTF-8")):
        with pytest.raises(ValueError, match=message):
            pretrain(spec_of(str(tmp_path / name), tmp_path / "out"), quiet)


def test_more_steps_for_a_finished_run(text, tmp_path):
    directory = tmp_path / "out"
    pretrain(spec_of(text, directory, trainer={"max_steps": 5}), quiet)
    with pytest.raises(ValueError, match=r"trainer.max_steps: 5 -> 8.*allow_changes=true to go on.*overwrite=true"):
        pretrain(spec_of(text, directory, trainer={"max_steps": 8}), quiet)
    lines = []
    assert pretrain(spec_of(text, directory, trainer={"max_steps": 8}, allow_changes=True), lines.append)["steps"] == 8
    assert f"training: continues from {directory / 'checkpoint-5'}" in lines
    with pytest.raises(ValueError, match="max_steps=3 is less than the 8 steps of"):
        pretrain(spec_of(text, directory, trainer={"max_steps": 3}, allow_changes=True), quiet)
    with pytest.raises(ValueError, match=r"allow_changes=true cannot change seed\)"):
        pretrain(spec_of(text, directory, trainer={"max_steps": 8}, allow_changes=True, seed=1), quiet)


@pytest.mark.slow
def test_steps_may_be_cut_otherwise(text, tmp_path):
    """The same rows per step in other micro-batches is the same run, as when it goes on with another number of processes."""
    pretrain(spec_of(text, tmp_path / "out"), quiet)
    cut, lines = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, []
    pretrain(spec_of(text, tmp_path / "out", trainer=cut), lines.append)
    assert lines == [f"pretrain: already finished in {tmp_path / 'out'}, skipped"]
    shutil.rmtree(tmp_path / "out")


def test_a_run_killed_after_its_last_step_makes_no_other(text, tmp_path):
    pretrain(spec_of(text, tmp_path / "out"), quiet)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    record = json.loads((tmp_path / "out" / "stage.json").read_text())
    (tmp_path / "out" / "stage.json").write_text(json.dumps({**record, "status": "started", "result": None}))
    (tmp_path / "out" / "model.safetensors").unlink()
    again = pretrain(spec_of(text, tmp_path / "out"), quiet)
    assert again["steps"] == 10 and again["eval_loss"] == record["result"]["eval_loss"]
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name], weights[name]) for name in weights)


@pytest.mark.slow
def test_killed_at_any_write_the_same_command_ends_in_equal_bits(text, tmp_path):
    """SIGKILL at every few of the file operations of a run, then the same command again."""
    command = [sys.executable, "-m", "tests.training.kill_points", text, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["killed"] == counts["tried"] > 7
