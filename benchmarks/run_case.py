"""`python -m benchmarks.run_case CASE FILE [THREADS]`: measure one case in this process and write its result to FILE."""

import json
import os
import sys
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.case import OURS, measure
from benchmarks.cases import find_case
from benchmarks.files import write_atomically
from benchmarks.peak import peak_of


def result_of(case):
    """Everything the table says of a case, as plain numbers."""
    found = {"case": case.name, "title": case.title, "unit": case.unit, "targets": case.targets}
    found["machine"], found["limits"] = machine.describe(), machine.limits()
    found.update(measure(case))
    found.update(share_of_limit(case, found))
    if case.peak:
        peaks = {side: peak_of(case, side) for side in (case.sides[0], OURS)}
        found["peaks"] = peaks
        found["peak"] = peaks[OURS]["peak"] / peaks[case.sides[0]]["peak"]
    return found


def share_of_limit(case, found):
    """{"share", "share_of"}: how much of the machine's own limit our side reaches, where the case says what it computes."""
    seconds = found["sides"][OURS]["seconds"]
    for counted, limit, of in ((case.flops, "GEMM GFLOP/s", "GEMM"), (case.bytes, "weights GB/s", "streaming")):
        if counted is not None:
            amount = counted() if callable(counted) else counted
            return {"share": amount / seconds / 1e9 / found["limits"][f"{case.dtype} {limit}"], "share_of": of}
    return {}


def main(name, target, threads=None):
    if threads is not None:
        torch.set_num_threads(int(threads))
        os.environ["OMP_NUM_THREADS"] = threads
    write_atomically(json.dumps(result_of(find_case(name)), indent=2), Path(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
