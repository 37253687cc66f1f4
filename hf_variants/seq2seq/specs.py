"""Every key of the `seq2seq` recipe, as dataclasses.

Notable here: a source is cut, left out or refused by one key, and whatever was done is counted and shown.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from ..finetune.specs import AdapterSpec
from ..training.bounds import SEEDS
from ..training.spec_parsing import key
from ..training.specs import DISTRIBUTED, TokenizerSpec


@dataclass
class PairsSpec:
    """Where the pairs of texts come from and how they are split."""

    source: str = key("a .jsonl, .json, .csv or .parquet file, or a `datasets` name", "")
    subset: str | None = key("configuration name of a `datasets` source", None)
    split: str = key("split of a `datasets` source", "train")
    source_key: str = key("field that holds the text to read", "source")
    target_key: str = key("field that holds the text to write", "target")
    group_key: str | None = key("field that names the kind of a pair; exact match is then also told by kind", None)
    prefix: str = key("put before every source, as T5's 'translate English to German: '", "")
    max_examples: int | None = key("read only so many pairs", None, least=1)
    max_source_length: int = key("tokens that the encoder reads at most, special tokens included", 128, least=2)
    max_target_length: int = key("tokens that the decoder writes at most, the end token included", 128, least=2)
    over_long: Literal["refuse", "truncate", "drop"] = key(
        "what to do with pairs whose source or target is longer; their number is always shown", "refuse"
    )
    eval_fraction: float = key("share of the pairs held out", 0.1, least=0, below=1)
    eval_source: str | None = key("a held-out source of its own, instead of eval_fraction", None)
    split_seed: int = key("seed of the choice of held-out pairs", 0, **SEEDS)


@dataclass
class Seq2SeqSpec:
    """A run that teaches an encoder-decoder to write targets from sources, from new weights or a checkpoint."""

    output_dir: str = key("directory of checkpoints, of the final model and of the report")
    data: PairsSpec = key("pairs", factory=PairsSpec)
    model: dict | str | None = key(
        "a preset, a config .json, or VariantsSeq2SeqConfig keys with encoder and decoder; vocab_size and token ids are "
        "filled in",
        None,
        start="preset",
    )
    model_path: str | None = key("a checkpoint to start from instead, of the family or native (converted on the way)", None)
    method: Literal["full", "lora", "dora", "qlora"] = key(
        "which weights of model_path are trained; qlora: adapters on nf4 weights", "full"
    )
    adapter: AdapterSpec = key("adapter, for the methods that have one", factory=AdapterSpec)
    tokenizer: TokenizerSpec = key("tokenizer, trained on the training pairs unless it has a path", factory=TokenizerSpec)
    trainer: dict = key(
        "transformers TrainingArguments by their own names (max_steps, learning_rate, bf16, ...)", factory=dict
    )
    optimizer: Literal["adamw", "muon"] = key(
        "muon: Muon for hidden matrices, AdamW for the rest; adamw: trainer.optim", "adamw"
    )
    muon: dict = key("further options of torch.optim.Muon, by their own names (momentum, ns_steps, ...)", factory=dict)
    distributed: dict = key(DISTRIBUTED, factory=dict)
    generation: dict = key("GenerationConfig keys by their own names (num_beams, max_new_tokens, ...)", factory=dict)
    generated: int = key(
        "held-out pairs written at every evaluation during training; 0: none. At the end all are", 200, least=0
    )
    samples: int = key("held-out pairs shown in the report", 12, least=0)
    seed: int = key("seed of weights and data order", 0, **SEEDS)
    dtype: Literal["float32", "bfloat16", "float16"] = key("dtype of the weights in training", "float32")
    overwrite: bool = key("start afresh where output_dir holds a run with other settings", False)
    allow_changes: bool = key("continue the run in output_dir although settings changed (more steps, another rate)", False)

    # what this recipe trains, in the words of `TrainingSpec` and `FinetuneSpec`
    objective = task = "seq2seq"

    # a section of a recipe, and the keys by which a word leaves its others without effect
    superseded = {"tokenizer": ("tokenizer.path", "model_path")}

    def to_dict(self):
        """The spec as plain nested dicts, as YAML would hold it."""
        return dataclasses.asdict(self)
