"""Every key of a context extension, as a dataclass; no torch here, so that the command line answers at once."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from ..training.spec_parsing import key
from ..training.specs import DataSpec, TrainingSpec

# Fine-tuning for a longer context needs few steps (YaRN, arXiv:2309.00071 §4.1, uses 400) and a gentle rate.
TRAINER_DEFAULTS = {"learning_rate": 2e-4, "per_device_train_batch_size": 4}
DEFAULT_STEPS = 100


@dataclass
class ExtendSpec:
    """A longer context: compare scaling methods without training, then fine-tune with one of them."""

    model_path: str = key("checkpoint to extend")
    output_dir: str = key("directory of the extended checkpoint")
    data: DataSpec = key("documents; data.sequence_length is the length of fine-tuning", factory=DataSpec)
    factor: float = key("the context becomes this many times longer", 4.0)
    method: Literal["none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope"] = key(
        "scaling to fine-tune and save with", "yarn"
    )
    options: dict = key("further rope_parameters of the method, by their own names (beta_fast, ...)", factory=dict)
    layers: Literal["full_attention", "all"] | None = key(
        "which layers are rescaled; null: all of a flat rope_parameters, the full ones of a nested one", None
    )
    force: bool = key("replace the scaling of a checkpoint that is already scaled", False)
    compare: list[str] = key("methods measured before any training", factory=lambda: ["none", "linear", "ntk", "yarn"])
    trainer: dict = key("transformers TrainingArguments of the fine-tuning; max_steps: 0 skips it", factory=dict)
    position_buckets: int | None = key("equal ranges of positions to measure in; null: powers of two", 8)
    max_tokens: int | None = key("held-out tokens per measurement", 65536)
    seed: int = key("seed of the data order", 0)
    dtype: Literal["float32", "bfloat16", "float16"] = key("dtype of the weights in training", "float32")
    overwrite: bool = key("start afresh where output_dir holds a run with other settings", False)

    def to_dict(self):
        """The spec as plain nested dicts, as YAML would hold it."""
        return dataclasses.asdict(self)

    def training(self):
        """The `TrainingSpec` of the fine-tuning."""
        trainer = {**TRAINER_DEFAULTS, **self.trainer}
        if "num_train_epochs" not in trainer:
            trainer.setdefault("max_steps", DEFAULT_STEPS)
        return TrainingSpec(
            output_dir=self.output_dir,
            data=self.data,
            model_path=self.model_path,
            trainer=trainer,
            seed=self.seed,
            dtype=self.dtype,
        )
