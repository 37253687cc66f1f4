"""Records of one source of text: files of text, JSON lines or parquet (also gzipped), or anything that `datasets` loads.

    .txt .md .text        documents apart by blank lines          .jsonl .json .ndjson   a record per line
    .parquet              a record per row                        + .gz                  of the first two kinds
    folder, glob          all such files in it                    other names            `datasets`: Hub id, saved folder

Notable here: everything is streamed; what cannot be read as a document is handed on as `Corrupt`, for the reader to count.
"""

import glob
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

_TEXT_ENDINGS = (".txt", ".md", ".text")
_JSON_ENDINGS = (".jsonl", ".json", ".ndjson")
_ENDINGS = (*_TEXT_ENDINGS, *_JSON_ENDINGS, ".parquet")


@dataclass(frozen=True)
class Corrupt:
    """A record that is no document: where it stands and why."""

    where: str
    reason: str

    def __str__(self):
        return f"{self.where}: {self.reason}"


class Streamed:
    """Documents that are read again at every pass and never held: those for which `keep(text)` is true."""

    def __init__(self, read, keep):
        self.read, self.keep = read, keep

    def __iter__(self):
        return (text for text in self.read() if self.keep(text))


def read_records(source, subset=None, split="train", text_key="text", streaming=False):
    """Yield every document (str) or `Corrupt` of a source.

    Raises:
        ValueError: for a source that is missing, matches no file, is binary, or that `datasets` cannot load.
    """
    if not source:
        raise ValueError("data.source is empty; name a file, a folder or glob of files, or a `datasets` name")
    files = files_of(source)
    if files is None:
        yield from _read_datasets(source, subset, split, text_key, streaming)
        return
    for file in files:
        yield from _reader_of(file)(file, text_key)


def files_of(source):
    """The files that a path, folder or glob means, sorted; None when it rather names a `datasets` source.

    Raises:
        ValueError: for a path or glob without files, or with files of another kind than are read.
    """
    path = Path(source)
    if _is_saved_dataset(path):
        return None
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and _ending(file) in _ENDINGS)
        return files or None
    if any(sign in source for sign in "*?["):
        files = sorted(Path(name) for name in glob.glob(source, recursive=True) if Path(name).is_file())
        if not files:
            raise ValueError(f"data.source={source!r} matches no file")
        for file in files:
            if _ending(file) not in _ENDINGS:
                raise ValueError(f"data.source={source!r} matches {file}, which does not end with one of {list(_ENDINGS)}")
        return files
    if _ending(path) in _ENDINGS:
        if not path.is_file():
            raise ValueError(f"data.source={source!r} is not a file (working directory {Path.cwd()})")
        return [path]
    return None


def source_identity(source):
    """What can be said about a source without reading it: names, sizes and times of its files, or its name."""
    files = files_of(source)
    if files is None:
        return [str(source)]
    stats = [(file.name, file.stat()) for file in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def _ending(file):
    endings = file.suffixes[-2:] if file.suffix == ".gz" else file.suffixes[-1:]
    return endings[0].lower() if endings else ""


def _reader_of(file):
    ending = _ending(file)
    return _read_parquet if ending == ".parquet" else _read_json_lines if ending in _JSON_ENDINGS else _read_text


def _open(file):
    opened = gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")
    head = opened.read(1 << 16)
    if b"\0" in head:
        opened.close()
        raise ValueError(f"{file} is binary, not text: it holds zero bytes; data.source must name text")
    opened.seek(0)
    return opened


def _is_saved_dataset(path):
    return any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def _read_text(file, _):
    """Documents of a text file stand apart by one or more blank lines."""
    lines, first = [], 1
    with _open(file) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                first = first if lines else number
                lines.append(line)
            elif lines:
                yield _decode(b"".join(lines), f"{file}, document at line {first}")
                lines = []
    if lines:
        yield _decode(b"".join(lines), f"{file}, document at line {first}")


def _decode(line, where):
    try:
        return line.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        return Corrupt(where, f"not UTF-8 (byte {error.object[error.start]:#04x} at {error.start})")


def _read_json_lines(file, text_key):
    with _open(file) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            line = _decode(line, where)
            if isinstance(line, Corrupt):
                yield line
                continue
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                yield Corrupt(where, f"not JSON ({getattr(error, 'msg', 'nested too deeply')})")
                continue
            yield _text_of(record, text_key, where)


def _read_parquet(file, text_key):
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        table = parquet.ParquetFile(file)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{file} is no parquet file: {' '.join(str(error).split())}") from None
    if text_key not in table.schema_arrow.names:
        raise ValueError(f"{file}: no column data.text_key={text_key!r}; it holds {sorted(table.schema_arrow.names)}")
    number = 0
    for batch in table.iter_batches(batch_size=1024, columns=[text_key]):
        for text in batch.column(0).to_pylist():
            yield _text_of({text_key: text}, text_key, f"{file}, row {number}")
            number += 1


def _read_datasets(source, subset, split, text_key, streaming):
    from datasets import load_dataset, load_from_disk

    if _is_saved_dataset(Path(source)):
        loaded = load_from_disk(source)
        dataset = _split_of(loaded, source, split) if isinstance(loaded, dict) else loaded
    else:
        try:
            dataset = load_dataset(source, subset, split=split, streaming=streaming)
        except Exception as error:  # `datasets` raises many kinds; the user needs the source's name beside any of them
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"data.source={source!r} is no file and `datasets` cannot load it: {reason}") from error
    for number, record in enumerate(dataset):
        yield _text_of(record, text_key, f"{source}, record {number}")


def _split_of(loaded, source, split):
    if split not in loaded:
        raise ValueError(f"data.source={source!r} has no split {split!r}; choose from {sorted(loaded)}")
    return loaded[split]


def _text_of(record, text_key, where):
    if not isinstance(record, dict) or text_key not in record:
        held = sorted(record) if isinstance(record, dict) else type(record).__name__
        return Corrupt(where, f"no field data.text_key={text_key!r}; it holds {held}")
    text = record[text_key]
    if not isinstance(text, str):
        return Corrupt(where, f"{text_key!r} is a {type(text).__name__}; it must be text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return Corrupt(where, f"{text_key!r} holds half a surrogate pair")
    return text
