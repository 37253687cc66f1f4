"""Weight files: written as safetensors itself writes them, read as views, compared bit by bit; and the second thread."""

import errno
import os
import threading
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_variants.convert import checkpoint_conversion, convert_checkpoint, stages, weight_files
from hf_variants.convert.beside import Stopped, beside
from hf_variants.convert.stages import Cast, MemoryTensors, Stage, Step, same_bits
from hf_variants.convert.weight_files import FolderTensors, write_shards

DTYPES = list(weight_files._DTYPES.values())


def _mixed():
    """Tensors of every dtype, odd sizes, an empty one, one without dimensions, one that is not contiguous."""
    torch.manual_seed(0)
    state = {f"{'zab'[i % 3]}.{i}": torch.randint(0, 2, (3, i + 1)).to(dtype) for i, dtype in enumerate(DTYPES)}
    return {**state, "none": torch.empty(0, 4), "one": torch.tensor(2.5), "ü": torch.randn(6, 5).t()}


def test_files_are_those_of_safetensors(tmp_path):
    state = _mixed()
    write_shards(MemoryTensors(state), tmp_path, 10**6)
    contiguous = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(contiguous, tmp_path / "expected.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "expected.safetensors").read_bytes()


def test_large_tensors_are_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_files, "_WRITTEN", 7)
    told = []
    write_shards(MemoryTensors(_mixed()), tmp_path, 10**6, lambda done, total: told.append((done, total)))
    found = load_file(tmp_path / "model.safetensors")
    assert all(same_bits(found[name], tensor.contiguous()) for name, tensor in _mixed().items())
    assert told[-1][0] == told[-1][1] and told == sorted(told)


def test_tensors_are_read_as_views_and_the_file_is_mapped_anew(tmp_path, monkeypatch):
    save_file({name: tensor.contiguous() for name, tensor in _mixed().items()}, tmp_path / "model.safetensors")
    tensors = FolderTensors(tmp_path)
    assert all(same_bits(tensors[name], tensor.contiguous()) for name, tensor in _mixed().items())
    assert tensors["a.1"].untyped_storage().data_ptr() == tensors["b.2"].untyped_storage().data_ptr()
    monkeypatch.setattr(weight_files, "_MAPPED", 1)
    kept = tensors.again()["a.1"]
    tensors = FolderTensors(tmp_path)
    first = tensors["a.1"]
    assert tensors["a.1"].data_ptr() != first.data_ptr() and same_bits(kept, first)


def test_one_mapping_is_kept_for_two_passes_over_one_file(tmp_path, monkeypatch):
    state = {name: torch.randn(4) for name in "ab"}
    monkeypatch.setattr(weight_files, "_MAPPED", 1)
    for shards, size in (("one", 10**6), ("two", 1)):
        (tmp_path / shards).mkdir()
        write_shards(MemoryTensors(state), tmp_path / shards, size)
        tensors = Cast(FolderTensors(tmp_path / shards), lambda name: torch.float32)
        tensors.keep()
        first, again = tensors["a"], tensors["a"]
        assert (first.data_ptr() == again.data_ptr()) == (shards == "one")
        tensors.forget()
        assert tensors["a"].data_ptr() not in (first.data_ptr(), again.data_ptr())


def test_what_lies_is_given_as_it_lies():
    below = MemoryTensors({"a": torch.ones(2), "b": torch.ones(2)})
    steps = [Step(("a",), lambda t: {"c": t["a"]}, renames=True), Step(("b",), lambda t: {"d": t["b"] + 1})]
    stage = Stage(steps, below)
    assert below.all_lie() and stage.lies("c") and not stage.lies("d") and not stage.all_lie()
    assert stage["c"].data_ptr() == below["a"].data_ptr()
    same, other = (Cast(Stage(steps[:1], below), lambda name, dtype=dtype: dtype) for dtype in (torch.float32, torch.float16))
    assert same.all_lie() and not other.all_lie()
    assert same["c"].data_ptr() == below["a"].data_ptr() and other["c"].dtype == torch.float16


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_room_is_taken_where_the_system_can(number, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    if number == errno.ENOSPC:
        with pytest.raises(OSError, match="No space left"):
            write_shards(MemoryTensors(_mixed()), tmp_path, 10**6)
        return
    test_files_are_those_of_safetensors(tmp_path)


def test_a_file_whose_numbers_lie_askew(tmp_path):
    """Other writers pad nothing: a tensor may begin at any byte."""
    import json

    text = json.dumps({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}})
    text += " " * ((5 - len(text)) % 8)
    values = torch.tensor([1.0, -2.0, 3.5])
    data = len(text).to_bytes(8, "little") + text.encode() + values.numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(data)
    assert (8 + len(text)) % 4 and same_bits(FolderTensors(tmp_path)["w"], values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("size", [1, 7, 8, 100_003])
@pytest.mark.parametrize("compared_by", ["C", "numpy"])
def test_one_bit_is_a_difference(dtype, size, compared_by, monkeypatch):
    if compared_by == "numpy":
        monkeypatch.setattr(stages, "_MEMCMP", None)
        monkeypatch.setattr(stages, "_CHUNK", 1 << 10)
    first = torch.randint(0, 100, (size,)).to(dtype)
    assert same_bits(first, first.clone())
    for place in (0, size // 2, size - 1):
        second = first.clone()
        second.view(torch.uint8)[place * dtype.itemsize] ^= 1
        assert not same_bits(first, second)
    assert not same_bits(first, first.view(-1, 1)) and not same_bits(first, first.to(torch.float64))


def test_nan_and_both_zeros_are_told_by_their_bits():
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_a_second_reader_does_not_disturb_the_first():
    """A step gives two tensors; each reader takes them in an order of its own."""
    made = []

    def split(tensors):
        made.append(1)
        return dict(zip("ab", tensors["fused"].chunk(2), strict=True))

    below = MemoryTensors({"fused": torch.arange(4.0)})
    stage = Stage([Step(("fused",), split)], below)
    made.clear()
    other = stage.again()
    assert torch.equal(stage["a"], torch.tensor([0.0, 1.0])) and torch.equal(other["b"], torch.tensor([2.0, 3.0]))
    assert torch.equal(stage["b"], torch.tensor([2.0, 3.0])) and torch.equal(other["a"], torch.tensor([0.0, 1.0]))
    assert len(made) == 2


# ---- the second thread ----
def test_work_beside_returns_raises_and_ends():
    threads, alive = torch.get_num_threads(), threading.active_count()
    with beside(lambda running: 3) as running:
        assert running.result() == 3 and torch.get_num_threads() in (1, threads - 1)

    def failing(running):
        raise ValueError("no space")

    with pytest.raises(ValueError, match="no space"), beside(failing) as running:
        running.result()
    ended = []

    def endless(running):
        try:
            while True:
                running.check()
                time.sleep(0.001)
        except Stopped:
            ended.append(True)
            raise

    with pytest.raises(KeyError), beside(endless):
        raise KeyError
    assert ended and torch.get_num_threads() == threads and threading.active_count() == alive


def test_what_is_handed_over():
    taken = threading.Event()

    def work(running):
        running.hand(3)
        taken.wait()
        raise ValueError("later")

    with beside(work) as running:
        assert running.handed() == 3
        running.raise_error()
        taken.set()
        with pytest.raises(ValueError, match="later"):
            running.result()
        with pytest.raises(ValueError, match="later"):
            running.raise_error()

    def failing(running):
        raise ValueError("before")

    with pytest.raises(ValueError, match="before"), beside(failing) as running:
        running.handed()


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("spoiled", [False, True])
def test_a_spoiled_file_is_found_though_the_models_ran_before_it_was_read(family, spoiled, tmp_path, monkeypatch):
    """Without memory for gradients the result runs on the tensors that were written, or on the file (mixtral)."""
    from test_checkpoint_conversion import _saved

    _saved(family, tmp_path / "native")

    def write(tensors, folder, *rest):
        files = write_shards(tensors, folder, *rest)
        if spoiled:
            data = bytearray(files[0].read_bytes())
            data[-1] ^= 1
            files[0].write_bytes(data)
        return files

    monkeypatch.setattr(checkpoint_conversion, "write_shards", write)
    monkeypatch.setattr(checkpoint_conversion, "_SPARE", -(10**10))
    if spoiled:
        with pytest.raises(ValueError, match="is not bitwise equal"):
            convert_checkpoint(tmp_path / "native", tmp_path / "ours")
        assert not (tmp_path / "ours").exists()
        return
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert report["proof"]["gradients"] is None and report["proof"]["tokens"] == (1, 8)


@pytest.mark.parametrize("phase", ["reading the source", "writing weights", "comparing weights", "comparing layers"])
def test_an_error_of_the_callback_ends_the_conversion(phase, tmp_path):
    from test_checkpoint_conversion import _saved

    _saved("llama", tmp_path / "native")

    def progress(what, done, total):
        if what == phase:
            raise RuntimeError(f"told {what}")

    with pytest.raises(RuntimeError, match=f"told {phase}"):
        convert_checkpoint(tmp_path / "native", tmp_path / "ours", progress=progress)
    assert [path.name for path in tmp_path.iterdir()] == ["native"]
