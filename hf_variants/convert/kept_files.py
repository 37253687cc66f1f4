"""What a checkpoint folder holds beside config and weights, and what of it goes along: tokenizer, chat template, generation
config, licence, the author's part of the card. Code, other weights and the state of a training run stay behind, and are named.
"""

import json
import re
import shutil
from pathlib import Path

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
        if path.name in _REPLACED or path.name.startswith("."):
            continue
        if _stays(path, wanted_code):
            left.append(path.name)
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
        kept.append(path.name)
    return kept, sorted(set(left) - {*converted, INDEX})


def changed_files(source, target, kept):
    """Those of the `kept` files of `source` (folders: of their files) that `target` lacks or holds with other content."""
    source, target, found = Path(source), Path(target), []
    for name in kept:
        top = source / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            other = target / path.relative_to(source)
            if path.is_dir():
                continue
            if not (path.is_file() and other.is_file() and path.read_bytes() == other.read_bytes()):
                found.append(path.relative_to(source).as_posix())
    return found


def _stays(path, wanted_code):
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
    text = path.read_text(encoding="utf-8-sig")
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

    text = re.sub(r"^# Variants\w+\n", "", text, flags=re.MULTILINE)
    if REGEX_YAML_BLOCK.search(text) is None:
        return text
    card = ModelCard(text, ignore_metadata_errors=True)
    card.data.tags = [tag for tag in card.data.tags or [] if tag not in ("variants", "hf_variants")] or None
    return str(card)


def _tokenizer_code(folder):
    """Names of the Python files that a tokenizer of its own needs."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return set()
    entries = (json.loads(path.read_text(encoding="utf-8")).get("auto_map") or {}).values()
    flat = [item for entry in entries for item in (entry if isinstance(entry, (list, tuple)) else [entry])]
    return {f"{item.split('.')[0]}.py" for item in flat if item}
