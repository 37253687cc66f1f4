"""The weight files of a folder: safetensors, single or sharded, read and written tensor by tensor.

Notable here: files are mapped, not loaded, and mapped anew after every 64 megabytes, so that what was read does not
stay in memory. What is written goes from there straight to its place in the new file, whose layout, that of safetensors' own
`save_file`, is known beforehand, so that its room on the disk is taken first; a tensor that is only renamed is never copied in
between. Pickled weights are not read.
"""

import errno
import json
import math
import mmap
import os
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from hf_variants.convert.stages import LazyTensors, raw_bytes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Bytes read from one mapping of a file before it is let go; the largest file whose mapping may be kept for a second pass.
_MAPPED, _KEPT = 64 * 2**20, 2**30
# Bytes written at a time, from one multiple of it in the file to the next: the system keeps them in as large pieces.
_WRITTEN = 2**20
# In the order in which `save_file` writes them: the widest first, so that every tensor lies at a multiple of its width.
_DTYPES = {
    **{"I64": torch.int64, "F64": torch.float64, "F32": torch.float32, "I32": torch.int32},
    **{"BF16": torch.bfloat16, "F16": torch.float16, "I16": torch.int16},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool},
}


class FolderTensors(LazyTensors):
    """The tensors of a folder's safetensors files.

    Raises:
        ValueError: no safetensors file; an index that names files or tensors that are not there; a file that is truncated; a
            tensor that stands in two files.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.files = weight_files(self.folder)
        self.meta, self._file_of, self._start_of = {}, {}, {}
        for file in self.files:
            for name, (tensor, start) in _read_header(file).items():
                if name in self.meta:
                    raise ValueError(f"tensor {name} stands in two files, {self._file_of[name].name} and {file.name}")
                self.meta[name], self._file_of[name], self._start_of[name] = tensor, file, start
        self._refuse_index_that_lies()
        self._start()

    def _start(self):
        self._open, self._budget, self._kept = None, 0, False

    def keep(self):
        self._start()
        self._kept = len(self.files) == 1 and self.largest_file() <= _KEPT

    def forget(self):
        self._start()

    def __getitem__(self, name):
        file, like, start = self._file_of[name], self.meta[name], self._start_of[name]
        size = byte_size(like)
        if self._open is None or self._open[0] != file or self._budget <= 0:
            self._open, self._budget = (file, _mapped(file)), math.inf if self._kept else _MAPPED
        self._budget -= size
        data = self._open[1][start : start + size]
        if start % like.element_size():
            data = data.clone()
        return data.view(like.dtype).view(like.shape)

    def lies(self, name):
        return True

    def largest_file(self):
        """Bytes of the largest weight file."""
        return max(file.stat().st_size for file in self.files)

    def _refuse_index_that_lies(self):
        index = self.folder / INDEX
        if self.files == [self.folder / SINGLE] or not index.is_file():
            return
        promised = _weight_map(index)
        absent = sorted(set(promised) - set(self.meta))
        if absent:
            raise ValueError(f"{INDEX} names {len(absent)} tensors that no file holds: {absent[:8]}; fetch the shards again")


def weight_files(folder):
    """Paths of the safetensors files of a checkpoint folder, sorted. Raises ValueError where there are none, or not all."""
    folder = Path(folder)
    names = shard_names(folder)
    absent = [name for name in names if not (folder / name).is_file()]
    if absent == [SINGLE]:
        raise ValueError(_no_weights(folder))
    if absent:
        raise ValueError(f"{len(absent)} of the {len(names)} shards that {INDEX} names are missing in {folder}: {absent[:8]}")
    return [folder / name for name in names]


def shard_names(folder):
    """Names of the weight files by the index of a folder; of the single file where it has none or holds that file too."""
    index = Path(folder) / INDEX
    if not index.is_file() or (Path(folder) / SINGLE).is_file():
        return [SINGLE]
    return sorted(set(_weight_map(index).values()))


def _weight_map(index):
    """{tensor: file beside the index}. Raises ValueError where the index is none, or points out of its folder."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{index} cannot be read ({error}); fetch it again") from error
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{index} cannot be read (no weight_map of tensors to files); fetch it again")
    strange = sorted({str(name) for name in found.values() if not isinstance(name, str) or Path(name).name != name})
    if strange:
        raise ValueError(f"{index} names what is no file beside it: {strange[:8]}; fetch it again")
    return found


def _no_weights(folder):
    found = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".gguf", ".pt", ".pth", ".safetensors"))
    text = f"no {SINGLE} and no {INDEX} in {folder}"
    if any(name.endswith(".gguf") for name in found):
        return f"{text}; for a GGUF file give its name as gguf_file, from {[n for n in found if n.endswith('.gguf')]}"
    if any(name.endswith(".safetensors") for name in found):
        return f"{text}, only {found[:4]}: fetch the file that lacks"
    if found:
        return f"{text}, only {found[:4]}: pickled weights are not read; save the model as safetensors first"
    return text


def _mapped(file):
    """The bytes of a file, read where they are used; the mapping ends with the last tensor that is a view of it.

    What would write into such a tensor writes into a copy of its page, never into the file.
    """
    with file.open("rb") as opened:
        return torch.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)


def _read_header(file):
    """{name: (tensor on the meta device, where its bytes begin in the file)}, in the order in which they lie there."""
    try:
        with safe_open(file, framework="pt"), file.open("rb") as opened:  # which checks that all of it fits the file
            size = int.from_bytes(opened.read(8), "little")
            entries = json.loads(opened.read(size))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"the weight file {file} is truncated or damaged ({error}); fetch it again") from error
    entries.pop("__metadata__", None)
    placed = sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
    return {name: (_on_meta(name, entry), 8 + size + entry["data_offsets"][0]) for name, entry in placed}


def _on_meta(name, entry):
    kind = entry["dtype"]
    if kind not in _DTYPES:
        raise ValueError(f"tensor {name} is stored as {kind}; dtypes that can be converted: {sorted(_DTYPES)}")
    return torch.empty(entry["shape"], dtype=_DTYPES[kind], device="meta")


def byte_size(tensor):
    """Bytes of a tensor, also of one on the meta device."""
    return tensor.numel() * tensor.element_size()


def total_bytes(tensors):
    """Bytes of all tensors of LazyTensors."""
    return sum(byte_size(tensor) for tensor in tensors.meta.values())


def write_shards(tensors, folder, max_bytes, progress=None):
    """Write LazyTensors as safetensors files of at most `max_bytes` each (a larger tensor has a file of its own).

    Args:
        progress: called as progress(bytes written so far, bytes in all) after each tensor.

    Returns:
        list of paths.
    """
    folder, shards = Path(folder), _cut(tensors.meta, max_bytes)
    total, done, place = total_bytes(tensors), 0, {}
    for number, names in enumerate(shards, start=1):
        name = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, starts = _layout({key: tensors.meta[key] for key in names})
        with (folder / name).open("wb") as file:
            _take_room(file, len(header) + sum(byte_size(tensors.meta[key]) for key in names))
            file.write(header)
            for key in names:
                data = raw_bytes(tensors[key].contiguous())
                _write_at(file, starts[key], data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
        place.update(dict.fromkeys(names, name))
    if len(shards) > 1:
        count = sum(tensor.numel() for tensor in tensors.meta.values())
        index = {"metadata": {"total_parameters": count, "total_size": total}, "weight_map": dict(sorted(place.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [folder / name for name in dict.fromkeys(place.values())]


def _take_room(file, size):
    """Have the system set `size` bytes aside, where it can: a full disk is told at once, and writing costs a third less."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise


def _write_at(file, begin, data):
    file.seek(begin)
    cuts = [begin, *range((begin // _WRITTEN + 1) * _WRITTEN, begin + len(data), _WRITTEN), begin + len(data)]
    for start, end in pairwise(cuts):
        file.write(data[start - begin : end - begin])


def _layout(meta):
    """(first bytes of a safetensors file that holds tensors like these, {name: where its numbers begin})."""
    words, ranks = {dtype: word for word, dtype in _DTYPES.items()}, list(_DTYPES.values())
    entries, starts, end = {"__metadata__": {"format": "pt"}}, {}, 0
    for name, tensor in sorted(meta.items(), key=lambda item: (ranks.index(item[1].dtype), item[0])):
        starts[name], end = end, end + byte_size(tensor)
        shape, offsets = list(tensor.shape), [starts[name], end]
        entries[name] = {"dtype": words[tensor.dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}


def _cut(meta, max_bytes):
    shards, size = [[]], 0
    for name, tensor in meta.items():
        size += byte_size(tensor)
        if shards[-1] and size > max_bytes:
            shards.append([])
            size = byte_size(tensor)
        shards[-1].append(name)
    return shards
