"""What each of two processes runs: python -m torch.distributed.run ... -m tests.training_model.ranks JOB RESULT DIRECTORY."""

import os
import sys

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.training_model.support import batch_of, biases, identical_rows, sparse_model, step_of, trainer_of, uneven_rows

AUX = {"router_balance": "aux_loss", "router_aux_loss_coef": 1.0, "router_z_loss_coef": 0.5}
BIAS = {"router_balance": "bias", "router_bias_update_rate": 0.01}


def of_other_rank(tensor):
    gathered = [torch.empty_like(tensor) for _ in range(2)]
    torch.distributed.all_gather(gathered, tensor)
    return gathered[1]


def batch_cut(directory):
    results, lines = {}, {}
    jobs = (("uneven", uneven_rows(), {}), ("plain", identical_rows(), {}), ("aux", identical_rows(), AUX))
    for name, rows, options in jobs:
        results[name], line = step_of(sparse_model(**options), rows, directory, size=2, accumulate=2)
        lines[name] = {key: value for key, value in line.items() if isinstance(value, (int, float))}
    model = sparse_model(**BIAS)
    trainer_of(model, uneven_rows(24), directory, size=2, accumulate=2, max_steps=3).train()
    return {**results, "lines": lines, "bias": biases(model), "bias_of_other_rank": of_other_rank(biases(model))}


def disjoint_experts(directory):
    """Each rank routes to two experts of its own; DDP would wait for ever for an expert without a gradient."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = sparse_model(router_bias=True)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.zero_()
            layer.mlp.gate.bias[2 * rank : 2 * rank + 2] = 5.0
    # the routers differ on purpose, so DDP must not copy rank 0's over them
    wrapped = DistributedDataParallel(model, find_unused_parameters=False, init_sync=False)
    ids = torch.stack([row["input_ids"] for row in uneven_rows()])
    for _ in range(2):
        wrapped(input_ids=ids, labels=ids).loss.backward()
    loads = torch.stack([layer.mlp.gate.load for layer in model.model.layers])
    return {
        "missing": [n for n, p in model.named_parameters() if p.grad is None],
        "loads": loads,
        "other": of_other_rank(loads),
    }


def sharded(directory):
    """One step of FSDP2 on half of the rows each, and the weights it ends with."""
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    results = {}
    for name, options in (("bias", BIAS), ("aux", {**AUX, "tie_word_embeddings": True})):
        model, rows = sparse_model(**options), identical_rows() if name == "aux" else uneven_rows()
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        items = sum((row["labels"][1:] != -100).sum() for row in rows)
        rank = torch.distributed.get_rank()
        out = model.train()(**batch_of(rows[4 * rank : 4 * rank + 4]), num_items_in_batch=items)
        (2 * out.loss).backward()  # FSDP averages over the ranks
        optimizer.step()
        results[name] = {key: weight.full_tensor().detach() for key, weight in model.named_parameters()}
        if name == "bias":
            results["balance"] = biases(model)
    return results


JOBS = {"batch_cut": batch_cut, "disjoint_experts": disjoint_experts, "sharded": sharded}


def main(job, result, directory):
    found = JOBS[job](directory)
    if torch.distributed.get_rank() == 0:
        torch.save(found, result)
    torch.distributed.barrier()  # nobody leaves while another is still saving
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is done and saved; gloo's threads now and then abort the interpreter on its way out


if __name__ == "__main__":
    main(*sys.argv[1:])
