"""`python -m benchmarks.peers [WORK ...]`: prefill, decode and training step beside LitGPT and x-transformers.

Each peer lives in an environment of its own under `.venv-peers/`, made when it is missing (torch first, versions pinned in
`peers.txt` beside this file). Every side, native and ours included, is a process that holds the same weights; calls go round
by round from side to side, one at a time, and the ratios are the medians of the rounds', as in `case.py`. One row per work and
peer is written among the other results. What has a result is kept, unless its WORK is named or `--again` is given.

Notable here: a peer that cannot be installed is skipped with how to install it; numbers other than the native side's fail.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import machine
from benchmarks.case import OURS, REFERENCE
from benchmarks.files import write_atomically
from benchmarks.generation import SHAPE

PEERS = {"litgpt": "litgpt", "x-transformers": "x-transformers"}
ENVIRONMENTS, PINNED = Path(".venv-peers"), Path(__file__).with_name("peers.txt")
# x-transformers' norm has no epsilon, so all have one too small to be seen
LENGTHS = {"max_position_embeddings": 1024, "rms_norm_eps": 1e-10}
# work -> (what is asked of a worker, tokens of one call, title, how far values may differ relative to the largest)
WORKS = {
    "prefill": ({"do": "prefill", "batch": 4, "length": 512}, 2048, "prefill, 12 layers, 4 x 512 tokens", 1e-3),
    "decode": ({"do": "decode", "batch": 1, "length": 32, "tokens": 48}, 48, "greedy decode, 12 layers, 1 row", 0.0),
    "train": ({"do": "train", "batch": 4, "length": 512}, 2048, "training step, 12 layers, 4 x 512 tokens, fp32", 1e-3),
}


def row_name(work, peer):
    return f"{work}_{peer}"


ROWS = [row_name(work, peer) for work in WORKS for peer in PEERS]


def install_commands(peer):
    """What makes the environment of a peer, command by command."""
    folder = ENVIRONMENTS / peer
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-c", str(PINNED)]
    pinned = next(line for line in PINNED.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
    # safetensors carries the weights, and is no dependency of every peer
    return [[sys.executable, "-m", "venv", str(folder)], [*pip, pinned], [*pip, PEERS[peer], "safetensors"]]


def environment(peer, announce):
    """The interpreter of a peer's environment, made if needed; None, after saying how to make it, where that failed."""
    folder = ENVIRONMENTS / peer
    python, stamp, pinned = folder / "bin" / "python", folder / ".installed", PINNED.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == pinned:
        return str(python)
    announce(f"{peer}: installing into {folder} (a few minutes)")
    for command in install_commands(peer):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            said, failed = done.stderr, done.returncode
        except OSError as error:
            said, failed = str(error), True
        if failed:
            steps = "\n".join(f"  {' '.join(part)}" for part in install_commands(peer))
            announce(
                f"{peer}: SKIPPED, {' '.join(command)} failed:\n{said.strip()[-600:]}\nOnce this works, run again:\n{steps}"
            )
            return None
    write_atomically(pinned, stamp)
    return str(python)


class Worker:
    """A side in a process of its own, which answers one call at a time."""

    def __init__(self, python, side, settings, **variables):
        command = [python, "-m", "benchmarks.peer_worker", side, json.dumps(settings)]
        self.side, self.errors = side, tempfile.TemporaryFile("w+")
        around = {**os.environ, "OMP_NUM_THREADS": str(settings["threads"]), "PYTHONPATH": os.getcwd(), **variables}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors, "text": True, "env": around}
        self.process = subprocess.Popen(command, **pipes)

    def ask(self, question):
        """Raises RuntimeError with what the worker said where it died."""
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise RuntimeError(f"the worker of {self.side} died at {question}:\n{self.errors.read()[-2000:]}")
        return json.loads(line)

    def close(self):
        with suppress(BrokenPipeError):  # of a question that a dead worker never took
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def alternate(workers, question, rounds, seconds):
    """({side: [(wall, cpu)]}, {side: value}): every side in turn, the order turning around; the first round is not timed."""
    names, taken = list(workers), {name: [] for name in workers}
    values = {name: worker.ask(question)["value"] for name, worker in workers.items()}
    began = time.perf_counter()
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - began > seconds:
            break
        for name in names if number % 2 == 0 else reversed(names):
            found = workers[name].ask(question)
            taken[name].append((found["wall"], found["cpu"]))
    return taken, values


def differences(work, values, tolerance):
    """{side: largest difference from native, relative to its largest number}.

    Raises ValueError where a side computes something else.
    """
    expected, found = torch.tensor(values[REFERENCE], dtype=torch.float64), {}
    for side, value in values.items():
        value = torch.tensor(value, dtype=torch.float64)
        if value.shape != expected.shape:
            raise ValueError(f"{work}: {side} returns {tuple(value.shape)} numbers, native {tuple(expected.shape)}")
        found[side] = ((value - expected).abs().max() / expected.abs().max()).item()
        if not found[side] <= tolerance:
            raise ValueError(
                f"{work}: {side} and native differ by {found[side]:.2e}, more than {tolerance}: not the same work"
            )
    return found


def row_of(work, peer, taken, values, about):
    """The result of one row, as `run_case` writes them: the peer is the reference, native stands beside."""
    _, units, title, tolerance = WORKS[work]
    found = {"case": row_name(work, peer), "title": f"{title}, against {peer}", "unit": "tokens", "targets": {"speed": 1.0}}
    found.update(about)
    found["sides"] = {
        side: {
            "per_second": units / statistics.median(wall for wall, _ in taken[side]),
            "seconds": statistics.median(wall for wall, _ in taken[side]),
            "cpu_seconds": statistics.median(cpu for _, cpu in taken[side]),
        }
        for side in (peer, REFERENCE, OURS)
    }
    pairs = list(zip(taken[peer], taken[OURS], strict=True))
    found["rounds"] = len(pairs)
    found["speed"] = statistics.median(a[0] / b[0] for a, b in pairs)
    found["cpu"] = statistics.median(a[1] / max(b[1], 1e-9) for a, b in pairs)
    found["difference"] = differences(work, values, tolerance)[OURS]
    return found


def save_weights(shape, target):
    """Weights of a native Llama of this shape, drawn with one seed, without the head that is the table."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    weights = LlamaForCausalLM(LlamaConfig(**shape)).state_dict()
    save_file({key: value.contiguous() for key, value in weights.items() if key != "lm_head.weight"}, target)


def compare(pythons, works, settings, rounds, seconds, peaks=True, announce=print):
    """{row name: result} of the works for every side of `pythons` ({side: interpreter}), native and ours among them."""
    about = {"machine": machine.describe(), "limits": machine.limits()}
    found, workers = {}, {}
    try:
        for side, python in pythons.items():
            workers[side] = Worker(python, side, settings)
        for work in works:
            question, _, title, _ = WORKS[work]
            announce(f"{work}: {title}; {', '.join(workers)} in turn")
            taken, values = alternate(workers, question, rounds, seconds)
            for peer in pythons:
                if peer not in (REFERENCE, OURS):
                    found[row_name(work, peer)] = row_of(work, peer, taken, values, about)
    finally:
        for worker in workers.values():
            worker.close()
    if peaks and "train" in works:
        add_peaks(found, pythons, settings)
    return found


def add_peaks(found, pythons, settings):
    """Peaks of a training step, per side in a fresh process that gives freed tensors back at once."""
    heights, question = {}, {**WORKS["train"][0], "do": "peak"}
    for side, python in pythons.items():
        worker = Worker(python, side, settings, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
        try:
            heights[side] = worker.ask(question)
        finally:
            worker.close()
    for peer in pythons:
        row = found.get(row_name("train", peer))
        if row is not None:
            row["peaks"] = {side: heights[side] for side in (peer, REFERENCE, OURS)}
            row["peak"] = heights[OURS]["peak"] / heights[peer]["peak"]


def parse(argv):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument(
        "works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}; those without a result when none is named"
    )
    parser.add_argument("--again", action="store_true", help="measure works that have a result too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds at most, beside one that warms up (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="no round of a work begins later (%(default)s)")
    parser.add_argument("--results", type=Path, default=Path("runs/benchmarks"), help="folder of the results (%(default)s)")
    return parser.parse_args(argv)


def wanted_works(options):
    """The works to measure. Raises ValueError for an unknown one, naming the choices."""
    for name in options.works:
        if name not in WORKS:
            raise ValueError(f"unknown work {name!r}; choose from {list(WORKS)}")
    if options.works or options.again:
        return options.works or list(WORKS)
    return [work for work in WORKS if not all((options.results / f"{row_name(work, peer)}.json").is_file() for peer in PEERS)]


def main(argv=None):
    options, console = parse(argv), Console()
    try:
        works = wanted_works(options)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if not works:
        console.print(f"peers: every work has a result in {options.results}, kept")
        return
    found = {peer: environment(peer, console.print) for peer in PEERS}
    pythons = {peer: python for peer, python in found.items() if python is not None}
    if not pythons:
        console.print("peers: SKIPPED, no peer could be installed; nothing was measured")
        return
    torch.set_num_threads(options.threads)
    shape = {**SHAPE, **LENGTHS}
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        weights = f"{folder}/weights.safetensors"
        save_weights(shape, weights)
        settings = {"shape": shape, "weights": weights, "threads": options.threads}
        sides = {REFERENCE: sys.executable, **pythons, OURS: sys.executable}
        rows = compare(sides, works, settings, options.rounds, options.seconds, announce=console.print)
    for name, row in rows.items():
        write_atomically(json.dumps(row, indent=2), options.results / f"{name}.json")
        console.print(f"{name}: {row['speed']:.2f} x by the clock, {row['cpu']:.2f} x by processor seconds")


if __name__ == "__main__":
    main()
