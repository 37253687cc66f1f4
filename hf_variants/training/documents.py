"""Documents: reading them from one source or several, counting what is corrupt, and holding some out whole.

Notable here: a split never cuts a document; every corpus has a fingerprint, of its content, or of its files where it is
streamed.
"""

import hashlib
import json
import logging
import random
from dataclasses import dataclass, field

from .idle_keys import refuse_idle_data_keys
from .mixing import mixed
from .processes import is_writer
from .sources import Corrupt, Streamed, files_of, read_records, source_identity

logger = logging.getLogger(__name__)

# A corrupt share is judged early, on long sources, once so many records were read.
_JUDGED_AFTER = 10_000


@dataclass
class ReadReport:
    """Counts of what was read: documents, and corrupt records with the first of them in words."""

    documents: int = 0
    corrupt: int = 0
    first_corrupt: list = field(default_factory=list)

    def note(self, corrupt):
        self.corrupt += 1
        if len(self.first_corrupt) < 3:
            self.first_corrupt.append(str(corrupt))

    def check(self, source, limit):
        """Raise a ValueError where more than the share `limit` of the records is corrupt."""
        share = self.corrupt / max(1, self.corrupt + self.documents)
        if share > limit:
            raise ValueError(
                f"data.source={source!r}: {self.corrupt} of {self.corrupt + self.documents} records are corrupt, more than "
                f"the share data.corrupt_limit={limit}; the first: {'; '.join(self.first_corrupt)}"
            )


def read_documents(spec, source=None, report=None):
    """Yield the documents (str, never blank) of a `DataSpec` or `SourceSpec`, from `source` or else spec.source.

    Corrupt records are skipped, counted in `report` (a `ReadReport`) and named in a warning.

    Raises:
        ValueError: naming the source when it is missing, holds no document, or more than the share spec.corrupt_limit of
            its records is corrupt.
    """
    source = spec.source if source is None else source
    own = ReadReport()
    streaming = getattr(spec, "streaming", False) or spec.max_documents is not None
    limit = getattr(spec, "corrupt_limit", 0.0)
    for record in read_records(source, spec.subset, spec.split, spec.text_key, streaming):
        if isinstance(record, Corrupt):
            own.note(record)
        elif record.strip():
            own.documents += 1
            yield record
        if own.corrupt and (own.corrupt + own.documents) % _JUDGED_AFTER == 0:
            own.check(source, limit)
        if spec.max_documents is not None and own.documents >= spec.max_documents:
            break
    own.check(source, limit)
    if not own.documents:
        raise ValueError(f"data.source={source!r} holds no document with text")
    if own.corrupt and is_writer():
        first = "; ".join(own.first_corrupt)
        logger.warning("%s: %d of %d records are corrupt and were skipped; the first: %s",
                       source, own.corrupt, own.corrupt + own.documents, first)  # fmt: skip
    if report is not None:
        report.documents += own.documents
        report.corrupt += own.corrupt
        report.first_corrupt += own.first_corrupt[: 3 - len(report.first_corrupt)]


def split_documents(documents, eval_fraction, seed):
    """Divide documents into (training, held-out) lists, whole documents each, in their original order.

    Documents are drawn in a seeded order into the held-out part as long as it stays within `eval_fraction` of the
    characters; both parts hold at least one document.

    Raises:
        ValueError: when eval_fraction is not in (0, 1) or there is only one document.
    """
    documents = list(documents)
    check_fraction(eval_fraction)
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


def check_fraction(eval_fraction):
    if not 0 < eval_fraction < 1:
        raise ValueError(f"data.eval_fraction={eval_fraction} must lie between 0 and 1")


def is_held_out(text, eval_fraction, seed):
    """Whether a document of a stream is held out: by a hash of its text, so that copies of one text stay on one side."""
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little") < eval_fraction * 2**64


@dataclass
class Corpus:
    """Training and held-out documents (lists, or `Streamed`), their fingerprints, and what was counted.

    `report` counts records once they were read: at once for lists, after a pass for streams.
    """

    train: object
    eval: object
    fingerprint: dict
    report: ReadReport
    shares: dict


def read_corpus(spec):
    """The `Corpus` of a `DataSpec`: held out from `eval_source` where given, else by `eval_fraction`; several sources are
    split one by one and then mixed by their weights.

    Raises:
        ValueError: for sources that cannot be read or mixed, and for keys that the others leave without effect.
    """
    sources, report = sources_of(spec), ReadReport()
    refuse_idle_data_keys(spec, files_of)
    if spec.eval_source is None:
        check_fraction(spec.eval_fraction)
    parts = [_split(spec, source, report) for source in sources]
    shares = {}
    train = mixed([part[0] for part in parts], sources, spec.stopping_strategy, shares)
    if spec.eval_source is None:
        held_out = _chained([part[1] for part in parts], spec.streaming)
    elif spec.streaming:
        held_out = Streamed(lambda: read_documents(spec, spec.eval_source, report), lambda text: True)
    else:
        held_out = list(read_documents(spec, spec.eval_source, report))
    if spec.streaming:
        identity = [[vars(source), source_identity(source.source)] for source in sources]
        plan = [identity, spec.stopping_strategy]
        prints = {"train": _digest([plan, _split_keys(spec)]), "eval": _digest([identity, _split_keys(spec)])}
    else:
        prints = {"train": documents_fingerprint(train), "eval": documents_fingerprint(held_out)}
    return Corpus(train, held_out, prints, report, shares)


def sources_of(spec):
    """The `SourceSpec`s of a `DataSpec`: its own `source`, or its `sources`. Raises ValueError for both or neither."""
    from .specs import SourceSpec

    if spec.source and spec.sources:
        raise ValueError("give either data.source or data.sources, not both")
    if spec.sources:
        empty = [index for index, source in enumerate(spec.sources) if not source.source]
        if empty:
            raise ValueError(f"data.sources[{empty[0]}].source is empty")
        return spec.sources
    return [SourceSpec(spec.source, spec.subset, spec.split, spec.text_key, spec.max_documents)]


def train_and_eval_documents(spec):
    """(training, held-out) documents of a `DataSpec`; see `read_corpus`."""
    corpus = read_corpus(spec)
    return corpus.train, corpus.eval


def documents_of(spec, part):
    """The "train", "eval" or "all" documents of a `DataSpec`."""
    if part == "all":
        return [text for source in sources_of(spec) for text in _read(spec, source, ReadReport())]
    train, held_out = train_and_eval_documents(spec)
    return train if part == "train" else held_out


def documents_fingerprint(documents):
    """Hex digest of the texts and their borders."""
    digest = hashlib.sha256()
    for text in documents:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:16]


def _read(spec, source, report):
    settings = _Reading(**vars(source), streaming=spec.streaming, corrupt_limit=spec.corrupt_limit)
    return read_documents(settings, report=report)


@dataclass
class _Reading:
    source: str
    subset: str | None
    split: str
    text_key: str
    max_documents: int | None
    weight: float | None
    streaming: bool
    corrupt_limit: float


def _split(spec, source, report):
    if not spec.streaming:
        documents = list(_read(spec, source, report))
        if spec.eval_source is not None:
            return documents, []
        return split_documents(documents, spec.eval_fraction, spec.split_seed)

    def held_out(text):
        return spec.eval_source is None and is_held_out(text, spec.eval_fraction, spec.split_seed)

    train = Streamed(lambda: _read(spec, source, report), lambda text: not held_out(text))
    # the first pass counted the records
    return train, Streamed(lambda: _read(spec, source, ReadReport()), held_out)


def _chained(parts, streaming):
    if not streaming:
        return [text for part in parts for text in part]
    return Streamed(lambda: (text for part in parts for text in part), lambda text: True)


def _split_keys(spec):
    return [spec.eval_source, spec.eval_fraction, spec.split_seed]


def _digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
