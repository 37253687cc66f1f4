"""HF's Trainer with seven differences: which parameters decay, Muon, rows that carry positions, held-out rows that hide the
same at every evaluation, a stop at the first loss or gradient that is no number, saves and uploads that cannot harm the last
checkpoint, and going on with models that transformers sharded at load time.

Notable here: everything else (mixed precision, FSDP, DeepSpeed, Hub, trackers) is Trainer's own and is set by its own
arguments.
"""

import copy
import logging
import math
import os
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer
from transformers.trainer_utils import SchedulerType

from .checkpoints import last_good_checkpoint
from .errors import RunStopped
from .health import locate
from .muon import muon_optimizer
from .saves import saving
from .sharding import load_optimizer, load_weights, save_optimizer, save_weights, saving_allowed, scheduler_state_for

logger = logging.getLogger(__name__)


class VariantsTrainer(Trainer):
    """Trainer whose weight decay touches matrices alone: no norm, no bias, no embedding (tied head included).

    Raises:
        RunStopped: in `train`, when the loss or the norm of the gradients is not finite (before the weights are changed), or
            when a checkpoint cannot be written; the message names the step, the layer and the last good checkpoint.
    """

    def __init__(self, model=None, args=None, *, muon=None, **kwargs):
        """Args: as those of Trainer, by name. muon: options of torch.optim.Muon, which then trains the hidden matrices."""
        with saving_allowed(model, args):
            # by name: the order of TRL's trainers is another
            super().__init__(model=model, args=args, **kwargs)
        self._refuse_silent_copies()
        self.muon = muon
        self.failed_uploads = []
        self._micro_batches, self._losses = [], []

    def _refuse_silent_copies(self):
        """accelerate turns FSDP on for accelerators alone; on CPUs it would copy the model to every process, unsaid."""
        asked = bool(self.args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true")
        kind = str(self.accelerator.distributed_type).rsplit(".", 1)[-1]
        if asked and kind != "FSDP":
            raise ValueError(
                f"trainer.fsdp asks for sharded weights, but accelerate would run {kind} here (a copy on every process); FSDP "
                "through accelerate needs accelerators and more than one process. Leave fsdp out, or shard on CPUs with "
                "transformers' DistributedConfig(fsdp_size=...)"
            )

    def save_model(self, output_dir=None, _internal_call=False):
        if self.is_distributed_loading_by_transformers and _internal_call:
            save_weights(self.model, output_dir, self.args.should_save)
            return
        if self.is_fsdp_enabled and not _internal_call:
            # of sharded states Trainer would write nothing here; the final model is whole
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        super().save_model(output_dir, _internal_call)

    def _save(self, output_dir=None, state_dict=None):
        # gathered from shards, tied weights are two tensors, of which a checkpoint holds one
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        for name, source in tied.items():
            if state_dict is not None and source in state_dict:
                state_dict.pop(name, None)
        super()._save(output_dir, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        if self.is_distributed_loading_by_transformers:
            load_weights(self.model, resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_optimizer_and_scheduler(self, output_dir):
        if not self.is_distributed_loading_by_transformers:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_optimizer(self.model, self.optimizer, output_dir)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is None or not self.is_distributed_loading_by_transformers:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        load_optimizer(self.model, self.optimizer, checkpoint)
        state = torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True)
        self.lr_scheduler.load_state_dict(scheduler_state_for(state, len(self.optimizer.param_groups)))

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        if self.args.world_size > 1:
            # the first process calls a checkpoint whole by its next file, so all others must have written theirs
            torch.distributed.barrier()

    def get_eval_dataloader(self, eval_dataset=None):
        # what a collator hides of held-out rows does not follow the epoch of training
        of_training = self.data_collator
        if getattr(of_training, "epoch", 0):
            self.data_collator = copy.copy(of_training)
            self.data_collator.epoch = 0
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = of_training

    def get_decay_parameter_names(self, model):
        return decay_parameter_names(model)

    def create_optimizer(self, model=None):
        if self.muon is None or self.optimizer is not None:
            return super().create_optimizer(model)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled or self.is_distributed_loading_by_transformers:
            raise ValueError("optimizer='muon' needs whole matrices, and this run shards them; use optimizer='adamw'")
        model = self.model if model is None else model
        self.optimizer = muon_optimizer(model, self.get_decay_parameter_names(model), self.args, self.muon)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.args.lr_scheduler_type == SchedulerType.WARMUP_STABLE_DECAY:
            self.args.lr_scheduler_kwargs = with_decay_steps(self.args.lr_scheduler_kwargs, num_training_steps)
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(self, model, inputs, num_items_in_batch=None):
        self._micro_batches.append(dict(inputs))
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append(loss.detach())
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        # Trainer asks once per optimizer step, after clipping and before the weights change.
        norm = super()._get_grad_norm(model, grad_norm)
        # the losses of all micro-batches are read here too, for each reading waits for an accelerator
        losses, self._losses = self._losses, []
        for loss in torch.stack(losses).tolist() if losses else ():
            if not math.isfinite(loss):
                self._stop_at("loss", loss)
        # With a scaler (fp16) infinite gradients are its signal to lower the scale and skip the step.
        scaled = getattr(self.accelerator, "scaler", None) is not None
        if norm is not None and not scaled and not math.isfinite(norm):
            self._stop_at("norm of the gradients", float(norm))
        self._micro_batches = []
        return norm

    def _stop_at(self, what, value):
        step = self.state.global_step + 1
        good = last_good_checkpoint(self.args.output_dir)
        way = f"the last good checkpoint is {good}" if good else "no checkpoint was written before"
        raise RunStopped(
            f"step {step}: the {what} is {value}; {self._origin()}. The weights were not changed by this step and {way}; "
            "lower trainer.learning_rate, raise trainer.warmup_steps or lower trainer.max_grad_norm, and run again (pretrain "
            "and extend go on from that checkpoint with allow_changes=true)"
        )

    def _origin(self):
        bare = self.accelerator.unwrap_model(self.model)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled or self.is_distributed_loading_by_transformers:
            # to run the batch again takes all processes, and only some may have seen it
            return "its layer is not looked for in a sharded model"
        batches = [self._prepare_inputs(batch) for batch in self._micro_batches]
        bare.zero_grad(set_to_none=True)
        try:
            with self.compute_loss_context_manager():
                return locate(bare, batches)
        except (TypeError, ValueError, KeyError, AttributeError):
            # rows of a trainer that makes its own inputs of them, such as pairs of preferences
            return "its layer is not known, since the model cannot read the rows of this trainer by itself"

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        with saving(folder, self.args.output_dir, partial=folder):
            super()._save_checkpoint(model, trial)

    def _push_from_checkpoint(self, checkpoint_folder):
        with self._upload_may_fail(checkpoint_folder):
            super()._push_from_checkpoint(checkpoint_folder)
            for job in self.push_in_progress.jobs if self.push_in_progress is not None else ():
                job.add_done_callback(lambda job: self._note_upload(checkpoint_folder, job.exception()))

    def push_to_hub(self, *args, **kwargs):
        with self._upload_may_fail(self.args.output_dir):
            return super().push_to_hub(*args, **kwargs)

    @contextmanager
    def _upload_may_fail(self, what):
        try:
            yield
        except Exception as error:  # whatever the network does, training and what is on the disk go on
            self._note_upload(what, error)

    def _note_upload(self, what, error):
        if error is None or any(known is error for _, known in self.failed_uploads):
            return
        self.failed_uploads.append((str(what), error))
        logger.warning("the upload of %s failed and was left out: %s", what, " ".join(str(error).split())[:300])


def with_decay_steps(options, steps):
    """Options of the warmup-stable-decay schedule (Hu et al. 2024, arXiv:2404.06395) with `num_decay_steps`: as given, or a
    share of the `steps` where it is below one; a fifth of them where it is missing.
    """
    options = dict(options or {})
    decay = options.get("num_decay_steps", 0.2)
    return {**options, "num_decay_steps": round(decay * steps) if decay < 1 else int(decay)}


def decay_parameter_names(model):
    """Names of the parameters that weight decay pulls towards zero.

    Norm gains and biases have one or few numbers per channel and no scale redundancy; an embedding row sees a gradient
    only when its token occurs, so decay would shrink rare tokens alone (GPT-3 and Llama decay neither).
    """
    excluded = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding) or "norm" in type(module).__name__.lower():
            excluded.update(id(parameter) for parameter in module.parameters(recurse=False))
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and id(parameter) not in excluded and "bias" not in name.rsplit(".", 1)[-1]
    ]


def collate_rows(rows):
    """Stack packed rows into int64 tensors [B, T]; rows are stored as int32 to halve the cache."""
    return {name: torch.stack([torch.as_tensor(row[name]) for row in rows]).long() for name in rows[0]}
