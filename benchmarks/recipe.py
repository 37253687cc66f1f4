"""The pretraining recipe beside a plain Trainer on the native model: the same weights, rows and arguments.

    recipe            tokens per second of whole runs of `Trainer.train`, without evaluation and saving
    python -m benchmarks.recipe   where the time of a step of the recipe goes: rows, callbacks, checks

Notable here: a share below one per cent drowns in the noise of two runs side by side, so the seconds inside our own callbacks,
checks and rows are added up in one run and divided by the seconds of its steps.
"""

import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, Trainer, TrainerCallback

from benchmarks.case import OURS, REFERENCE, Case, Ready
from benchmarks.pairs import models
from benchmarks.work import training_flops
from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.training.packing import PackingStats, pack_blocks
from hf_variants.training.pretraining import PreparedData, make_trainer
from hf_variants.training.row_files import PackedRows, write_rows
from hf_variants.training.spec_parsing import build_spec
from hf_variants.training.specs import TrainingSpec

SHAPE = {
    **{"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8},
    **{"num_key_value_heads": 4, "max_position_embeddings": 1024, "tie_word_embeddings": True},
    **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 352, "router_balance": "bias"}
LENGTH, BATCH, STEPS = 256, 4, 6
ARGUMENTS = {
    **{"max_steps": STEPS, "per_device_train_batch_size": BATCH, "learning_rate": 1e-4, "logging_steps": 2, "seed": 0},
    **{"eval_strategy": "no", "save_strategy": "no", "report_to": "none", "disable_tqdm": True},
}


class PlainRows(torch.utils.data.Dataset):
    """Rows [T] held in memory, as a loop of one's own would feed them."""

    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def random_rows(rows, folder):
    """(ids [rows, T], the same as `PackedRows`), each row a document."""
    ids = np.random.default_rng(0).integers(1, SHAPE["vocab_size"], (rows, LENGTH), dtype=np.int32)
    stats = PackingStats()
    write_rows(pack_blocks(iter(ids), LENGTH, stats=stats), folder, {}, stats)
    return torch.from_numpy(ids).long(), PackedRows(folder)


def plain_trainer(model, ids, folder):
    from transformers import TrainingArguments

    machine = {"dataloader_pin_memory": torch.cuda.is_available(), "use_cpu": not torch.accelerator.is_available()}
    same = {"weight_decay": 0.1, "adam_beta2": 0.95, "warmup_steps": 0.05, "lr_scheduler_type": "cosine"}
    arguments = TrainingArguments(output_dir=folder, **ARGUMENTS, **same, **machine)
    return Trainer(model=model, args=arguments, train_dataset=PlainRows(ids))


def recipe_trainer(model, rows, folder):
    trainer = {key: value for key, value in ARGUMENTS.items() if key != "seed"}
    mapping = {"output_dir": folder, "model": dict(SHAPE), "trainer": trainer, "data": {"sequence_length": LENGTH}}
    data = PreparedData(None, rows, None, {})
    return make_trainer(model, data, build_spec(TrainingSpec, mapping), announce=lambda line: None)[0]


def run_of(trainer):
    """`Ready` for one whole run; returns the mean loss of its steps."""

    def run():
        return torch.tensor(trainer.train().training_loss)

    return Ready(run, STEPS * BATCH * LENGTH)


def build(sides):
    folder = tempfile.mkdtemp()
    ids, rows = random_rows(STEPS * BATCH, Path(folder) / "rows")
    pair = models(LlamaConfig(**SHAPE), sides)
    made = {
        REFERENCE: lambda: plain_trainer(pair[REFERENCE].train(), ids, folder),
        OURS: lambda: recipe_trainer(pair[OURS].train(), rows, folder),
    }
    return {side: run_of(made[side]()) for side in sides}


CASES = [
    Case(
        "recipe",
        f"pretrain recipe against a plain native Trainer, 4 layers of 256, T={LENGTH}, {STEPS} steps of {BATCH} rows, AdamW",
        build,
        flops=lambda: training_flops(LlamaConfig(**SHAPE), STEPS * BATCH, LENGTH),
        targets={"speed": 1.0},
        rounds=7,
        seconds=90,
        tolerance=1e-4,
    )
]


class StepClock(TrainerCallback):
    """Seconds of whole steps, waiting for rows included: from the end of one to the end of the next."""

    def __init__(self):
        self.began, self.seconds, self.steps = None, 0.0, 0

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        if self.began is not None:
            self.seconds, self.steps = self.seconds + now - self.began, self.steps + 1
        self.began = now


def clocked(owner, name, spent, part, sign=1):
    """A patch under which the seconds inside `owner.name` are added to spent[part], or taken from it."""
    inner = getattr(owner, name)

    def outer(*args, **kwargs):
        began = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            spent[part] += sign * (time.perf_counter() - began)

    return patch.object(owner, name, outer)


def shares(trainer):
    """{part: share of the seconds of all steps} of one run: our callbacks, reading rows, and what `VariantsTrainer` adds to
    the steps of Trainer.
    """
    # the clock starts with the end of the first step, what is spent with its beginning: shares err to the large side
    spent, clock = defaultdict(float), StepClock()
    trainer.add_callback(clock)
    with ExitStack() as patches:
        for callback in trainer.callback_handler.callbacks:
            if type(callback).__module__.startswith("hf_variants"):
                events = [name for name in dir(callback) if name.startswith("on_")]
                for name in events:
                    patches.enter_context(clocked(callback, name, spent, type(callback).__name__))
        patches.enter_context(clocked(trainer, "get_batch_samples", spent, "rows"))
        for name in ("training_step", "_get_grad_norm"):
            patches.enter_context(clocked(type(trainer), name, spent, "checks of numbers"))
            patches.enter_context(clocked(Trainer, name, spent, "checks of numbers", sign=-1))
        trainer.train()
    return {part: seconds / clock.seconds for part, seconds in spent.items()}


def main(arguments):
    """Print where the time of a step goes, in a dense model and in one with experts."""
    if arguments:
        raise SystemExit("benchmarks.recipe takes no arguments")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        _, rows = random_rows(STEPS * BATCH, Path(folder) / "rows")
        for name, keys in {"dense": {}, "experts": EXPERTS}.items():
            model = VariantsForCausalLM(VariantsConfig(**SHAPE, **keys))
            recipe_trainer(model, rows, folder).train()
            found[name] = shares(recipe_trainer(model, rows, folder))
    table = Table("part of a step", *found)
    for part in sorted(found["experts"]):
        table.add_row(part, *(f"{parts.get(part, 0):.3%}" for parts in found.values()))
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
