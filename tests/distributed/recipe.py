"""What each of two processes runs: torchrun ... -m tests.distributed.recipe SPEC.json KIND [LAST].

KIND `ddp` runs the recipe as it is. `fsdp` makes accelerate believe in accelerators, which it needs to shard at all; nothing
else is changed. After step LAST the run ends as by a kill. Rank 0 writes OUTPUT_DIR.json: result and the classes that wrapped.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from transformers import TrainerCallback, TrainingArguments

from hf_variants.training import TrainingSpec, build_spec, pretrain
from hf_variants.training import trainer as trainers


class Watch(TrainerCallback):
    def __init__(self, trainer, last):
        self.trainer, self.last, self.seen = trainer, last, {}

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.last:
            dist.barrier()
            os._exit(7)

    def on_step_end(self, args, state, control, **kwargs):
        wrapped = self.trainer.model_wrapped
        self.seen["wrapper"] = type(wrapped).__name__
        self.seen["parameter"] = type(next(iter(wrapped.parameters()))).__name__


def believe_in_accelerators():
    original = TrainingArguments.__post_init__

    def patched(self):
        original(self)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    TrainingArguments.__post_init__ = patched


def main(path, kind, last=None):
    if kind == "fsdp":
        believe_in_accelerators()
    watches, original = [], trainers.VariantsTrainer.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        watches.append(Watch(self, None if last is None else int(last)))
        self.add_callback(watches[-1])

    trainers.VariantsTrainer.__init__ = init
    spec = build_spec(TrainingSpec, json.loads(Path(path).read_text()))
    result = pretrain(spec)
    if dist.get_rank() == 0:
        Path(f"{spec.output_dir}.json").write_text(json.dumps({"result": result, **watches[0].seen}))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads now and then abort the interpreter on its way out


if __name__ == "__main__":
    main(*sys.argv[1:])
