"""Documents: reading them from text files, JSON lines or any `datasets` source, and holding some out whole.

Notable here: files are streamed, a split never cuts a document, and every source has a fingerprint of its content.
"""

import glob
import hashlib
import json
import random
from pathlib import Path

_TEXT_ENDINGS = (".txt", ".md", ".text")
_JSON_ENDINGS = (".jsonl", ".json", ".ndjson")


def read_documents(spec, source=None):
    """Yield the documents (str, never blank) of a `DataSpec`, from `source` or else spec.source.

    Raises:
        ValueError: naming the source when it is missing, holds no document, or a record lacks spec.text_key.
    """
    source = spec.source if source is None else source
    count = 0
    for text in _read_source(spec, source):
        if not text.strip():
            continue
        yield text
        count += 1
        if spec.max_documents is not None and count >= spec.max_documents:
            return
    if not count:
        raise ValueError(f"data.source={source!r} holds no document with text")


def split_documents(documents, eval_fraction, seed):
    """Divide documents into (training, held-out) lists, whole documents each, in their original order.

    Documents are drawn in a seeded order into the held-out part as long as it stays within `eval_fraction` of the
    characters; both parts hold at least one document.

    Raises:
        ValueError: when eval_fraction is not in (0, 1) or there is only one document.
    """
    documents = list(documents)
    if not 0 < eval_fraction < 1:
        raise ValueError(f"data.eval_fraction={eval_fraction} must lie between 0 and 1")
    if len(documents) < 2:
        raise ValueError(
            "the source holds a single document, so none can be held out; separate documents by blank lines or give "
            "data.eval_source"
        )
    order = list(range(len(documents)))
    random.Random(seed).shuffle(order)
    budget, held_out = eval_fraction * sum(map(len, documents)), set()
    for index in order:
        if len(documents[index]) <= budget:
            held_out.add(index)
            budget -= len(documents[index])
    if not held_out:
        held_out = {min(order, key=lambda index: len(documents[index]))}
    train = [text for index, text in enumerate(documents) if index not in held_out]
    return train, [documents[index] for index in sorted(held_out)]


def train_and_eval_documents(spec):
    """(training, held-out) documents of a `DataSpec`: from `eval_source` where given, else by `eval_fraction`."""
    documents = list(read_documents(spec))
    if spec.eval_source is None:
        return split_documents(documents, spec.eval_fraction, spec.split_seed)
    return documents, list(read_documents(spec, spec.eval_source))


def documents_of(spec, part):
    """The "train", "eval" or "all" documents of a `DataSpec`."""
    if part == "all":
        return list(read_documents(spec))
    train, held_out = train_and_eval_documents(spec)
    return train if part == "train" else held_out


def documents_fingerprint(documents):
    """Hex digest of the texts and their borders."""
    digest = hashlib.sha256()
    for text in documents:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:16]


def _read_source(spec, source):
    if not source:
        raise ValueError("data.source is empty; name a .txt, a .jsonl, a folder or glob of them, or a `datasets` name")
    files = _files_of(source)
    if files is None:
        yield from _read_datasets(spec, source)
        return
    for file in files:
        reader = _read_jsonl if file.suffix in _JSON_ENDINGS else _read_text
        yield from reader(file, spec.text_key)


def _files_of(source):
    """The files that a path, folder or glob means; None when it rather names a `datasets` source."""
    path, endings = Path(source), _TEXT_ENDINGS + _JSON_ENDINGS
    if _is_saved_dataset(path):
        return None
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix in endings)
        return files or None
    if any(sign in source for sign in "*?["):
        files = sorted(Path(name) for name in glob.glob(source, recursive=True) if Path(name).is_file())
        if not files:
            raise ValueError(f"data.source={source!r} matches no file")
        return files
    if path.suffix in endings:
        if not path.is_file():
            raise ValueError(f"data.source={source!r} is not a file (working directory {Path.cwd()})")
        return [path]
    return None


def _is_saved_dataset(path):
    return any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def _read_text(file, _):
    """Documents of a text file stand apart by one or more blank lines."""
    lines = []
    with file.open(encoding="utf-8") as stream:
        for line in stream:
            if line.strip():
                lines.append(line)
            elif lines:
                yield "".join(lines)
                lines = []
    if lines:
        yield "".join(lines)


def _read_jsonl(file, text_key):
    with file.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{file}, line {number}: not JSON ({error.msg})") from None
            yield _text_of(record, text_key, f"{file}, line {number}")


def _read_datasets(spec, source):
    from datasets import load_dataset, load_from_disk

    path = Path(source)
    if _is_saved_dataset(path):
        loaded = load_from_disk(source)
        dataset = loaded[spec.split] if isinstance(loaded, dict) else loaded
    else:
        try:
            dataset = load_dataset(source, spec.subset, split=spec.split, streaming=spec.max_documents is not None)
        except Exception as error:  # `datasets` raises many kinds; the user needs the source's name beside any of them
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"data.source={source!r} is no file and `datasets` cannot load it: {reason}") from error
    for number, record in enumerate(dataset):
        yield _text_of(record, spec.text_key, f"{source}, record {number}")


def _text_of(record, text_key, where):
    if not isinstance(record, dict) or text_key not in record:
        held = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"{where}: no field data.text_key={text_key!r}; it holds {held}")
    text = record[text_key]
    if not isinstance(text, str):
        raise ValueError(f"{where}: {text_key!r} is a {type(text).__name__}; it must be text")
    return text
