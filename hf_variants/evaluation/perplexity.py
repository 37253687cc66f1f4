"""Perplexity of a causal model on documents: in fp32, in windows, by position, and per byte.

    document   bos a b c d e f g        window 4: [bos a b c] [c d e f] [f g]
    scored         a b c|d e f|g        every token once; windows share one token, with a smaller stride more

Notable here: windows never cross documents; bits per byte make tokenizers comparable; a position is the number of
tokens that the model could read before it predicted.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import cross_entropy

# Rows of logits turned to fp32 at once: a vocabulary of 128k costs 0.5 GB per thousand.
_ROWS_PER_BLOCK = 1024


@dataclass
class PerplexityResult:
    """What was measured: `nll` in nats over `tokens` predictions of `num_bytes` bytes of text.

    position_nll, position_count: float64 and int64 [window]; entry p belongs to predictions after p tokens.
    documents: one dict {nll, tokens, num_bytes} per document that was measured, in order.
    """

    nll: float
    tokens: int
    num_bytes: int
    window: int
    stride: int
    position_nll: np.ndarray = field(repr=False)
    position_count: np.ndarray = field(repr=False)
    documents: list = field(default_factory=list, repr=False)

    @property
    def loss(self):
        return self.nll / self.tokens

    @property
    def perplexity(self):
        return math.exp(min(self.loss, 100.0))

    @property
    def bits_per_byte(self):
        return self.nll / math.log(2) / self.num_bytes if self.num_bytes else None

    def by_position(self, edges):
        """Perplexity of the predictions after edges[i] to edges[i+1] - 1 tokens, as a list of dicts {start, end,
        tokens, perplexity}.
        """
        rows = []
        for start, end in zip(edges, edges[1:], strict=False):
            count = int(self.position_count[start:end].sum())
            mean = self.position_nll[start:end].sum() / count if count else None
            value = None if mean is None else math.exp(min(mean, 100.0))
            rows.append({"start": int(start), "end": int(end), "tokens": count, "perplexity": value})
        return rows

    def per_document(self):
        """Loss, perplexity, bits per byte, tokens and bytes of every document, as a list of dicts."""
        rows = []
        for document in self.documents:
            loss = document["nll"] / document["tokens"]
            bits = document["nll"] / math.log(2) / document["num_bytes"] if document["num_bytes"] else None
            counts = {"tokens": document["tokens"], "num_bytes": document["num_bytes"]}
            rows.append({"loss": loss, "perplexity": math.exp(min(loss, 100.0)), "bits_per_byte": bits, **counts})
        return rows

    def to_dict(self):
        """Plain JSON values, without the arrays."""
        names = ("loss", "perplexity", "bits_per_byte", "tokens", "num_bytes", "window", "stride")
        return {name: getattr(self, name) for name in names}


@torch.no_grad()
def corpus_perplexity(
    model, tokenizer, texts, window=None, stride=None, batch_size=8, max_tokens=None, only_full_windows=False
):
    """Measure a causal model on an iterable of documents.

    Args:
        model: any `*ForCausalLM`; it is put in eval mode for the measurement and set back.
        tokenizer: a fast tokenizer; a bos token, where it has one, begins every document.
        window: tokens per window; None means max_position_embeddings.
        stride: tokens scored per window after the first, at most window - 1 (its default: windows share one token). A
            smaller stride gives every token more context and costs window / stride times more.
        batch_size: windows per forward.
        max_tokens: stop after so many scored tokens (whole windows).
        only_full_windows: leave out the last, shorter window of a document, so that all positions are equally often
            met.

    Raises:
        ValueError: for an impossible window or stride, or when no token could be scored.
    """
    window, stride = check_window(model, window, stride)
    total = _Totals(window)
    was_training = model.training
    model.eval()
    try:
        for batch in batches(windows(texts, tokenizer, window, stride, only_full_windows), batch_size, max_tokens):
            total.add(batch, _window_nll(model, batch))
    finally:
        model.train(was_training)
    if not total.tokens:
        raise ValueError(f"no token could be scored: the documents hold no window of window={window} tokens")
    documents = [total.documents[index] for index in sorted(total.documents)]
    sums = (total.nll, total.tokens, total.num_bytes, window, stride, total.by_position, total.count)
    return PerplexityResult(*sums, documents)


def check_window(model, window, stride):
    """(window, stride) with defaults filled in. Raises ValueError for values that score nothing or skip tokens."""
    limit = getattr(model.config, "max_position_embeddings", None)
    window = limit if window is None else window
    if window is None:
        raise ValueError("window is not given and the config has no max_position_embeddings to take it from")
    if window < 2:
        raise ValueError(f"window={window} must be at least 2 (one token to read, one to predict)")
    stride = window - 1 if stride is None else stride
    if not 1 <= stride < window:
        raise ValueError(f"stride={stride} must lie in [1, {window - 1}]: windows of {window} share at least one token")
    return window, stride


def position_edges(window, buckets=8):
    """Edges of up to `buckets` equal ranges of positions that together cover 1 .. window - 1."""
    edges = sorted({round(window * i / buckets) for i in range(buckets + 1)})
    return [max(edge, 1) for edge in edges]


@dataclass
class _Window:
    ids: np.ndarray
    first: int  # index of the first token that is scored here
    num_bytes: int
    document: int


def windows(texts, tokenizer, window, stride, only_full):
    """Yield the windows of documents, none across a border; each says from which token on it is scored."""
    bos = tokenizer.bos_token_id
    for number, text in enumerate(texts):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        head = 0 if bos is None else 1
        ids = np.array(([] if bos is None else [bos]) + encoded["input_ids"], dtype=np.int64)
        borders = _byte_borders(text, encoded["offset_mapping"])
        begin, scored = 0, 1
        while scored < len(ids):
            end = min(begin + window, len(ids))
            if only_full and end - begin < window:
                break
            num_bytes = int(borders[end - head] - borders[scored - head])
            yield _Window(ids[begin:end], scored - begin, num_bytes, number)
            begin, scored = begin + stride, end


def _byte_borders(text, offsets):
    """Bytes of text before each token, and after the last: int64 [tokens + 1]."""
    # Tokens of one character that several tokens share start together, so their bytes go to the last of them.
    lengths = np.cumsum([0] + [len(character.encode("utf-8", "surrogatepass")) for character in text])
    starts = [start for start, _ in offsets] + [len(text)]
    borders = lengths[np.array(starts, dtype=np.int64)]
    borders[0] = 0
    return borders


def batches(items, batch_size, max_tokens):
    """Yield lists of up to `batch_size` windows until `max_tokens` tokens are scored."""
    batch, scored = [], 0
    for item in items:
        batch.append(item)
        scored += len(item.ids) - item.first
        enough = max_tokens is not None and scored >= max_tokens
        if len(batch) == batch_size or enough:
            yield batch
            batch = []
        if enough:
            return
    if batch:
        yield batch


def padded(batch, device):
    """(ids, mask), int64 [B, T], of windows filled up at the right."""
    longest = max(len(item.ids) for item in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, item in enumerate(batch):
        ids[row, : len(item.ids)] = torch.from_numpy(item.ids)
        mask[row, : len(item.ids)] = 1
    return ids.to(device), mask.to(device)


def _window_nll(model, batch):
    """Negative log likelihood [B, T-1] (fp32) of every token after the first of each window, zero beyond its end."""
    ids, mask = padded(batch, model.device)
    extra = {} if mask.all() else {"attention_mask": mask}
    logits = model(input_ids=ids, use_cache=False, **extra).logits[:, :-1]
    targets = ids[:, 1:]
    flat, wanted = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    blocks = zip(flat.split(_ROWS_PER_BLOCK), wanted.split(_ROWS_PER_BLOCK), strict=True)
    nll = torch.cat([cross_entropy(part.float(), target, reduction="none") for part, target in blocks])
    return (nll.view_as(targets) * mask[:, 1:]).cpu()


class _Totals:
    def __init__(self, window):
        self.nll, self.tokens, self.num_bytes = 0.0, 0, 0
        self.by_position = np.zeros(window, dtype=np.float64)
        self.count = np.zeros(window, dtype=np.int64)
        self.documents = {}

    def add(self, batch, nll):
        for item, row in zip(batch, nll.double().numpy(), strict=True):
            positions = slice(item.first, len(item.ids))
            values = row[item.first - 1 : len(item.ids) - 1]
            self.by_position[positions] += values
            self.count[positions] += 1
            self.nll += float(values.sum())
            self.tokens += len(values)
            self.num_bytes += item.num_bytes
            document = self.documents.setdefault(item.document, {"nll": 0.0, "tokens": 0, "num_bytes": 0})
            document["nll"] += float(values.sum())
            document["tokens"] += len(values)
            document["num_bytes"] += item.num_bytes
