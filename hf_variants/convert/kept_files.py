"""What a checkpoint folder holds beside config and weights, and what of it goes along: tokenizer, chat template, generation
config, licence, the author's part of the card. Code, other weights and the state of a training run stay behind, and are named.
"""

import re
import shutil
from pathlib import Path

from hf_variants.convert.checkpoint_config import parsed
from hf_variants.convert.proof import ProofError
from hf_variants.convert.weight_files import INDEX

CARD = "README.md"
# The markers of hub/card.py, which fills what stands between them, and of conversion_report.py.
_OURS = ("<!-- hf_variants: begin -->", "<!-- hf_variants: end -->")
_CONVERSION = ("<!-- hf_variants conversion: begin -->", "<!-- hf_variants conversion: end -->")
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt", ".npz"}
_REPLACED = {"config.json", CARD, "conversion_report.json"}
_ABOUT_THE_SOURCE = {"quantization_report.json", "trainer_state.json", "all_results.json", "train_results.json"}
_FOLDERS = {"additional_chat_templates"}
# What is fetched of a repository beside its weights.
PATTERNS = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken", "tokenization_*.py", "LICENSE*", CARD]


def keep_files(source, target, converted=()):
    """Copy what goes along from folder `source` to folder `target`.

    Args:
        converted: names of the weight files that were converted, which are not left behind.

    Returns:
        (kept, left): sorted names.
    """
    source, target, kept, left = Path(source), Path(target), [], []
    wanted_code = _tokenizer_code(source)
    for path in sorted(source.iterdir()):
        # the folder being written may lie in the source
        if path.name in _REPLACED or path == target:
            continue
        if _stays(path, wanted_code):
            left.append(path.name)
            continue
        _copy(path, target / path.name)
        kept.append(path.name)
    return kept, sorted(set(left) - {*converted, INDEX})


def _copy(path, target):
    if not (path.is_dir() or path.is_file()):
        raise ValueError(f"{path} is no file that can be read (a link to nothing, a pipe): fetch it again, or remove it")
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copyfile(path, target)


def refuse_changed_files(source, target, recorded):
    """Raise ProofError where a file that went along is gone from `target`, or is not that of `source` any more.

    Args:
        recorded: the report of the conversion, which names them; without one (empty) they are those that would go along now.
    """
    source, target = Path(source), Path(target)
    kept = recorded["kept"] if "kept" in recorded else [path.name for path in _going_along(source)]
    different = []
    for name in kept:
        top = source / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            other = target / path.relative_to(source)
            if path.is_dir():
                continue
            if not (path.is_file() and other.is_file() and path.read_bytes() == other.read_bytes()):
                different.append(path.relative_to(source).as_posix())
    if different:
        raise ProofError(f"files that went along differ from the source's or are gone: {different}")


def _going_along(source):
    wanted_code = _tokenizer_code(source)
    # a tokenizer's config may have been given the name of its class (`tokenizer_class.py`), which only a report says
    anew = {*_REPLACED, "tokenizer_config.json"}
    return [path for path in sorted(source.iterdir()) if path.name not in anew and not _stays(path, wanted_code)]


def _stays(path, wanted_code):
    if path.name.startswith("."):
        return True
    if path.is_dir():
        return path.name not in _FOLDERS
    if path.suffix == ".py":
        return path.name not in wanted_code
    return path.suffix in _WEIGHTS or path.name in _ABOUT_THE_SOURCE or path.name.endswith(".index.json")


def keep_card(source, target, to_ours):
    """Copy the author's part of the model card: ours has a place of its own in it, or is taken out for a native model."""
    path = Path(source) / CARD
    if not path.is_file():
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}); save it as such, or remove it") from error
    for begin, end in (_OURS, _CONVERSION):
        if begin in text and end in text:
            text = text[: text.index(begin)].rstrip() + "\n" + text[text.index(end) + len(end) :].lstrip()
    if to_ours:
        text = "\n".join([text.rstrip(), "", *_OURS, ""])
    else:
        text = _without_our_words(text)
    (Path(target) / CARD).write_text(text, encoding="utf-8")


def _without_our_words(text):
    """Without the title and the tags that the card of ours begins with."""
    from huggingface_hub import ModelCard
    from huggingface_hub.repocard import REGEX_YAML_BLOCK
    from yaml import YAMLError

    text = re.sub(r"^# Variants\w+\n", "", text, flags=re.MULTILINE)
    if REGEX_YAML_BLOCK.search(text) is None:
        return text
    try:
        card = ModelCard(text, ignore_metadata_errors=True)
    except (ValueError, YAMLError):
        # metadata that nothing can read, left as its author wrote it
        return text
    card.data.tags = [tag for tag in card.data.tags or [] if tag not in ("variants", "hf_variants")] or None
    return str(card)


def _tokenizer_code(folder):
    """Names of the Python files that a tokenizer of its own needs."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return set()
    named = parsed(path).get("auto_map")
    entries = named.values() if isinstance(named, dict) else ()
    flat = [item for entry in entries for item in (entry if isinstance(entry, (list, tuple)) else [entry])]
    return {f"{item.split('.')[0]}.py" for item in flat if isinstance(item, str)}
