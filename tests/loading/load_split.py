"""Loads checkpoints split over two processes and reports how far their logits are from those of one process.

task: {name: [directory, expected]}; writes {name: difference or error}.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig

import hf_variants  # noqa: F401


def difference(directory, expected):
    model = AutoModelForCausalLM.from_pretrained(directory, distributed_config=DistributedConfig(tp_size=2)).eval()
    tensors = load_file(expected)
    with torch.no_grad():
        logits = model(tensors["ids"]).logits
    width = model.model.layers[0].self_attn.k_proj.weight.to_local().shape[0] if "gqa" in str(directory) else None
    return [(logits - tensors["logits"]).abs().max().item(), width]


def main():
    task = json.loads(Path(sys.argv[1]).read_text())
    result = {}
    for name, (directory, expected) in task.items():
        try:
            result[name] = difference(directory, expected)
        except Exception as error:
            result[name] = [f"{type(error).__name__}: {error}", None]
    if os.environ["RANK"] == "0":
        Path(sys.argv[2]).write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
