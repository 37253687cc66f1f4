"""The weight files of a folder: safetensors, single or sharded, read tensor by tensor and written shard by shard.

Notable here: files are mapped, not loaded, and mapped anew after every few hundred megabytes, so that what was read does not
stay in memory; what is written is one shard at a time. Pickled weights are not read.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hf_variants.convert.stages import LazyTensors

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Bytes read from one mapping of a file before it is let go.
_MAPPED = 256 * 2**20
_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
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
        self.meta, self._file_of = {}, {}
        for file in self.files:
            for name, tensor in _read_header(file).items():
                if name in self.meta:
                    raise ValueError(f"tensor {name} stands in two files, {self._file_of[name].name} and {file.name}")
                self.meta[name], self._file_of[name] = tensor, file
        self._refuse_index_that_lies()
        self._open, self._budget = None, 0

    def __getitem__(self, name):
        file = self._file_of[name]
        if self._open is None or self._open[0] != file or self._budget <= 0:
            self._open, self._budget = (file, safe_open(file, framework="pt")), _MAPPED
        self._budget -= byte_size(self.meta[name])
        return self._open[1].get_tensor(name)

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
    if (folder / "adapter_config.json").is_file():
        return f"{text}, but an adapter: load it, call merge_and_unload(), save the result and convert that"
    if any(name.endswith(".safetensors") for name in found):
        return f"{text}, only {found[:4]}: fetch the file that lacks"
    if found:
        return f"{text}, only {found[:4]}: pickled weights are not read; save the model as safetensors first"
    return text


def _read_header(file):
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: _on_meta(tensors.get_slice(name), name) for name in tensors.offset_keys()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"the weight file {file} is truncated or damaged ({error}); fetch it again") from error


def _on_meta(part, name):
    kind = part.get_dtype()
    if kind not in _DTYPES:
        raise ValueError(f"tensor {name} is stored as {kind}; dtypes that can be converted: {sorted(_DTYPES)}")
    return torch.empty(part.get_shape(), dtype=_DTYPES[kind], device="meta")


def byte_size(tensor):
    """Bytes of a tensor, also of one on the meta device."""
    return tensor.numel() * tensor.element_size()


def total_bytes(tensors):
    """Bytes of all tensors of LazyTensors."""
    return sum(byte_size(tensor) for tensor in tensors.meta.values())


def write_shards(tensors, folder, max_bytes, progress=None):
    """Write LazyTensors as safetensors files of at most `max_bytes` each (a larger tensor has a file of its own).

    Args:
        progress: called as progress(bytes written so far, bytes in all) after each shard.

    Returns:
        list of paths.
    """
    folder, shards = Path(folder), _cut(tensors.meta, max_bytes)
    total, done, place = total_bytes(tensors), 0, {}
    for number, names in enumerate(shards, start=1):
        name = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        shard = {}
        for key in names:
            shard[key] = tensors[key].contiguous()
        save_file(shard, folder / name, metadata={"format": "pt"})
        place.update(dict.fromkeys(names, name))
        done += sum(byte_size(tensor) for tensor in shard.values())
        if progress is not None:
            progress(done, total)
    if len(shards) > 1:
        count = sum(tensor.numel() for tensor in tensors.meta.values())
        index = {"metadata": {"total_parameters": count, "total_size": total}, "weight_map": dict(sorted(place.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [folder / name for name in dict.fromkeys(place.values())]


def _cut(meta, max_bytes):
    shards, size = [[]], 0
    for name, tensor in meta.items():
        size += byte_size(tensor)
        if shards[-1] and size > max_bytes:
            shards.append([])
            size = byte_size(tensor)
        shards[-1].append(name)
    return shards
