"""Every key of the `finetune` recipe, as dataclasses, and the keys that only some tasks and methods have.

Notable here: `trainer` takes TRL's and transformers' own names, so that nothing has a second name here; a key that would do
nothing is refused.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from ..modeling.vocabulary import nearest
from ..training.bounds import SEEDS, check_numbers
from ..training.idle_keys import refuse_idle_keys
from ..training.spec_parsing import key
from ..training.specs import DISTRIBUTED

ADAPTERS = ("lora", "dora", "qlora")


@dataclass
class ExamplesSpec:
    """Where the examples come from and how they are split."""

    source: str = key("a .jsonl, .json, .csv or .parquet file, or a `datasets` name; for task=continued also text", "")
    subset: str | None = key("configuration name of a `datasets` source", None)
    split: str = key("split of a `datasets` source", "train")
    text_key: str = key("field that holds the text, for task=classification and continued", "text")
    label_key: str = key("field that holds the class, for task=classification", "label")
    max_examples: int | None = key("read only so many examples", None, least=1)
    sequence_length: int = key("tokens per example at most; per row for task=continued", 256, least=2)
    over_long: Literal["refuse", "truncate", "drop"] = key(
        "what to do with longer examples; their number is always shown", "refuse"
    )
    eval_fraction: float = key("share of the examples held out", 0.1, least=0, below=1)
    eval_source: str | None = key("a held-out source of its own, instead of eval_fraction", None)
    split_seed: int = key("seed of the choice of held-out examples", 0, **SEEDS)


@dataclass
class AdapterSpec:
    """Low-rank adapters: LoRA (Hu et al. 2021, arXiv:2106.09685), DoRA (Liu et al. 2024, arXiv:2402.09353), QLoRA (Dettmers et
    al. 2023, arXiv:2305.14314).
    """

    r: int = key("rank", 16, least=1)
    alpha: float = key("scale of the update: alpha / r", 32.0, above=0)
    dropout: float = key("dropout of the adapter's input", 0.0, least=0, below=1)
    target_modules: str | list[str] = key(
        "what is adapted: all-linear reaches every projection and every expert, or names such as [q_proj, v_proj]",
        "all-linear",
    )
    rslora: bool = key("scale by alpha / sqrt(r) instead (Kalajdzievski 2023, arXiv:2312.03732)", False)
    merge: bool = key("also write output_dir/merged, a model that needs no peft, and compare its logits", True)


@dataclass
class FinetuneSpec:
    """A fine-tuning run, from a checkpoint of the family or a native one to a checkpoint directory."""

    output_dir: str = key("directory of checkpoints and of the final model or adapter")
    model_path: str = key("checkpoint directory or Hub id, of the family or native (converted on the way)")
    gguf_file: str | None = key("name of a GGUF file in model_path, whose weights are dequantized", None)
    toggles: dict = key("VariantsConfig keys to change while loading; what has no weights yet starts fresh", factory=dict)
    task: Literal["supervised", "preference", "continued", "classification"] = key(
        "supervised: chats, or prompts with completions; preference: DPO on chosen and rejected answers (Rafailov et al. "
        "2023, arXiv:2305.18290); continued: more text; classification: texts with classes",
        "supervised",
    )
    method: Literal["full", "lora", "dora", "qlora"] = key("which weights are trained; qlora: adapters on nf4 weights", "full")
    adapter: AdapterSpec = key("adapter, for the methods that have one", factory=AdapterSpec)
    data: ExamplesSpec = key("examples", factory=ExamplesSpec)
    loss_on: Literal["completion", "all"] = key(
        "tokens that a supervised run learns: those of the answers, or all", "completion"
    )
    chat_template: str | None = key("a Jinja file; null keeps the tokenizer's template, or gives it a plain one", None)
    trainer: dict = key("SFTConfig, DPOConfig or TrainingArguments by their own names (max_steps, beta, ...)", factory=dict)
    distributed: dict = key(DISTRIBUTED, factory=dict)
    samples: int = key("held-out prompts that a supervised run answers at its end", 3, least=0)
    seed: int = key("seed of adapters, fresh heads and data order", 0, **SEEDS)
    dtype: Literal["float32", "bfloat16", "float16"] = key("dtype of the weights in training", "float32")
    overwrite: bool = key("start afresh where output_dir holds a run with other settings", False)
    allow_changes: bool = key("continue the run in output_dir although settings changed (more steps, another rate)", False)

    def to_dict(self):
        """The spec as plain nested dicts, as YAML would hold it."""
        return dataclasses.asdict(self)


# key -> the tasks that read it
_TASKS_OF = {
    "data.text_key": ("classification", "continued"),
    "data.label_key": ("classification",),
    "data.over_long": ("supervised", "preference", "classification"),
    "loss_on": ("supervised",),
    "chat_template": ("supervised", "preference"),
    "samples": ("supervised",),
}


def _check_split(spec):
    """Refuse a `distributed` section where the run could not be that of one process, whatever the base is."""
    from ..training.sharding import check_distributed, ranks_per_row

    check_distributed(spec)
    if not spec.distributed:
        return
    section = f"distributed={spec.distributed!r}"
    if spec.method != "full":
        raise ValueError(
            f"method={spec.method!r} puts adapters on the weights, which transformers would leave out of {section}: each "
            "process would train its own. Use method='full', or leave distributed out (each process then holds the whole base)"
        )
    if spec.task in ("supervised", "preference") and ranks_per_row(spec.distributed) > 1:
        raise ValueError(
            f"task={spec.task!r} is trained by TRL, which reads the head's weight itself, and {section} cuts that weight into "
            "pieces of the vocabulary; use fsdp_size and ep_size"
        )
    if spec.trainer.get("precompute_ref_log_probs"):
        raise ValueError(
            f"trainer.precompute_ref_log_probs=true runs the model before its optimizer is made, which then misses the shards "
            f"of {section}; leave it out (the reference is sharded too)"
        )


def check_keys(spec):
    """Refuse keys of a `FinetuneSpec` that its task or method does not read, and impossible numbers. Raises ValueError."""
    from ..modeling.configuration_variants import VariantsConfig

    check_numbers(spec)
    for name in spec.toggles:
        if name not in VariantsConfig.own_fields():
            meant = nearest(name, VariantsConfig.own_fields())
            raise ValueError(f"unknown key 'toggles.{name}'{meant}; it takes the keys of VariantsConfig")
    refuse_idle_keys(spec, "task", _TASKS_OF)
    refuse_idle_keys(spec, "method", {"adapter": ADAPTERS})
    _check_split(spec)
