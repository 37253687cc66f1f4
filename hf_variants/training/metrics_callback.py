"""Metrics of the held-out documents while a model trains: those of `hf_variants.metrics`, and tasks of lm-evaluation-harness.

    metrics:
      bits_per_byte: {max_tokens: 20000}
      passkey: {lengths: [512, 1024]}
      expert_balance: {}
      lm_eval: {tasks: [hellaswag], limit: 200}

Notable here: they run whenever Trainer evaluates and are logged as `metric/NAME/VALUE`; the random state of training is kept.
"""

import inspect
from importlib.util import find_spec

import torch
from transformers import TrainerCallback

from ..modeling.vocabulary import nearest
from .sampling import random_state_kept

# name: file of hf_variants.evaluation, function in it
_MEASURES = {
    "perplexity": ("perplexity", "corpus_perplexity"),
    "bits_per_byte": ("perplexity", "corpus_perplexity"),
    "passkey": ("passkey", "passkey_retrieval"),
    "expert_balance": ("expert_balance", "expert_balance"),
}
NAMES = (*_MEASURES, "lm_eval")
_FILLED_IN = ("model", "tokenizer", "texts")


class MetricsCallback(TrainerCallback):
    """Runs `metrics` ({name: options}) whenever Trainer evaluates and logs their numbers.

    Args:
        trainer: whose `log` receives the values. texts: held-out documents.
    """

    def __init__(self, trainer, metrics, tokenizer, texts):
        self.trainer, self.metrics, self.tokenizer, self.texts = trainer, metrics, tokenizer, texts

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        values = {}
        for name, options in self.metrics.items():
            with random_state_kept(), torch.no_grad():
                measured = measure(name, options, model, self.tokenizer, self.texts)
            values.update({f"metric/{name}/{key}": value for key, value in measured.items()})
        self.trainer.log(values)


def measure(name, options, model, tokenizer, texts):
    """The numbers (a flat dict) of one metric."""
    from ..evaluation.expert_balance import expert_balance
    from ..evaluation.passkey import passkey_retrieval, summary
    from ..evaluation.perplexity import corpus_perplexity

    if name == "passkey":
        rows = passkey_retrieval(model, tokenizer, **options)
        return {**summary(rows), **{f"accuracy_{row['length']}": row["accuracy"] for row in rows}}
    if name == "expert_balance":
        return _numbers(expert_balance(model, tokenizer, texts, **options))
    if name == "lm_eval":
        return lm_eval_tasks(model, tokenizer, **options)
    measured = corpus_perplexity(model, tokenizer, texts, **options)
    return {name: getattr(measured, name), "tokens": measured.tokens}


def lm_eval_tasks(model, tokenizer, tasks, limit=None, batch_size=1, include_path=None, num_fewshot=None):
    """{task/metric: value} of tasks of lm-evaluation-harness.

    Args:
        tasks: their names. limit: examples per task. include_path: a folder of further task files.
    """
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    was_training = model.training
    model.eval()
    try:
        found = lm_eval.simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size),
            tasks=list(tasks),
            limit=limit,
            num_fewshot=num_fewshot,
            task_manager=TaskManager(include_path=include_path),
            bootstrap_iters=0,
        )
    finally:
        model.train(was_training)
    return {
        f"{task}/{key.removesuffix(',none')}": float(value)
        for task, values in found["results"].items()
        for key, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def check_metrics(metrics):
    """Raise a ValueError for a metric or an option that is unknown, or lm_eval where it is not installed."""
    for name, options in metrics.items():
        if name not in NAMES:
            raise ValueError(f"unknown key 'metrics.{name}'{nearest(name, NAMES)}; choose from {list(NAMES)}")
        if not isinstance(options, dict):
            raise ValueError(f"metrics.{name}={options!r} must be a section of options, as {{}}")
        known = [key for key in inspect.signature(_function_of(name)).parameters if key not in _FILLED_IN]
        for key in options:
            if key not in known:
                raise ValueError(f"unknown key 'metrics.{name}.{key}'{nearest(key, known)}; it takes {known}")
    if "passkey" in metrics and not metrics["passkey"].get("lengths"):
        raise ValueError("metrics.passkey.lengths is missing; give the lengths of its texts in tokens, as [512, 1024]")
    if "lm_eval" in metrics and not metrics["lm_eval"].get("tasks"):
        raise ValueError("metrics.lm_eval.tasks is missing; give names of tasks, as [hellaswag]")
    if "lm_eval" in metrics and find_spec("lm_eval") is None:
        raise ValueError("metrics.lm_eval needs the lm-evaluation-harness: pip install lm-eval")


def _function_of(name):
    from importlib import import_module

    if name == "lm_eval":
        return lm_eval_tasks
    file, function = _MEASURES[name]
    return getattr(import_module(f"..evaluation.{file}", __package__), function)


def _numbers(measured):
    return {key: value for key, value in measured.items() if isinstance(value, (int, float))}
