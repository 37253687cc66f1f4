"""GGUF files as a source: the config that one means, and its tensors, unpacked one by one under the names of transformers.

Notable here: names, permutations and offsets are those of transformers' own loader, whose parts are called for each tensor
alone, so that results are its results in every bit and no file lies in memory as a whole. What that loader drops in silence
though a model computes with it (a stretched RoPE, a tensor without a place) is read here, or refused.
"""

import copy
import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from hf_variants.convert.stages import LazyTensors

# The frequency factors that files of Llama 3.1 and after hold in place of their scaling's four numbers, which were published.
_ROPE_FREQS = "rope_freqs.weight"
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Keys of a file whose values transformers leaves to the defaults of the config class, in some families or in all, and their
# names in configs.
_PLAIN = {
    "vocab_size": ("vocab_size",),
    "context_length": ("n_positions",),
    "attention.key_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_norm": ("norm_topk_prob",),
}
# Keys that the shapes and names of the tensors say again, and keys by which no logit is computed.
_TOLD_BY_TENSORS = (
    *("feed_forward_length", "vocab_size", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("expert_feed_forward_length", "expert_shared_feed_forward_length", "use_parallel_residual"),
)
_NO_LOGIT = ("context_length", "tensor_data_layout", "pooling_type")
# Keys that do nothing at one value; at 0, that is at none, every key does nothing.
_IDLE = {"attention.causal": True, "expert_weights_scale": 1.0, "expert_weights_norm": False}
_PATTERN, _BASE, _BASE_OF_WINDOWS = "attention.sliding_window_pattern", "rope.freq_base", "rope.freq_base_swa"
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
# Keys of `rope_parameters` behind those of a file, for the scalings that a file tells whole.
_SCALINGS = {
    "linear": {"rope.scaling.factor": "factor"},
    "yarn": {"rope.scaling.factor": "factor", "rope.scaling.original_context_length": "original_max_position_embeddings"},
}
_NO_MATTER = ("rope.scaling.type", "rope.scaling.finetuned")


@dataclass(frozen=True)
class _Stored:
    """Where a tensor lies in the file, and as what."""

    name: str
    kind: int
    dtype: np.dtype
    packed: tuple
    shape: tuple
    start: int


def refuse_bare_file(path):
    """Raise ValueError where the source is a GGUF file itself, with what to give instead."""
    path = Path(path)
    if path.suffix == ".gguf":
        raise ValueError(
            f"{str(path)!r} is a GGUF file; give its folder {str(path.parent)!r} and gguf_file={path.name!r} "
            f"(--gguf-file {path.name})"
        )


class GgufFile:
    """The head of a GGUF file: its keys, and where its tensors lie.

    Args:
        folder: where the file lies.
        name: of the file.

    Raises:
        ValueError: it is not there, truncated or damaged, or holds a kind of numbers that cannot be unpacked.
    """

    def __init__(self, folder, name):
        self.folder, self.path = Path(folder), Path(folder) / name
        if not self.path.is_file():
            found = sorted(path.name for path in self.folder.glob("*.gguf"))
            raise ValueError(f"gguf_file={str(name)!r} is not in {folder}; GGUF files there: {found}")
        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise ValueError(f"{self.path} needs the package gguf: pip install 'hf-variants[gguf]'") from error
        try:
            reader = GGUFReader(self.path)
            fields = {key: field for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
            self.keys = {key: field.contents() for key, field in fields.items()}
            self.tensors = [_stored(tensor) for tensor in reader.tensors]
            self.architecture = self.keys["general.architecture"]
        except OSError as error:
            raise ValueError(f"the GGUF file {self.path} cannot be read: {error}") from error
        except Exception as error:  # the reader follows offsets wherever they lead, and fails with whatever lies there
            raise ValueError(f"the GGUF file {self.path} is truncated or damaged ({error!r}); fetch it again") from error
        if (parts := self.keys.get("split.count", 0)) > 1:
            raise ValueError(f"{self.path} is one of {parts} parts of a model; merge them (llama-gguf-split --merge) first")
        self._refuse_unknown_kinds()

    def size(self):
        """Bytes of the file."""
        return self.path.stat().st_size

    @cached_property
    def config(self):
        """The native config that the file means. Raises ValueError for what cannot be read, or would be dropped."""
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(self.path.parent, gguf_file=self.path.name)
        except Exception as error:
            raise ValueError(f"the GGUF file {self.path} holds no config that transformers can read: {error}") from error
        if config.is_encoder_decoder:
            raise ValueError(
                f"{self.path} holds an encoder-decoder ({config.model_type}), and a GGUF file says neither its activation nor "
                "whether its logits are scaled: convert the model from its safetensors"
            )
        prefix = f"{self.architecture}."
        told = {key.removeprefix(prefix): value for key, value in self.keys.items() if key.startswith(prefix)}
        known = config.to_dict()
        names = {theirs: next((name for name in ours if name in known), None) for theirs, ours in _PLAIN.items()}
        read = {theirs: ours for theirs, ours in names.items() if theirs in told and ours is not None}
        keys = {ours: told[theirs] for theirs, ours in read.items()}
        if _PATTERN in told and "layer_types" in known:
            keys["layer_types"] = _layer_types(told[_PATTERN], len(known["layer_types"]))
        self._refuse_unread(told, {*read, *self._mapped(), *((_PATTERN,) if "layer_types" in keys else ())}, known)
        if known.get("rope_parameters"):
            keys["rope_parameters"] = self._rope_parameters(told, {**known, **keys})
        different = {key: value for key, value in keys.items() if value != known[key]}
        return type(config).from_dict({**known, **different}) if different else config

    def read(self, stored):
        """The numbers of a tensor of `tensors`, unpacked: fp32 numpy array of its own."""
        from gguf import GGMLQuantizationType, dequantize

        raw = np.fromfile(self.path, dtype=stored.dtype, count=math.prod(stored.packed), offset=stored.start)
        if stored.kind == GGMLQuantizationType.F32:
            return raw.reshape(stored.shape)
        # the library keeps what it unpacks twice, 16 rows at a time; blocks know nothing of each other, so rows may be wider
        raw = raw.reshape(_wide_rows(stored), -1)
        numbers = np.empty((len(raw), math.prod(stored.shape) // len(raw)), dtype=np.float32)
        for start in range(0, len(raw), _TOGETHER):
            numbers[start : start + _TOGETHER] = dequantize(raw[start : start + _TOGETHER], stored.kind)
        return numbers.reshape(stored.shape)

    def _mapped(self):
        """Keys of the file that transformers reads into the config."""
        from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

        names = (self.architecture, self.architecture.replace("moe", "_moe"), self.architecture.replace("-", "_"))
        return {key for name in names for key, ours in GGUF_CONFIG_MAPPING.get(name, {}).items() if ours is not None}

    def _refuse_unread(self, told, read, config):
        """Raise ValueError for keys by which the model may compute, and that nothing reads."""
        rope = ("rope.",) if config.get("rope_parameters") else ()
        unread = {
            key: value
            for key, value in told.items()
            if key not in {*read, *_TOLD_BY_TENSORS, *_NO_LOGIT} and not key.startswith(rope)
            if value and value != _IDLE.get(key) or key == "attention.causal" and not value
        }
        if unread:
            raise ValueError(
                f"{self.path} says {unread}, by which the model computes and which transformers does not read: convert the "
                "model from its safetensors"
            )

    def _rope_parameters(self, told, config):
        """`rope_parameters` with what the file says and transformers does not read."""
        given = copy.deepcopy(config["rope_parameters"])
        nested = _GLOBAL in given or _LOCAL in given
        parts = [given.get(_GLOBAL)] if nested else [given]
        for part in parts:
            if part is not None:
                part |= {"rope_theta": told[_BASE]} if _BASE in told else {}
                part |= self._rope(told, {**config, "rope_parameters": part})
        if _BASE_OF_WINDOWS in told:
            if _LOCAL in given:
                given[_LOCAL]["rope_theta"] = told[_BASE_OF_WINDOWS]
            elif told[_BASE_OF_WINDOWS] != told.get(_BASE):
                self._refuse_unread({_BASE_OF_WINDOWS: told[_BASE_OF_WINDOWS]}, (), {})
        return given

    def _rope(self, told, config):
        """Keys of `rope_parameters`, of one kind of layers, that the file says and transformers does not read."""
        read = ("rope.dimension_count", _BASE, _BASE_OF_WINDOWS)
        unread = {key: value for key, value in told.items() if key.startswith("rope.") and key not in read}
        scaling = unread.get("rope.scaling.type")
        if scaling == "none" or (scaling is None and "rope.scaling.factor" not in unread and unread.keys() <= _ALONE):
            unread = {key: value for key, value in unread.items() if not key.startswith("rope.scaling.")}
        names = _SCALINGS.get(scaling, {})
        freqs = next((stored for stored in self.tensors if stored.name == _ROPE_FREQS), None)
        if unread and (freqs is not None or not names or unread.keys() != {*names, *_NO_MATTER} & unread.keys()):
            raise ValueError(
                f"{self.path} says {unread}, by which the model computes and which transformers does not read: convert the "
                "model from its safetensors"
            )
        found = (
            {"rope_type": scaling, **{key: unread[told] for told, key in names.items() if told in unread}} if unread else {}
        )
        if freqs is not None:
            found = _llama3(self.read(freqs).reshape(-1), config)
            if found is None:
                raise ValueError(
                    f"{_ROPE_FREQS} of {self.path} stretches RoPE by factors that no published scaling gives, and that "
                    "transformers would drop: convert the model from its safetensors"
                )
        return {**found, **_rotated_part(told, config)}

    def _refuse_unknown_kinds(self):
        from gguf import GGML_QUANT_SIZES, dequantize

        for kind in {stored.kind for stored in self.tensors}:
            try:
                dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
            except NotImplementedError as error:
                raise ValueError(
                    f"{self.path} holds tensors stored as {kind.name}, which cannot be unpacked: {error}"
                ) from error


class GgufTensors(LazyTensors):
    """The tensors of a `GgufFile` under the names and in the layout that transformers loads into a model.

    Args:
        file: `GgufFile`.
        model: skeleton of the native class.
        dtype: of the loaded model, to which transformers rounds most tensors as soon as they are unpacked.

    Raises:
        ValueError: tensors that have no place in the model.
    """

    def __init__(self, file, model, dtype):
        from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

        self.file, self.dtype = file, dtype
        # of the config that was built: a file may leave out what has a default, such as the number of key-value heads
        known = {key: getattr(model.config, key, None) for key in _READ_BY_PROCESSORS}
        self._processor = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)(config=known)
        self._names = get_gguf_hf_weights_map(model, self._processor)
        self._sources, homeless = {}, []
        for stored in file.tensors:
            # experts are mapped without the end of their name
            target = self._names.get(stored.name) or self._names.get(stored.name.removesuffix(".weight"))
            if target is not None:
                self._sources.setdefault(target, []).append(stored)
            elif stored.name != _ROPE_FREQS:
                homeless.append(stored.name)
        if homeless:
            raise ValueError(
                f"{file.path} holds {len(homeless)} tensors that have no place in {type(model).__name__}: {homeless[:8]}"
            )
        self._set_meta()

    def __getitem__(self, name):
        return self._made([(stored, self.file.read(stored)) for stored in self._sources[name]])[name]

    def _set_meta(self):
        self.meta, of_kind = {}, {}
        for name, sources in self._sources.items():
            # of layers alike, one is enough
            kind = tuple((_NUMBER.sub("0", stored.name), stored.shape) for stored in sources)
            if kind not in of_kind:
                zeros = [(stored, np.broadcast_to(np.float32(0), stored.shape)) for stored in sources]
                of_kind[kind] = self._made(zeros)[name].to("meta")
            self.meta[name] = of_kind[kind]

    def _made(self, parts):
        """{name: tensor} that transformers makes of some tensors of the file, given as (`_Stored`, its numbers)."""
        made = {"tensors": {}}
        for stored, numbers in parts:
            found = self._processor.process(
                weights=numbers, name=stored.name, tensor_key_mapping=self._names, parsed_parameters=made
            )
            if found.name in self._names:
                numbers = np.ascontiguousarray(found.weights)
                tensor = torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())
                made["tensors"][self._names[found.name]] = tensor.to(self.dtype)
        return made["tensors"]


# Numbers in a row that is unpacked at once.
_WIDE = 1 << 16
# Such rows at once, which is how the library goes through them.
_TOGETHER = 16
_NUMBER = re.compile(r"\d+")
_ALONE = {"rope.scaling.original_context_length", "rope.scaling.finetuned"}
_READ_BY_PROCESSORS = ("num_attention_heads", "num_key_value_heads", "n_head", "hidden_size", "num_local_experts")


def _stored(tensor):
    return _Stored(
        name=tensor.name,
        kind=tensor.tensor_type,
        dtype=tensor.data.dtype,
        packed=tuple(tensor.data.shape),
        shape=tuple(reversed(tensor.shape.tolist())),
        start=int(tensor.data_offset),
    )


def _wide_rows(stored):
    """Into how many rows a tensor is cut to be unpacked, each of whole rows of its own."""
    rows, width = math.prod(stored.shape[:-1]), stored.shape[-1]
    together = max((count for count in range(1, max(1, _WIDE // width) + 1) if rows % count == 0), default=1)
    return rows // together


def _layer_types(pattern, layers):
    """From every how many layers one sees the whole text, or from a list of which layers have a window."""
    local = pattern if isinstance(pattern, list) else [bool((index + 1) % pattern) for index in range(layers)]
    return [_LOCAL if windowed else _GLOBAL for windowed in local]


def _head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _rotated_part(told, config):
    """{"partial_rotary_factor": ...} where a file rotates another part of a head than the config by default."""
    rope, rotated = config.get("rope_parameters"), told.get("rope.dimension_count")
    if not rope or rotated is None or "rope_theta" not in rope:
        return {}
    part = rotated / _head_dim(config)
    return {} if part == rope.get("partial_rotary_factor", 1.0) else {"partial_rotary_factor": part}


def _llama3(factors, config):
    """The keys of `rope_parameters` whose scaling divides the frequencies by these factors, or None."""
    keys = {**_LLAMA3, "factor": float(factors.max())}
    base, width = config["rope_parameters"]["rope_theta"], 2 * len(factors)
    frequencies = base ** -(np.arange(0, width, 2) / width)
    turns = keys["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = keys["low_freq_factor"], keys["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / keys["factor"] + smooth)
    return keys if np.allclose(expected, factors, rtol=1e-4) else None
