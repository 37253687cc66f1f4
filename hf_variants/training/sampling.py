"""Continuations of a few prompts while a model trains, so that a reader sees what a loss means.

Notable here: the random state of training is put back afterwards, so a run with samples equals a run without; a resumed run
drops the samples of steps that it makes again.
"""

import json
import random
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import TrainerCallback

from .processes import is_writer

SAMPLES_FILE = "training_samples.jsonl"
DEFAULTS = {"max_new_tokens": 48, "do_sample": True, "temperature": 0.8, "top_p": 0.95}


class SamplesCallback(TrainerCallback):
    """Writes what the model makes of `prompts` to output_dir/training_samples.jsonl, every `steps` steps (None: whenever
    Trainer evaluates), as lines {step, prompt, text}.
    """

    def __init__(self, prompts, tokenizer, steps=None, generation=None, seed=0, announce=print):
        self.prompts, self.tokenizer, self.steps = list(prompts), tokenizer, steps
        self.options, self.seed, self.announce = {**DEFAULTS, **(generation or {})}, seed, announce
        self._last = None

    def on_train_begin(self, args, state, control, **kwargs):
        path = Path(args.output_dir) / SAMPLES_FILE
        if is_writer() and path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if json.loads(line)["step"] <= state.global_step]
            path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        # those of the checkpoint's own step were written before it
        self._last = state.global_step or None

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.steps is not None and state.global_step % self.steps == 0:
            self._sample(args, state, model)

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        if self.steps is None:
            self._sample(args, state, model)

    def _sample(self, args, state, model):
        if state.global_step == self._last:
            return
        self._last = state.global_step
        texts = continue_prompts(model, self.tokenizer, self.prompts, self.options, self.seed)
        if not is_writer():
            return
        records = [
            {"step": state.global_step, "prompt": prompt, "text": text}
            for prompt, text in zip(self.prompts, texts, strict=True)
        ]
        with (Path(args.output_dir) / SAMPLES_FILE).open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        for record in records:
            self.announce(f"sample at step {state.global_step}: {record['prompt']}|{' '.join(record['text'].split())}")


@torch.no_grad()
def continue_prompts(model, tokenizer, prompts, options, seed):
    """Continuations (list of str) of prompts, left-padded into one batch; mode and random state of the caller are kept."""
    was_training = model.training
    model.eval()
    try:
        with random_state_kept(seed):
            filler = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
            rows = [tokenizer(prompt)["input_ids"] for prompt in prompts]
            longest = max(map(len, rows))
            ids = torch.tensor([[filler] * (longest - len(row)) + row for row in rows], device=model.device)
            mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=model.device)
            output = model.generate(input_ids=ids, attention_mask=mask, pad_token_id=filler, **options)
    finally:
        model.train(was_training)
    return tokenizer.batch_decode(output[:, longest:], skip_special_tokens=True)


@contextmanager
def random_state_kept(seed=None):
    """Python's, numpy's and torch's generators are the same after the block; inside they start from `seed` where given."""
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)
