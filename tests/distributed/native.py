"""What each of two processes runs: torchrun ... -m tests.distributed.native DIRECTORY.

DIRECTORY/tasks.json names models in DIRECTORY with their DistributedConfig; each is trained for three steps of SGD, measured,
and saved as NAME-trained. Rank 0 writes results.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file
from transformers.distributed.configuration_utils import DistributedConfig

import hf_variants  # noqa: F401

STEPS, RATE = 3, 0.1


def loaded(directory, task):
    auto = getattr(transformers, task["auto"])
    return auto.from_pretrained(directory, distributed_config=DistributedConfig(**task["parallel"]))


def batch_of(batch, task):
    """Ranks that shard the model by rows of data (FSDP) read half of the batch each, the others all of it."""
    if task["parallel"].get("fsdp_size", 1) == 1:
        return batch
    half = len(batch["input_ids"]) // 2
    return {name: rows[half * dist.get_rank() : half * (dist.get_rank() + 1)] for name, rows in batch.items()}


def inputs_of(tensors):
    """The keywords of a step of training."""
    return {name: tensor for name, tensor in tensors.items() if name != "logits"}


def outputs_of(model, tensors):
    """The numbers that a head predicts with, of the inputs without labels."""
    out = model.eval()(tensors["input_ids"], use_cache=False)
    return torch.stack([out.start_logits, out.end_logits], -1) if hasattr(out, "start_logits") else out.logits


def train(model, tensors, task):
    """Mean losses of all ranks, one per step."""
    losses, batch = [], batch_of(inputs_of(tensors), task)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, foreach=False)
    model.train()
    for _ in range(STEPS):
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def run(directory, name, task):
    tensors = load_file(directory / f"{name}.safetensors")
    result = {}
    model = loaded(directory / name, task)
    if task["train"]:
        result["losses"] = train(model, tensors, task)
        model.save_pretrained(directory / f"{name}-trained")
        del model
        model = loaded(directory / name, task)
    with torch.no_grad():
        result["difference"] = (outputs_of(model, tensors) - tensors["logits"]).abs().max().item()
    result["classes"] = [kind.__name__ for kind in type(model).__mro__[:3]]
    result["local"] = sum(getattr(weight, "to_local", lambda w=weight: w)().numel() for weight in model.parameters())
    result["sharded"] = sum(hasattr(weight, "device_mesh") for weight in model.parameters())
    return result


def main(directory):
    directory = Path(directory)
    results = {}
    for name, task in json.loads((directory / "tasks.json").read_text()).items():
        try:
            results[name] = run(directory, name, task)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"[:600]}
            import traceback

            traceback.print_exc()
    if os.environ["RANK"] == "0":
        (directory / "results.json").write_text(json.dumps(results))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # all is done and saved; gloo's threads now and then abort the interpreter on its way out


if __name__ == "__main__":
    main(*sys.argv[1:])
