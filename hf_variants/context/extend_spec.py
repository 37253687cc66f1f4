"""Every key of a context extension, as a dataclass; no torch here, so that the command line answers at once."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from ..training.bounds import SEEDS
from ..training.spec_parsing import key
from ..training.specs import DISTRIBUTED, DataSpec, TokenizerSpec, TrainingSpec

# Fine-tuning for a longer context needs few steps (YaRN, arXiv:2309.00071 §4.1, uses 400) and a gentle rate.
TRAINER_DEFAULTS = {"learning_rate": 2e-4, "per_device_train_batch_size": 4}
DEFAULT_STEPS = 100
Method = Literal["none", "theta", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope"]
COMPARED = get_args(Method)


@dataclass
class PasskeySpec:
    """Retrieval of a random key hidden in a text, before and after."""

    lengths: list[int] | None = key(
        "tokens of the texts; null: the old context and its doublings up to the new one, as far as they hold the task",
        None,
        least=1,
    )
    depths: list[float] = key(
        "where the key stands, as shares of the text before it", factory=lambda: [0.1, 0.5, 0.9], least=0, most=1
    )
    trials: int = key("random keys per length and depth; 0 leaves the measurement out", 2, least=0)


@dataclass
class LengthSpec:
    """One stage of a schedule of growing lengths."""

    length: int = key("tokens per row", least=2)
    steps: int = key("optimizer steps", least=1)
    rows: int | None = key("per_device_train_batch_size of this stage; null: that of the trainer section", None, least=1)


@dataclass
class ExtendSpec:
    """A longer context: compare scaling methods without training, then fine-tune with one of them."""

    model_path: str = key("checkpoint to extend, of the family or native (converted on the way)")
    output_dir: str = key("directory of the extended checkpoint")
    gguf_file: str | None = key("name of a GGUF file in model_path, which is then native", None)
    data: DataSpec = key("documents; data.sequence_length is the length of fine-tuning", factory=DataSpec)
    rows: Literal["long", "packed"] = key(
        "long: every row is a stretch of one document, so that all its distances are real; packed: as data.packing says",
        "long",
    )
    factor: float = key("the context becomes this many times longer", 4.0, least=1)
    method: Method = key("scaling to fine-tune and save with; theta raises rope_theta alone", "yarn")
    options: dict = key("further rope_parameters of the method, by their own names (beta_fast, rope_theta, ...)", factory=dict)
    layers: Literal["full_attention", "all"] | None = key(
        "which layers are rescaled; null: all of a flat rope_parameters, the full ones of a nested one", None
    )
    force: bool = key("replace the scaling of a checkpoint that is already scaled", False)
    compare: list[Method] = key("methods measured before any training", factory=lambda: list(COMPARED))
    passkey: PasskeySpec = key("passkey retrieval", factory=PasskeySpec)
    stages: list[LengthSpec] = key("lengths to train on one after the other; empty: data.sequence_length alone", factory=list)
    trainer: dict = key("transformers TrainingArguments of the fine-tuning; max_steps: 0 skips it", factory=dict)
    distributed: dict = key(DISTRIBUTED, factory=dict)
    position_buckets: int | None = key("equal ranges of positions to measure in; null: powers of two", 8, least=1)
    max_tokens: int | None = key("held-out tokens per measurement", 65536, least=1)
    seed: int = key("seed of the data order", 0, **SEEDS)
    dtype: Literal["float32", "bfloat16", "float16"] = key("dtype of the weights in training", "float32")
    overwrite: bool = key("start afresh where output_dir holds a run with other settings", False)
    allow_changes: bool = key("continue the run in output_dir although settings of the trainer changed", False)

    def to_dict(self):
        """The spec as plain nested dicts, as YAML would hold it."""
        return dataclasses.asdict(self)

    def training(self, stage=None, output_dir=None):
        """The `TrainingSpec` of the fine-tuning, or of one of its stages (`LengthSpec`)."""
        trainer = {**TRAINER_DEFAULTS, **self.trainer}
        length = self.data.sequence_length
        if stage is not None:
            trainer.pop("num_train_epochs", None)
            trainer["max_steps"], length = stage.steps, stage.length
            trainer["per_device_train_batch_size"] = stage.rows or trainer["per_device_train_batch_size"]
        elif "num_train_epochs" not in trainer:
            trainer.setdefault("max_steps", DEFAULT_STEPS)
        packing = "within_documents" if self.rows == "long" else self.data.packing
        cache = self.data.cache_dir or f"{self.output_dir}/data"
        return TrainingSpec(
            output_dir=output_dir or self.output_dir,
            data=dataclasses.replace(self.data, sequence_length=length, packing=packing, cache_dir=cache),
            model_path=self.model_path,
            tokenizer=TokenizerSpec(path=self.model_path),
            trainer=trainer,
            distributed=dict(self.distributed),
            seed=self.seed,
            dtype=self.dtype,
        )

    def trains(self):
        """Whether anything is trained."""
        return bool(self.stages) or self.trainer.get("max_steps") != 0
