"""Shared by the tests of the model under Trainer: small sparse models, rows with uneven labels, one step of plain SGD."""

import copy

import torch
from transformers import Trainer, TrainingArguments

from hf_variants import VariantsConfig, VariantsForCausalLM

SPARSE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}


def sparse_config(**overrides):
    return VariantsConfig(**{**SPARSE, **overrides})


def sparse_model(cls=VariantsForCausalLM, seed=0, spread=5.0, **overrides):
    """A model whose weights are `spread` times larger than at initialisation, so that routers are skewed."""
    torch.manual_seed(seed)
    model = cls(sparse_config(**overrides))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(spread)
    return model


def biases(model):
    """The selection biases [layers, experts] of a model whose layers are all sparse."""
    return torch.stack([layer.mlp.gate.e_score_correction_bias for layer in model.model.layers])


def uneven_rows(count=8, length=12, seed=1):
    """Rows of which the first i tokens are no targets."""
    ids = torch.randint(1, 61, (count, length), generator=torch.Generator().manual_seed(seed))
    labels = ids.clone()
    for index in range(count):
        labels[index, :index] = -100
    return [
        {"input_ids": row, "labels": label, "attention_mask": torch.ones_like(row)}
        for row, label in zip(ids, labels, strict=True)
    ]


def identical_rows(count=8, length=12):
    return uneven_rows(1, length) * count


def batch_of(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def arguments(directory, **overrides):
    """Plain SGD with a learning rate of one: the change of a weight is its gradient."""
    given = {
        "output_dir": str(directory),
        "optim": "sgd",
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "train_sampling_strategy": "sequential",
    }
    return TrainingArguments(**{**given, **overrides})


def trainer_of(model, rows, directory, size=8, accumulate=1, **overrides):
    cut = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}
    return Trainer(model, arguments(directory, **cut, **overrides), train_dataset=rows, eval_dataset=rows)


def step_of(model, rows, directory, size=8, accumulate=1, **overrides):
    """Gradients by name, and the logged line, of one optimizer step of a copy of `model` under Trainer."""
    trained = copy.deepcopy(model)
    trainer = trainer_of(trained, rows, directory, size, accumulate, **overrides)
    trainer.train()
    before = dict(model.named_parameters())
    gradients = {name: before[name].detach() - after.detach() for name, after in trained.named_parameters()}
    return gradients, trainer.state.log_history[0]


def distance(first, second):
    """Norm of the difference of two sets of gradients, relative to the first."""
    joined = [torch.cat([gradients[name].flatten() for name in sorted(first)]) for gradients in (first, second)]
    return ((joined[0] - joined[1]).norm() / joined[0].norm()).item()


def difference(first, second):
    return {name: first[name] - second[name] for name in first}
