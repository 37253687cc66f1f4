"""Every key of a training recipe, as dataclasses.

Notable here: `trainer` takes transformers' own TrainingArguments names, and `model` VariantsConfig's, so that nothing
has a second name here.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from .bounds import SEEDS
from .spec_parsing import key

DISTRIBUTED = (
    "transformers' DistributedConfig by its own names, to shard the model at load time: fsdp_size, ep_size, tp_size, "
    "dp_replicate_size; empty: DDP, or what accelerate is told"
)


@dataclass
class TokenizerSpec:
    """Where the tokenizer comes from: `path` loads one, otherwise a byte-level BPE is trained on the training
    documents.
    """

    path: str | None = key("directory or Hub id of an existing tokenizer; null trains one", None)
    vocab_size: int = key("tokens of a trained tokenizer, special tokens included", 4096, least=1)
    min_frequency: int = key("a merge needs this many occurrences", 2, least=1)
    bos_token: str = key("begins every document", "<|begin_of_text|>")
    eos_token: str = key("ends every document", "<|end_of_text|>")
    pad_token: str = key("fills rows of a batch", "<|pad|>")
    mask_token: str = key("stands for a hidden token; only part of tokenizers trained with objective=mlm", "<|mask|>")


@dataclass
class SpanCorruptionSpec:
    """What `objective: span_corruption` hides (Raffel et al. 2020, arXiv:1910.10683 §3.1.4)."""

    noise_density: float = key("share of the tokens that are hidden", 0.15, above=0, below=1)
    mean_span_length: float = key("tokens of a hidden span on average", 3.0, least=1)
    sentinel: str = key("name of the token that stands for span number {}", "<extra_id_{}>")
    sentinels: int = key("how many of them the tokenizer of a new model gets, those included that it has", 100, least=1)


@dataclass
class SourceSpec:
    """One of several sources of documents."""

    source: str = key("a .txt (documents apart by blank lines), .jsonl, .parquet, folder or glob, or a `datasets` name", "")
    subset: str | None = key("configuration name of a `datasets` source", None)
    split: str = key("split of a `datasets` source", "train")
    text_key: str = key("field that holds the text", "text")
    max_documents: int | None = key("read only so many documents", None, least=1)
    weight: float | None = key(
        "share of the text, relative to the other sources; null everywhere: all of it once", None, above=0
    )


@dataclass
class DataSpec:
    """Where the documents come from, how they are split and packed."""

    source: str = key("a .txt (documents apart by blank lines), .jsonl, .parquet, folder or glob, or a `datasets` name", "")
    sources: list[SourceSpec] = key("several sources, each a section like {source: a.jsonl, weight: 2}", factory=list)
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = key(
        "with weights: end with the first source, or repeat sources until each was read once", "first_exhausted"
    )
    streaming: bool = key("read documents again at each pass instead of holding them in memory", False)
    subset: str | None = key("configuration name of a `datasets` source", None)
    split: str = key("split of a `datasets` source", "train")
    text_key: str = key("field that holds the text, for .jsonl, .parquet and `datasets`", "text")
    max_documents: int | None = key("read only so many documents", None, least=1)
    sequence_length: int = key(
        "tokens per packed row; with objective=span_corruption, tokens that the encoder reads", 256, least=2
    )
    packing: Literal["concatenate", "best_fit", "within_documents", "per_document"] = key(
        "concatenate: rows without padding, documents go on in the next row; best_fit: cut only documents longer than a row; "
        "within_documents: each row is a stretch of one document, shorter ones are left out; per_document: each row is one "
        "document or a piece of it, padded",
        "concatenate",
    )
    long_documents: Literal["cut", "skip", "refuse"] = key("what becomes of a document longer than a row", "cut")
    eval_fraction: float = key("share of the characters held out, in whole documents", 0.05, least=0, below=1)
    eval_source: str | None = key("a held-out source of its own, instead of eval_fraction", None)
    split_seed: int = key("seed of the choice of held-out documents", 0, **SEEDS)
    corrupt_limit: float = key(
        "share of the records that may be corrupt: they are skipped and counted; more is an error", 0.05, least=0, below=1
    )
    cache_dir: str | None = key("where packed data is kept; null means output_dir/data", None)


@dataclass
class SamplesSpec:
    """Continuations made during training, in output_dir/training_samples.jsonl."""

    prompts: list[str] = key("texts to continue; empty makes no samples", factory=list)
    steps: int | None = key("make them every so many steps; null: at every evaluation", None, least=1)
    generation: dict = key("GenerationConfig keys by their own names", factory=dict)


@dataclass
class TrainingSpec:
    """A pretraining run, from text to a checkpoint directory."""

    output_dir: str = key("directory of checkpoints and of the final model")
    data: DataSpec = key("documents", factory=DataSpec)
    model: dict | str | None = key(
        "a preset, a config .json, or VariantsConfig keys, which over {preset: NAME} replace single ones (with encoder and "
        "decoder sections: VariantsSeq2SeqConfig keys); vocab_size and token ids are filled in",
        None,
        start="preset",
    )
    model_path: str | None = key("continue from this checkpoint instead of new weights", None)
    tokenizer: TokenizerSpec = key("tokenizer", factory=TokenizerSpec)
    trainer: dict = key(
        "transformers TrainingArguments by their own names (max_steps, learning_rate, bf16, report_to, ...)", factory=dict
    )
    objective: Literal["clm", "mlm", "span_corruption"] = key(
        "clm: every next token; mlm: hidden tokens, for model.is_causal=false; span_corruption: for encoder-decoders", "clm"
    )
    mask_share: float = key("share of the tokens that mlm hides", 0.15, above=0, below=1)
    span_corruption: SpanCorruptionSpec = key("what span_corruption hides", factory=SpanCorruptionSpec)
    optimizer: Literal["adamw", "muon"] = key(
        "muon: Muon for hidden matrices, AdamW for the rest; adamw: trainer.optim", "adamw"
    )
    muon: dict = key("further options of torch.optim.Muon, by their own names (momentum, ns_steps, ...)", factory=dict)
    distributed: dict = key(DISTRIBUTED, factory=dict)
    samples: SamplesSpec = key("samples", factory=SamplesSpec)
    metrics: dict = key(
        "measured at every evaluation: perplexity, bits_per_byte, passkey, expert_balance, lm_eval", factory=dict
    )
    peak_flops: float | None = key(
        "FLOP/s of a device, to report mfu; null: its data sheet, or a measured product on a CPU", None, above=0
    )
    seed: int = key("seed of weights and data order", 0, **SEEDS)
    dtype: Literal["float32", "bfloat16", "float16"] = key("dtype of the weights in training", "float32")
    overwrite: bool = key("start afresh where output_dir holds a run with other settings", False)
    allow_changes: bool = key("continue the run in output_dir although settings changed (more steps, another rate)", False)

    # a section of a recipe, and the keys by which a word leaves its others without effect
    superseded = {"tokenizer": ("tokenizer.path", "model_path")}

    def to_dict(self):
        """The spec as plain nested dicts, as YAML would hold it."""
        return dataclasses.asdict(self)
