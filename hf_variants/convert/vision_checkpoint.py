"""Checkpoints of vision-language models from folder to folder, proven equal before they are kept.

Notable here: unlike text models, the two models are held whole; the proof is bitwise equal weights both ways, and equal hidden
states and logits of rows with two images each, in fp32.
"""

import copy
import json
import os
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from hf_variants.convert.config_conversion import BOOKKEEPING
from hf_variants.convert.conversion_report import REPORT, read_report, write_card_section, write_report
from hf_variants.convert.kept_files import CARD, keep_card, keep_files, refuse_changed_files
from hf_variants.convert.model_conversion import from_native, is_tied, to_native
from hf_variants.convert.new_folder import check_free, new_folder
from hf_variants.convert.proof import TOLERANCE, ProofError
from hf_variants.convert.registry import find_family
from hf_variants.convert.tokenizer_class import name_tokenizer_class, said_of_tokenizer
from hf_variants.convert.vision_conversion import (
    OURS,
    is_vision_type,
    vision_config_from_native,
    vision_config_to_native,
    vision_family,
)

_VERSIONS = ("hf-variants", "transformers", "torch", "safetensors")


def is_vision_source(src):
    """Whether a folder (or a model in memory) holds a vision-language model that converts."""
    if isinstance(src, torch.nn.Module):
        kind = getattr(getattr(src, "config", None), "model_type", None)
    else:
        path = Path(src) / "config.json"
        try:
            kind = json.loads(path.read_text(encoding="utf-8")).get("model_type") if path.is_file() else None
        except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, RecursionError):
            return False
    return isinstance(kind, str) and (kind == OURS or is_vision_type(kind))


def convert_vision_checkpoint(src, dst, *, to=None, family=None, dtype=None, tokenizer=None, progress=None):
    """As `checkpoint_conversion.convert_checkpoint`, for a folder or model for which `is_vision_source` is true.

    Raises:
        ValueError: as there; nothing is left where it fails.
    """
    tell = progress or (lambda what, done, total: None)
    check_free(dst)
    tell("reading the source", 0, 1)
    source, folder = _loaded(src, dtype)
    ours_in = source.config.model_type == OURS
    kind = "native" if ours_in else "variants"
    if to not in (None, kind):
        raise ValueError(f"to={to!r}, but {src!s} is of that kind already ({source.config.model_type})")
    if family is not None:
        if not ours_in:
            raise ValueError(f"family={family!r} names a native type to write, but {src!s} is native; leave it out")
        vision_family(family)
    tell("reading the source", 1, 1)
    target = to_native(source, family) if ours_in else from_native(source, dtype=None if folder else dtype)
    tell("comparing", 0, 1)
    proof = prove_vision(*((target, source) if ours_in else (source, target)))
    tell("comparing", 1, 1)
    with new_folder(dst) as partial:
        kept, left = _beside(folder, partial, tokenizer, to_ours=not ours_in)
        tell("writing weights", 0, 1)
        target.config.architectures = [type(target).__name__]
        target.save_pretrained(partial)
        named = None if folder is None else name_tokenizer_class(folder, partial)
        tell("writing weights", 1, 1)
        again = type(target).from_pretrained(partial, dtype=target.dtype)
        _same_bits(target.state_dict(), again.state_dict(), "what was written")
        report = _report(source, target, proof, folder, dst) | {"kept": kept, "left": left}
        report |= said_of_tokenizer(named, kept)
        write_card_section(partial / CARD, report)
        write_report(partial, report)
    return report


def verify_vision_checkpoint(dst, src=None):
    """As `checkpoint_conversion.verify_checkpoint`, for a converted folder for which `is_vision_source` is true.

    Raises:
        ValueError: where the source is unknown, gone or of the same kind; `ProofError` where the two differ.
    """
    recorded = read_report(dst) if src is None or (Path(dst) / REPORT).is_file() else {}
    if src is None:
        given = recorded["source"]
        if given.get("kind") != "folder" or not given.get("path"):
            raise ValueError(f"the report of {str(dst)!r} names no source that can be read again; give the source")
        src = (Path(dst).absolute() / given["path"]).resolve()
    if not is_vision_source(src):
        raise ValueError(f"the source {src!s} is gone, or holds no vision-language model that converts; give the source")
    target, _ = _loaded(dst, None)
    source, folder = _loaded(src, target.dtype)
    if (source.config.model_type == OURS) == (target.config.model_type == OURS):
        raise ValueError(f"{src!s} and {str(dst)!r} are of one kind ({target.config.model_type}); give the source")
    _refuse_other_config(source, target)
    if folder is not None:
        refuse_changed_files(folder, dst, recorded)
    pair = (target, source) if source.config.model_type == OURS else (source, target)
    return _report(source, target, prove_vision(*pair), folder, dst)


def _refuse_other_config(source, target):
    """Raise ProofError where the config of `target` is not what converting `source` gives; few of its keys show in a run."""
    if target.config.model_type == OURS:
        meant = vision_config_from_native(source.config)
    else:
        meant = vision_config_to_native(source.config, target.config.model_type)
    meant.tie_word_embeddings = is_tied(source)
    # as its file would hold it
    meant = type(meant).from_dict(json.loads(json.dumps(meant.to_dict(), default=str)))
    meant, found = _flat(meant.to_dict()), _flat(target.config.to_dict())
    different = [
        f"{key} is {found.get(key)!r} instead of {meant.get(key)!r}"
        for key in sorted(meant.keys() | found.keys())
        if meant.get(key) != found.get(key)
    ]
    if different:
        raise ProofError(f"the config differs from what converting the source gives: {'; '.join(different)}")


def _flat(keys, prefix=""):
    """{dotted name: value} of a config and its parts, without what names the checkpoint."""
    flat = {}
    for key, value in keys.items():
        if key in BOOKKEEPING or key in ("auto_map", "architectures"):
            continue
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def prove_vision(native, ours):
    """The proof of a pair of models as a dict. Raises ProofError where they differ."""
    back, forth = to_native(ours, native.config.model_type), from_native(native)
    _same_bits(native.state_dict(), back.state_dict(), "the weights on the way back")
    _same_bits(ours.state_dict(), forth.state_dict(), "the weights")
    del back, forth
    pair = [copy.deepcopy(model).float().eval() for model in (native, ours)]
    inputs = [_rows(ours.config, native) for native in (True, False)]
    with torch.no_grad():
        found = [model(**given, output_hidden_states=True) for model, given in zip(pair, inputs, strict=True)]
    layers = [(a - b).abs().max().item() for a, b in zip(*(out.hidden_states[1:] for out in found), strict=True)]
    gap, largest = (found[0].logits - found[1].logits).abs().max().item(), found[0].logits.abs().max().item()
    if not gap <= TOLERANCE * max(largest, 1):
        raise ProofError(f"logits differ by {gap:.3g}, values up to {largest:.3g}; nothing is written")
    return {
        "weights": len(ours.state_dict()),
        "tokens": list(inputs[0]["input_ids"].shape),
        "images": 4,
        "compared_in": "float32",
        "logits": {"difference": gap, "largest": largest},
        "layers": [{"difference": layer} for layer in layers],
        "gradients": None,
        "gradients_left_out": "compared by the tests of the family, not here",
        "loss": None,
    }


def _rows(config, native):
    """Two rows of random ids with two images each, as the native class or ours takes them."""
    generator, image, count = torch.Generator().manual_seed(0), config.image_token_id, config.tokens_of_image()
    text = config.text_config
    words = torch.randint(0, text.vocab_size, (2, 12), generator=generator)
    taken = [image, text.pad_token_id]
    words[torch.isin(words, torch.tensor([token for token in taken if token is not None]))] = next(
        token for token in range(text.vocab_size) if token not in taken
    )
    span = torch.full((2, count), image)
    ids = torch.cat((words[:, :3], span, words[:, 3:6], span, words[:, 6:]), dim=1)
    vision = config.vision_config
    height, width = vision.image_size if isinstance(vision.image_size, (list, tuple)) else [vision.image_size] * 2
    pixels = torch.randn(4, vision.num_channels, height, width, generator=generator)
    by_row = native and (config.native or {}).get("model_type") in ("idefics3", "smolvlm")
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["pixel_values"] = pixels.unflatten(0, (2, 2)) if by_row else pixels
    if config.image_attention == "bidirectional":
        given["token_type_ids"] = (ids == image).long()
    if config.image_attention == "prefix":
        given["token_type_ids"] = (torch.arange(ids.shape[1]) >= ids.shape[1] - 3).long().expand(2, -1)
    return given


def _same_bits(first, second, what):
    different = [name for name in first.keys() | second.keys() if name not in first or name not in second]
    different += [name for name in first if name in second and not torch.equal(first[name], second[name])]
    if different:
        raise ProofError(f"{what} differ: {sorted(different)[:6]}")


def _loaded(src, dtype):
    """(the model, its folder or None)."""
    if isinstance(src, torch.nn.Module):
        return (src if dtype is None else copy.deepcopy(src).to(dtype)), None
    from transformers import AutoModelForImageTextToText

    from hf_variants.convert.native_checkpoint import load_native

    folder = Path(src)
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    if kind == OURS:
        return AutoModelForImageTextToText.from_pretrained(folder, dtype="auto" if dtype is None else dtype).eval(), folder
    return load_native(folder, dtype=dtype), folder


def _beside(folder, partial, tokenizer, to_ours):
    """Processor, tokenizer and the rest of a source folder, but what belongs to the other side: (kept, left)."""
    if folder is None:
        return sorted(Path(path).name for path in tokenizer.save_pretrained(partial)) if tokenizer is not None else [], []
    keep_card(folder, partial, to_ours)
    kept, left = keep_files(folder, partial)
    weights = {path.name for path in folder.glob("*.safetensors")} | {"model.safetensors.index.json"}
    left = [name for name in left if name not in weights and not (name.endswith(".py") and not to_ours)]
    return kept, left


def _report(source, target, proof, folder, dst):
    ours = source if source.config.model_type == OURS else target
    native = target if ours is source else source
    name = {"kind": "memory", "name": type(source).__name__} if folder is None else {"kind": "folder", "name": folder.name}
    if folder is not None:
        # as seen from `dst`, for nobody else's machine has its path
        name["path"] = os.path.relpath(folder.absolute(), Path(dst).absolute())
    return {
        "to": "variants" if target is ours else "native",
        "family": native.config.model_type,
        "classes": [type(source).__name__, type(target).__name__],
        "dtype": str(target.dtype).removeprefix("torch."),
        "parameters": sum(parameter.numel() for parameter in ours.parameters()),
        "untrained": find_family(native.config.text_config.model_type).untrained(native.config.text_config),
        "source": name,
        "proof": proof,
        "versions": {package: version(package) for package in _VERSIONS},
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
