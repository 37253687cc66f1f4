"""Finished layers on disk, so that an interrupted run continues with the next one.

    .NAME.partial-FINGERPRINT/layer-00003.safetensors   the packed layer
                             /layer-00003.json          its account

Notable here: a layer counts when both of its files are there, each of which appears whole; a folder of other settings, of
another source or of other calibration tokens has another name, is never read, and is removed when a run begins.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file, save_file

from .formats import FORMATS
from .layer_quantization import LayerResult


class LayerStore:
    """Layers of one run in `directory`, which is made when the first one is saved."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.resumed = 0

    @classmethod
    def beside(cls, target, settings, tensors=None):
        """The store of a run that writes `target` with these `settings` (JSON values) and tensors; others are removed.

        Args:
            tensors: {name: tensor} of whatever else decides the result.
        """
        target = Path(target)
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        for key, tensor in (tensors or {}).items():
            digest.update(f"{key}{tuple(tensor.shape)}".encode() + tensor.cpu().numpy().tobytes())
        name = f".{target.name}.partial-{digest.hexdigest()[:16]}"
        for other in leftovers(target):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)
        return cls(target.parent / name)

    def load(self, index, layer, name):
        """The `LayerResult` of layer `index`, whose weights go into the dense float32 `layer`; None where it is not there."""
        tensors_file, account_file = self._files(index)
        if not (tensors_file.is_file() and account_file.is_file()):
            return None
        state = load_file(tensors_file, device=str(next(layer.parameters()).device))
        account = json.loads(account_file.read_text(encoding="utf-8"))
        groups = account.pop("groups")
        result = LayerResult(**account)
        for full, group in groups.items():
            part = full.removeprefix(f"{name}.")
            form = next(form for form in FORMATS.values() if f"{part}.{form.tensors[0]}" in state)
            packed = {key: state.pop(f"{part}.{key}") for key in form.tensors}
            result.codes[full] = form.linear.codes_of(**packed, group=group)
            state[f"{part}.weight"] = result.codes[full].dequantize()
        layer.load_state_dict(state, strict=True)
        self.resumed += 1
        return result

    def save(self, index, layer, result):
        """Keep the packed `layer` and its account."""
        self.directory.mkdir(parents=True, exist_ok=True)
        tensors_file, account_file = self._files(index)
        state = {name: tensor.contiguous() for name, tensor in layer.state_dict().items()}
        partial = tensors_file.with_suffix(".writing")
        save_file(state, partial)
        os.replace(partial, tensors_file)
        groups = {name: codes.group for name, codes in result.codes.items()}
        account = {**{key: value for key, value in _plain(result).items() if key != "codes"}, "groups": groups}
        partial = account_file.with_suffix(".writing")
        partial.write_text(json.dumps(account), encoding="utf-8")
        os.replace(partial, account_file)

    def remove(self):
        """Remove what is kept, once the checkpoint is complete."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _files(self, index):
        stem = f"layer-{index:05d}"
        return self.directory / f"{stem}.safetensors", self.directory / f"{stem}.json"


def leftovers(target):
    """Hidden folders that runs which write `target` left beside it."""
    target = Path(target)
    return [path for path in target.parent.glob(f".{target.name}.partial-*") if path.is_dir()]


def _plain(result):
    return asdict(LayerResult({}, result.entry, result.skipped, result.tokens, result.starved))


def fingerprint_of_weights(model):
    """Digest of a model's tensors, of a few numbers of each."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // 64)
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + flat[::step].double().cpu().numpy().tobytes())
    return digest.hexdigest()
