"""`convert_checkpoint`: a checkpoint in, a proven checkpoint of the other kind out, or nothing.

Notable here: weights are streamed, one tensor in memory at a time; what was written is read back from its files and proven
equal to the source before the folder gets its name. There is no switch to skip the proof. Both models are run for it while a
second thread writes, reads back and compares: the result runs on tensors that this thread proves to be those in its files,
or, where they would have to be computed once more, on those in its files.
"""

import copy
import json
import os
from contextlib import contextmanager
from pathlib import Path

from hf_variants.convert.beside import beside
from hf_variants.convert.checkpoint_config import known_dtype
from hf_variants.convert.config_conversion import as_plain_dict, config_from_native, config_to_native, set_tied
from hf_variants.convert.conversion_report import make_report, read_report, write_card_section, write_report
from hf_variants.convert.gguf_files import refuse_bare_file
from hf_variants.convert.heads import OUR_TYPES, native_class, our_class
from hf_variants.convert.kept_files import CARD, PATTERNS, keep_card, keep_files, refuse_changed_files
from hf_variants.convert.model_conversion import refuse_no_model
from hf_variants.convert.native_layout import save_steps
from hf_variants.convert.new_folder import check_free, check_space, left_behind, new_folder
from hf_variants.convert.proof import ProofError, prove, same_weights
from hf_variants.convert.registry import find_family
from hf_variants.convert.sides import Side, folder_side, gguf_side, is_path, memory_side, packed_side, read_config
from hf_variants.convert.stages import Stage
from hf_variants.convert.tokenizer_class import name_tokenizer_class, said_of_tokenizer
from hf_variants.convert.unpacking import dense_state, unpacked_model, unpacked_tokenizer
from hf_variants.convert.vision_checkpoint import (
    convert_vision_checkpoint,
    is_vision_source,
    verify_vision_checkpoint,
)
from hf_variants.convert.weight_files import shard_names, total_bytes, weight_files, write_shards
from hf_variants.convert.weight_rules import plan_rules
from hf_variants.modeling.variants_base import AFTER_SAVE

KINDS = ("variants", "native")
_SHARD = 5 * 10**9
# What a conversion may take beside one shard.
_SPARE = 2**30


def convert_checkpoint(
    src,
    dst,
    *,
    to=None,
    family=None,
    dtype=None,
    gguf_file=None,
    dequantize=False,
    revision=None,
    max_shard_size=None,
    tokenizer=None,
    progress=None,
):
    """Convert a native checkpoint to the family or one of the family to a native type, prove it equal, and write it.

    Memory: one shard and what two layers take beside it, whatever the size of the model, from GGUF files too; quantized
    safetensors of formats other than ours (4-bit AWQ, 8-bit) are unpacked whole. The proof is that of `proof.prove`.

    Args:
        src: folder, Hub id, or model in memory (which is left as it is).
        dst: folder to write; it appears when everything in it is complete and proven.
        to: "variants" or "native"; None takes the kind that `src` is not.
        family: native model type to write, with to="native"; None takes the one the model came from, else the first that can
            express its toggles.
        dtype: torch dtype or its name, of the result; None keeps that of the source.
        gguf_file: name of a GGUF file in `src`.
        dequantize: whether quantized weights are unpacked; otherwise they are refused.
        revision: branch, tag or commit, for a Hub id.
        max_shard_size: bytes, or text such as "2GB"; None takes the size of the source's largest file, at most 5 GB,
            and 5 GB for a GGUF file.
        tokenizer: written along, for a model in memory.
        progress: called as progress(what, done, total).

    Returns:
        dict, the report as written to `conversion_report.json`.

    Raises:
        ValueError: for a source that cannot be converted, toggles that no native type has, or a folder in the way, before
            anything is written; for a full disk, or a proof that fails (`ProofError`), after everything is removed.
    """
    if not is_path(src):
        refuse_no_model(src)
    dtype = known_dtype(dtype)
    if to not in (None, *KINDS):
        raise ValueError(f"to={to!r} is unknown; choose from {list(KINDS)}")
    if family is not None and to == "variants":
        raise ValueError(f"family={family!r} names a native type to write, but to='variants' was asked for; leave one out")
    if family is not None and not is_vision_source(src):
        find_family(family)
    check_free(dst)
    _name_left_behind(dst)
    if is_vision_source(src):
        _refuse_for_images(gguf_file=gguf_file, dequantize=dequantize, revision=revision, max_shard_size=max_shard_size)
        options = {"to": to, "family": family, "dtype": dtype, "tokenizer": tokenizer, "progress": progress}
        return convert_vision_checkpoint(src, dst, **options)
    tell = progress or (lambda what, done, total: None)
    tell("reading the source", 0, 1)
    with _opened(src, dtype, gguf_file, dequantize, revision, tokenizer) as (source, name, extras):
        tell("reading the source", 1, 1)
        kind = "native" if source.is_ours else "variants"
        if to not in (None, kind):
            raise ValueError(f"to={to!r}, but {name['name']} is of that kind already ({source.config.model_type})")
        if family is not None and kind == "variants":
            raise ValueError(f"family={family!r} names a native type to write, but {name['name']} is native; leave it out")
        target, rules = _target(source, family)
        files = target.weights
        if not target.is_ours:
            files = Stage(save_steps(files.meta, target.skeleton()), files)
        check_space(dst, total_bytes(files))
        with new_folder(dst) as partial:
            # a packed file says nothing of how large those of its numbers should be
            packed = gguf_file is not None or dequantize
            usual = _SHARD if packed else min(_SHARD, source.shard or _SHARD)
            written = _bytes_of(max_shard_size) or usual
            shard = source.shard if packed and source.shard is not None else written

            def write(running):
                write_shards(files.again(), partial, written, _writing(tell, running.check))
                gone_along = extras(partial)
                _keep_generation(source, target, partial)
                _write_config(target, partial)
                named = None if source.folder is None else name_tokenizer_class(source.folder, partial)
                result = running.hand(_written(target, partial))
                compared = same_weights(source, result, rules, tell, running.check)
                _write_card(target, partial, name)
                return result, gone_along, named, compared

            with beside(write) as writing:

                def there(side):
                    writing.raise_error()
                    return side if side is source or side.weights.all_lie() else writing.handed()

                proof = prove(source, target, rules, shard + _SPARE, tell, lambda: writing.result()[-1], there)
                result, (kept, left), named, _ = writing.result()
            report = make_report(source, result, proof)
            report |= {"source": name, "kept": kept, "left": [*left, *source.left]}
            report |= said_of_tokenizer(named, kept)
            _write_report(partial, report, name, dst)
    return report


def verify_checkpoint(dst, src=None, *, progress=None):
    """Prove again that the converted folder `dst` equals its source; the folder is only read.

    Args:
        src: folder, Hub id or model in memory; None takes the one that the report in `dst` names.
        progress: as in `convert_checkpoint`.

    Returns:
        dict, a fresh report.

    Raises:
        ValueError: the source is unknown or gone; the two differ, in weights, results, config or the files kept beside them
            (`ProofError`, naming where).
    """
    dst = Path(dst)
    if not dst.is_dir():
        raise ValueError(f"{str(dst)!r} is no folder; --verify reads one that was converted")
    if is_vision_source(dst):
        return verify_vision_checkpoint(dst, src)
    recorded = read_report(dst) if src is None or (dst / "conversion_report.json").is_file() else {}
    target = folder_side(dst)
    given = recorded.get("source", {})
    if src is None:
        src = _recorded_source(dst, given)
    same = {key: given.get(key) for key in ("gguf_file", "revision")} if is_path(src) else {}
    with _opened(src, target.dtype, same.get("gguf_file"), bool(given.get("dequantized")), same.get("revision")) as opened:
        source, name, _ = opened
        if source.is_ours == target.is_ours:
            raise ValueError(f"{name['name']} and {str(dst)!r} are of one kind ({target.config.model_type}); give the source")
        native = target if source.is_ours else source
        found = find_family(native.config.model_type)
        rules = found.rules(native.head(found))
        _refuse_other_config(source, target, recorded)
        if source.folder is not None:
            refuse_changed_files(source.folder, dst, recorded)
        proof = prove(source, target, rules, target.shard + _SPARE, progress)
        return {**make_report(source, target, proof), "source": name}


def _target(source, family):
    """(the `Side` to write, its weights computed from those of the source; the weight rules)."""
    if source.is_ours:
        config = config_to_native(source.config, family)
        found = find_family(config.model_type)
        head = source.head(found)
        target = Side(native_class(config, head), config, source.dtype)
        target.own_head = found.head_told_by_weights and not source.config.tie_word_embeddings
    else:
        config = config_from_native(source.config)
        set_tied(config, bool(source.config.tie_word_embeddings) and not source.own_head)
        found = find_family(source.config.model_type)
        head = source.head(found)
        target = Side(our_class(head), config, source.dtype)
    rules = found.rules(head)
    steps = plan_rules(rules, source.weights.meta, source.config if source.is_ours else config, back=source.is_ours)
    return target.hold(Stage(steps, source.weights)), rules


def _written(target, folder):
    """The target as its files hold it. Raises ProofError where they do not load as they were meant."""
    try:
        config = read_config(folder)
        meant, found = as_plain_dict(_config_to_save(target)), as_plain_dict(config)
        different = sorted(key for key in meant.keys() | found.keys() if _text(meant.get(key)) != _text(found.get(key)))
        # of an equal config, the class builds the same
        written = None if different else folder_side(folder, config=config, model=target.skeleton())
    except ValueError as error:
        raise ProofError(f"what was written does not load: {error}") from error
    if different or written.dtype != target.dtype:
        raise ProofError(f"the config that was written reads back with other values of {different or ['dtype']}")
    return written


def _writing(tell, check):
    def progress(done, total):
        check()
        tell("writing weights", done, total)

    return progress


def _refuse_other_config(source, target, recorded):
    """Raise ProofError where the config of `target` is not the one that converting `source` gives.

    Running the two models does not show it: an id of a token, a longest input, a soft-cap far above small scores.
    """
    meant, _ = _target(source, None if target.is_ours else target.config.model_type)
    dtype = str(target.dtype).removeprefix("torch.")
    meant = {**as_plain_dict(_config_to_save(meant)), "dtype": recorded.get("dtype", dtype)}
    found = {**as_plain_dict(target.config), "dtype": dtype}
    different = [
        f"{key} is {found.get(key)!r} instead of {meant.get(key)!r}"
        for key in sorted((meant.keys() | found.keys()) - {"auto_map"})
        if _text(meant.get(key)) != _text(found.get(key))
    ]
    if different:
        raise ProofError(f"the config differs from what converting the source gives: {'; '.join(different)}")


def _text(value):
    """A value of a config as its file holds it: a NaN equals itself there."""
    return json.dumps(value, sort_keys=True)


def _config_to_save(target):
    config = copy.deepcopy(target.config)
    config.architectures, config.dtype = [target.cls.__name__], target.dtype
    if not target.is_ours and hasattr(config, "auto_map"):
        # the code it names stays behind: the native class is part of the library
        del config.auto_map
    return config


def _write_config(target, folder):
    _config_to_save(target).save_pretrained(folder)


def _keep_generation(source, target, folder):
    """Write what the source's config.json says of generation (BART's beams), which no config object keeps."""
    from transformers import GenerationConfig

    file = Path(folder) / "generation_config.json"
    if source.folder is None or file.exists() or not target.skeleton().can_generate():
        return
    derived = GenerationConfig.from_model_config(_config_to_save(target).to_dict())
    said = GenerationConfig.from_pretrained(source.folder, config_file_name="config.json", _from_model_config=True)
    if _flags(said) != _flags(derived):
        said.to_json_file(file)


def _flags(generation_config):
    """What a generation config sets."""
    flags = generation_config.to_diff_dict()
    names = flags.keys() - {"transformers_version", "_from_model_config"}
    return {name: flags[name] for name in names if flags[name] is not None and flags[name] is not False}


def _write_card(target, folder, name):
    """What a model of ours adds when it is saved; its code came with the config."""
    if target.is_ours:
        model = target.skeleton()
        model.config.architectures = [target.cls.__name__]
        model.config._name_or_path = name["name"] if name["kind"] == "hub" else ""
        for write in AFTER_SAVE:
            write(model, folder, None)


def _write_report(folder, report, name, dst):
    """Report, also in the card; the source is recorded as seen from `dst`, for nobody else's machine has its path."""
    if name["kind"] == "folder":
        report["source"] = {**name, "path": os.path.relpath(name["path"], Path(dst).absolute())}
    write_card_section(Path(folder) / CARD, report)
    write_report(folder, report)


def _name_left_behind(dst):
    from transformers.utils import logging

    if found := left_behind(dst):
        logging.get_logger(__name__).warning(
            f"Killed conversions left {', '.join(map(str, found))}: remove what is not in use."
        )


# ---- the source ----
@contextmanager
def _opened(src, dtype, gguf_file, dequantize, revision, tokenizer=None):
    """Yields (`Side`, what it is, a function that writes along what goes along)."""
    if not is_path(src):
        _refuse_for_memory(gguf_file=gguf_file, revision=revision)
        name = {"kind": "memory", "name": type(src).__name__}
        yield memory_side(src, dtype), name, lambda folder: _beside_memory(src, tokenizer, folder)
        return
    if tokenizer is not None:
        raise ValueError("tokenizer=... is for a model in memory; that of a folder or repository goes along by itself")
    folder = Path(src)
    refuse_bare_file(src)
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision={revision!r} is for a Hub id, but {str(src)!r} is a folder; leave it out")
        name = {"kind": "folder", "name": folder.absolute().name, "path": str(folder.absolute())}
    else:
        folder = _fetched(src, revision, gguf_file)
        name = {"kind": "hub", "name": str(src), "revision": revision}
    if gguf_file is not None:
        if dequantize:
            raise ValueError("dequantize=True is for quantized safetensors; a GGUF file is unpacked in any case: leave it out")
        side = gguf_side(folder, gguf_file, dtype)
        yield side, {**name, "gguf_file": gguf_file}, lambda target: _beside_gguf(side, folder, gguf_file, target)
        return
    if dequantize:
        if (side := packed_side(folder, dtype)) is not None:
            yield side, {**name, "dequantized": True}, lambda target: _beside_folder(folder, side.is_ours, target)
            return
        model = unpacked_model(folder, dtype)
        is_ours = model.config.model_type in OUR_TYPES
        side = memory_side(model, dtype, dense_state(model))
        yield side, {**name, "dequantized": True}, lambda target: _beside_folder(folder, is_ours, target)
        return
    side = folder_side(folder, dtype)
    yield side, name, lambda target: _beside_folder(folder, side.is_ours, target)


def _beside_folder(folder, is_ours, target):
    keep_card(folder, target, not is_ours)
    kept, left = keep_files(folder, target, {file.name for file in weight_files(folder)})
    # the code of ours is not the author's, and is written anew where it is needed
    return kept, [name for name in left if not (is_ours and name.endswith(".py"))]


def _beside_gguf(side, folder, gguf_file, target):
    keep_card(folder, target, to_ours=True)
    return _beside_memory(side.skeleton(), unpacked_tokenizer(folder, gguf_file), target)


def _beside_memory(model, tokenizer, folder):
    kept = []
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
        kept.append("generation_config.json")
    if tokenizer is not None:
        kept += [Path(path).name for path in tokenizer.save_pretrained(folder)]
    return sorted(kept), []


def _refuse_for_images(**given):
    given = {key: value for key, value in given.items() if value}
    if given:
        raise ValueError(f"{sorted(given)} are for text models; leave them out for a vision-language one, or fetch it first")


def _refuse_for_memory(**given):
    given = {key: value for key, value in given.items() if value is not None}
    if given:
        raise ValueError(f"{sorted(given)} say how to load a path or hub id, but a model in memory was given; leave them out")


def _fetched(repo, revision, gguf_file):
    """Folder of the cache that holds a repository's config, weights and what goes along.

    Raises:
        ValueError: it cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(str(repo), revision=revision, allow_patterns=PATTERNS))
        # of several sets of weights in one repository, the one that transformers reads
        wanted = [gguf_file] if gguf_file else shard_names(folder)
        return Path(snapshot_download(str(repo), revision=revision, allow_patterns=[*PATTERNS, *wanted]))
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(repo)!r} is no folder, and no repository of that name could be fetched: {error}") from error


def _recorded_source(dst, given):
    kind = given.get("kind")
    if kind == "hub" and given.get("name"):
        return given["name"]
    if kind == "folder" and given.get("path"):
        source = (dst.absolute() / given["path"]).resolve()
        if source.is_dir():
            return source
        raise ValueError(f"the source {str(source)!r} that the report names is gone; give the source")
    raise ValueError(f"the report of {str(dst)!r} names no source that can be read again ({kind}); give the source")


# ---- arguments ----
def _bytes_of(size):
    if size is None:
        return None
    from huggingface_hub.serialization._base import parse_size_to_int

    try:
        found = size if isinstance(size, int) and not isinstance(size, bool) else parse_size_to_int(str(size))
    except ValueError as error:
        raise ValueError(f"max_shard_size={size!r} is no size; write bytes, or text such as '2GB'") from error
    if found <= 0:
        raise ValueError(f"max_shard_size={size!r} must be positive")
    return found
