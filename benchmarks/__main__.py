"""`python -m benchmarks [CASE ...] [--again] [--list]`: measure the family against native classes on the same weights.

Without names every case that has no result yet is run, so an interrupted run goes on where it stopped; a named case is always
run. Each case runs in a process of its own and writes `runs/benchmarks/CASE.json`; the table and the plots are made from those
files. `--table` runs nothing: it makes the table again, and puts it into docs/benchmarks.md.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks import peers
from benchmarks.cases import CASES, find_case
from benchmarks.table import print_table, update_page, write_json

RESULTS = Path("runs/benchmarks")
PAGE = Path("docs/benchmarks.md")


def parse(argv):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"one of {', '.join(CASES)}")
    parser.add_argument("--again", action="store_true", help="run cases that have a result too")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument(
        "--table", action="store_true", help=f"run nothing; make the table from the results there are, {PAGE} too"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help=f"page that --table writes the table into ({PAGE})")
    parser.add_argument("--threads", type=int, help="threads of torch; its own default when absent")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the results ({RESULTS})")
    return parser.parse_args(argv)


def main(argv=None):
    options, console = parse(argv), Console()
    if options.list:
        for case in CASES.values():
            console.print(f"{case.name}: {case.title}")
        return
    try:
        wanted = [find_case(name) for name in options.cases] or list(CASES.values())
    except ValueError as error:
        raise SystemExit(str(error)) from None
    failed = [] if options.table else run_all(wanted, options, console)
    results = read_results(options.results)
    print_table(results, console)
    write_json(results, options.results / "all.json")
    if options.table:
        if not results:
            raise SystemExit(f"no results in {options.results}; measure first, as with make bench")
        update_page(results, options.page)
        console.print(f"{options.page}: table written")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def run_all(wanted, options, console):
    """Run each case in a process of its own; returns the names of those that failed."""
    failed = []
    for number, case in enumerate(wanted, 1):
        target = options.results / f"{case.name}.json"
        if target.is_file() and not options.again and not options.cases:
            console.print(f"[{number}/{len(wanted)}] {case.name}: has a result ({target}), kept")
            continue
        began = time.perf_counter()
        with console.status(f"[{number}/{len(wanted)}] {case.name}: {case.title}"):
            command = [sys.executable, "-m", "benchmarks.run_case", case.name, str(target)]
            command += [str(options.threads)] if options.threads else []
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            failed.append(case.name)
            console.print(f"[{number}/{len(wanted)}] {case.name}: FAILED\n{done.stderr[-1500:]}")
        else:
            console.print(f"[{number}/{len(wanted)}] {case.name}: done in {time.perf_counter() - began:.0f} s")
    return failed


def read_results(folder):
    """{case name: result} of the result files, in the order of the table: the cases, then the rows of the peers."""
    files = {name: folder / f"{name}.json" for name in (*CASES, *peers.ROWS)}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


if __name__ == "__main__":
    main()
