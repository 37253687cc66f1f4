"""`python -m benchmarks.gpu [SECTION ...] [--tiny] [--seconds 330] [--output FILE]`: on one CUDA card, against native.

Needs torch, transformers and this repository alone. Measures training MFU, decoding, the backends of soft-caps, ALiBi, sinks
and windows, MLA decoding, experts, and both compiled; `--tiny` runs all of it on small shapes on whatever device there is.

Notable here: no measurement begins after `--seconds`, and what is known is written after every one, so a run that is cut short
keeps its numbers. A card that an illegal access has ended for this process goes on with the other sections in a new one.
"""

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.card import Card
from benchmarks.gpu.measure import Clock, guarded, measure
from benchmarks.gpu.results import draw, markdown, write_results
from benchmarks.gpu.sections import SECTIONS


def parse(argv):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all when none is named")
    parser.add_argument("--tiny", action="store_true", help="small shapes, on any device")
    parser.add_argument("--seconds", type=float, default=330.0, help="no measurement begins after so many seconds (330)")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/gpu.json"), help="where the numbers go")
    parser.add_argument("--add", action="store_true", help="keep the sections that FILE holds already")
    options = parser.parse_args(argv)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        raise SystemExit(f"unknown section {unknown[0]!r}; choose from {list(SECTIONS)}")
    if not torch.cuda.is_available() and not options.tiny:
        raise SystemExit("no CUDA device; --tiny runs every section on small shapes on the CPU")
    return options


def rest_elsewhere(names, options, clock):
    """Become a new process that measures the sections that are left and adds them to the same file."""
    command = [sys.executable, "-m", "benchmarks.gpu", *names, "--add", "--output", str(options.output)]
    command += ["--seconds", str(max(clock.left(), 0))] + (["--tiny"] if options.tiny else [])
    sys.stdout.flush()
    os.execv(sys.executable, command)


def main(argv=None):
    options = parse(argv)
    clock, card = Clock(options.seconds), Card("cuda" if torch.cuda.is_available() else "cpu")
    results = {"card": card.describe(options.tiny), "sections": {}}
    if options.add and options.output.is_file():
        results["sections"] = json.loads(options.output.read_text(encoding="utf-8"))["sections"]
    names = list(options.sections or SECTIONS)
    for index, name in enumerate(names):
        if clock.is_over():
            results["sections"][name] = {"title": SECTIONS[name].title, "failed": {"section": clock.note()}}
            continue

        def keep(found, name=name):
            results["sections"][name] = found
            write_results(results, options.output)

        run = partial(measure, SECTIONS[name], card, clock, results["card"], options.tiny, keep)
        found, why = guarded(run, card)
        if why is not None:
            found = results["sections"].get(name, {"title": SECTIONS[name].title})
            found.setdefault("failed", {})["section"] = why
        keep(found)
        print(name, json.dumps(found), flush=True)
        torch.compiler.reset()
        card_lives, _ = guarded(card.is_usable, card)
        if not card_lives and names[index + 1 :]:
            rest_elsewhere(names[index + 1 :], options, clock)
        card.release()
    write_results(results, options.output)
    draw(results, options.output.with_suffix(".svg"))
    print(markdown(results))
    return results


if __name__ == "__main__":
    main()
