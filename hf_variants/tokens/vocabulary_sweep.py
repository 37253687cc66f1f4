"""What a vocabulary costs and saves: byte-level BPEs of several sizes, trained on the spot, in one model config.

Notable here: sizes are compared per BYTE of text, for a larger vocabulary makes each token dearer and needs fewer of them;
the text that is measured is held out from the text that the merges are learned on.
"""

from copy import deepcopy
from dataclasses import asdict, dataclass
from math import log2

from ..analysis import count_parameters, flops_per_token, kv_cache_bytes
from ..analysis.flops import FlopCounts
from ..training.specs import TokenizerSpec
from ..training.tokenizer import train_tokenizer


@dataclass(frozen=True)
class VocabularyCost:
    """One vocabulary in one config.

    Attributes:
        vocabulary: tokens that the trained tokenizer holds.
        tokens_per_byte: on the held-out text.
        table_parameters: embedding and, where not tied, output projection.
        parameters: of the whole model.
        tokens_of_document: tokens that `document_bytes` of text become.
        forward_flops_per_byte, output_flops_per_byte, attention_flops_per_byte: operations of the whole model, of the output
            projection, and of scores and weighted sums, at that length.
        kv_bytes_of_document: cache of the document in 16 bits.
        uniform_bits_per_byte: log2(vocabulary) x tokens per byte, what a model that knows nothing would reach.
    """

    vocabulary: int
    tokens_per_byte: float
    table_parameters: int
    parameters: int
    tokens_of_document: int
    forward_flops_per_byte: float
    output_flops_per_byte: float
    attention_flops_per_byte: float
    kv_bytes_of_document: int
    uniform_bits_per_byte: float

    def as_dict(self):
        """Plain data."""
        return asdict(self)


def sweep_vocabulary(train, held_out, sizes, config, document_bytes=8192, max_table_parameters=None, progress=None):
    """Train a tokenizer of each size and count what it costs.

    Args:
        train, held_out: lists of documents (str).
        sizes: vocabulary sizes, special tokens included.
        config: `VariantsConfig` whose `vocab_size` is replaced.
        document_bytes: length at which attention is counted.
        max_table_parameters: budget of embedding and output; larger vocabularies are listed but not chosen.
        progress: called with (done, total).

    Returns:
        (list of `VocabularyCost`, index of the best): least forward operations per byte within the budget; None where
        nothing fits.

    Raises:
        ValueError: for a size too small for the bytes, or that the text cannot fill, or texts that are empty; for an
            encoder-decoder, or a number that is not positive.
    """
    _check(config, document_bytes, max_table_parameters)
    sizes = sorted(set(sizes))
    text = "\n\n".join(held_out)
    if not sizes:
        raise ValueError("sizes is empty; give vocabulary sizes such as 1024, 4096")
    if not any(document.strip() for document in train) or not text.strip():
        raise ValueError("both the training text and the held-out text must hold characters")
    costs = []
    for done, size in enumerate(sizes, start=1):
        tokenizer = train_tokenizer(train, TokenizerSpec(vocab_size=size))
        if len(tokenizer) < size:
            raise ValueError(f"vocabulary size {size} is more than this text fills: its merges end at {len(tokenizer)} tokens")
        per_byte = len(tokenizer(text, add_special_tokens=False)["input_ids"]) / len(text.encode("utf-8"))
        tokens = max(1, round(per_byte * document_bytes))
        sized = _with_vocabulary(config, size)
        flops: FlopCounts = flops_per_token(sized, tokens)
        counts = count_parameters(sized)
        costs.append(
            VocabularyCost(
                vocabulary=size,
                tokens_per_byte=per_byte,
                table_parameters=counts.parts.get("embedding", 0) + counts.parts.get("lm_head", 0),
                parameters=counts.total,
                tokens_of_document=tokens,
                forward_flops_per_byte=flops.total * per_byte,
                output_flops_per_byte=flops.parts["lm_head"] * per_byte,
                attention_flops_per_byte=flops.parts["attention_scores"] * per_byte,
                kv_bytes_of_document=kv_cache_bytes(sized, tokens),
                uniform_bits_per_byte=log2(size) * per_byte,
            )
        )
        if progress:
            progress(done, len(sizes))
    fitting = [
        i for i, cost in enumerate(costs) if max_table_parameters is None or cost.table_parameters <= max_table_parameters
    ]
    return costs, min(fitting, key=lambda i: costs[i].forward_flops_per_byte, default=None)


def _check(config, document_bytes, max_table_parameters):
    if len(config.stacks) > 1:
        raise ValueError("config is an encoder-decoder, whose stacks may have vocabularies of their own; give one stack")
    if document_bytes < 1:
        raise ValueError(f"document_bytes={document_bytes} must be at least 1")
    if max_table_parameters is not None and not 0 < max_table_parameters:
        raise ValueError(f"max_table_parameters={max_table_parameters} must be greater than zero, or left out")


def _with_vocabulary(config, size):
    sized = deepcopy(config)
    sized.vocab_size = size
    return sized
