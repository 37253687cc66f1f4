"""Examples of fine-tuning: reading records, telling what they are, checking each before any training, holding some out.

    supervised      {"messages": [{"role": ..., "content": ...}, ...]}, or {"prompt": ..., "completion": ...}
    preference      {"prompt": ..., "chosen": ..., "rejected": ...}, texts or lists of messages
    classification  {"text": ..., "label": ...}, a label being text or a number
    seq2seq         {"source": ..., "target": ...}, texts

Notable here: these are TRL's own formats; an example that does not fit is named by its number instead of failing in training.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ..training.errors import first_line
from ..training.idle_keys import refuse_idle_data_keys

_READERS = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet"}
_FORMS = {
    "supervised": (("messages",), ("prompt", "completion")),
    "preference": (("prompt", "chosen", "rejected"),),
}
# task -> the keys that name its fields
_NAMING = {"seq2seq": ("source_key", "target_key", "group_key"), "classification": ("text_key", "label_key")}


@dataclass
class Examples:
    """Training and held-out records (`datasets.Dataset`), and the digest of their content."""

    train: object
    eval: object
    fingerprint: str


def read_examples(spec, task):
    """The `Examples` of an `ExamplesSpec`.

    Raises:
        ValueError: naming the source when it cannot be read, the first record that does not fit the task, or a split that
            leaves a part without records.
    """
    refuse_idle_data_keys(spec, lambda source: _READERS.get(Path(source).suffix))
    whole = read_whole(spec, spec.source, "data.source", task)
    if spec.eval_source is not None:
        train, held_out = whole, read_whole(spec, spec.eval_source, "data.eval_source", task)
    else:
        train, held_out = _split(whole, spec)
    digest = hashlib.sha256()
    for part in (train, held_out):
        digest.update(f"{len(part)}".encode())
        for record in part:
            digest.update(json.dumps(record, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return Examples(train, held_out, digest.hexdigest()[:16])


def is_chat(record):
    """Whether a supervised or preference record holds messages instead of texts."""
    return any(isinstance(record.get(name), list) for name in ("messages", "prompt", "completion", "chosen"))


def read_whole(spec, source, what, task):
    """All records of `source`, checked for the task; `what` names it in errors. Raises ValueError as `read_examples`."""
    if not source:
        raise ValueError(f"{what} is empty; name a .jsonl, .json, .csv or .parquet file, or a `datasets` name")
    dataset = _load(spec, source, what)
    if spec.max_examples is not None:
        dataset = dataset.select(range(min(spec.max_examples, len(dataset))))
    if not len(dataset):
        raise ValueError(f"{what}={source!r} holds no record")
    columns = _columns(spec, task, dataset, f"{what}={source!r}")
    dataset = dataset.select_columns(list(columns))
    for number, record in enumerate(dataset, start=1):
        reason = _misfit(record, task, spec)
        if reason:
            raise ValueError(f"{what}={source!r}, record {number}: {reason}")
    return dataset


def _load(spec, source, what):
    from datasets import Dataset, load_dataset, load_from_disk

    path = Path(source)
    kind = _READERS.get(path.suffix)
    if kind and not path.is_file():
        raise ValueError(f"{what}={source!r} is not a file (working directory {Path.cwd()})")
    try:
        if path.suffix in (".jsonl", ".ndjson"):
            return Dataset.from_list(_json_lines(path))
        if kind:
            return load_dataset(kind, data_files=source, split="train")
        if any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            loaded = load_from_disk(source)
            return loaded[spec.split] if isinstance(loaded, dict) else loaded
        return load_dataset(source, spec.subset, split=spec.split)
    except ValueError as error:
        raise ValueError(f"{what}={source!r}: {first_line(error)}") from None
    except Exception as error:  # `datasets` raises many kinds; the user needs the source's name beside any of them
        raise ValueError(f"{what}={source!r} cannot be read: {first_line(error)}") from error


def _json_lines(path):
    """The records of a .jsonl; a line that is none is named by its number, which `datasets` would not do."""
    records = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                try:
                    record = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"line {number} is not JSON ({error.msg})") from None
                if not isinstance(record, dict):
                    raise ValueError(f"line {number} holds a {type(record).__name__}; it must be a record of fields")
                records.append(record)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8 ({error.reason} at byte {error.start})") from None
    return records


def _columns(spec, task, dataset, where):
    forms = _FORMS.get(task) or (_named_by(spec, task),)
    for form in forms:
        if set(form) <= set(dataset.column_names):
            return form
    wanted = " or ".join(" + ".join(form) for form in forms)
    said = {key: getattr(spec, key) for key in _NAMING.get(task, ())}
    named = ", ".join(f"{key}={name!r}" for key, name in said.items() if name is not None)
    raise ValueError(
        f"{where} holds the fields {sorted(dataset.column_names)}; task={task!r} needs {wanted}"
        + (f", as {named} say" if named else "")
    )


def _named_by(spec, task):
    """The fields that the spec itself names."""
    return tuple(name for name in (getattr(spec, key) for key in _NAMING[task]) if name is not None)


def _misfit(record, task, spec):
    """What is wrong with one record, or None."""
    if task == "seq2seq":
        empty = [name for name, value in record.items() if not isinstance(value, str) or not value.strip()]
        return f"{empty[0]}={record[empty[0]]!r} must be a text" if empty else None
    if task == "classification":
        if not isinstance(record[spec.text_key], str) or not record[spec.text_key].strip():
            return f"{spec.text_key}={record[spec.text_key]!r} must be a text"
        label = record[spec.label_key]
        return None if isinstance(label, (str, int)) else f"{spec.label_key}={label!r} must be a text or a whole number"
    for name, value in record.items():
        if isinstance(value, list):
            reason = _messages_misfit(value)
            if reason:
                return f"{name}: {reason}"
        elif not isinstance(value, str) or not value:
            return f"{name}={value!r} must be a text or a list of messages"
    kinds = {isinstance(value, list) for value in record.values()}
    if len(kinds) > 1:
        return f"{sorted(record)} must all be texts or all be lists of messages"
    if "messages" in record and not any(message["role"] == "assistant" for message in record["messages"]):
        return "messages: no message of the role 'assistant', so there is nothing to learn"
    if "chosen" in record and record["chosen"] == record["rejected"]:
        return "chosen and rejected are equal, so nothing is preferred"
    return None


def _messages_misfit(messages):
    if not messages:
        return "it is an empty list"
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"message {index} has no role"
        if not isinstance(message.get("content"), str) or not message["content"]:
            return f"message {index} has no content"
    return None


def _split(dataset, spec):
    if not 0 < spec.eval_fraction < 1:
        raise ValueError(
            f"data.eval_fraction={spec.eval_fraction} must lie between 0 and 1: a run is judged on held-out examples; or "
            "give data.eval_source"
        )
    held_out = max(1, round(spec.eval_fraction * len(dataset)))
    if held_out >= len(dataset):
        raise ValueError(
            f"data.eval_fraction={spec.eval_fraction} of {len(dataset)} records leaves none to train on; give more records, a "
            "smaller share, or data.eval_source"
        )
    parts = dataset.train_test_split(test_size=held_out, seed=spec.split_seed)
    return parts["train"], parts["test"]
