"""`python -m benchmarks.peak CASE SIDE`: peak memory of one call of one side, alone in its process.

Notable here: what is read is the kernel's high-water mark of resident memory (VmHWM), set back to the present size just
before the call, less what the process held once torch, transformers and the package were imported. malloc is told to map
every large tensor (MALLOC_MMAP_THRESHOLD_), so that freed memory goes back at once and the mark follows living tensors.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path


def resident(field):
    """Bytes of `VmRSS` or `VmHWM` of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}: peaks are measured on Linux alone")


def settle():
    """Give freed memory back, and start the high-water mark afresh."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def main(case_name, side):
    from benchmarks.cases import find_case

    case = find_case(case_name)
    settle()
    empty = resident("VmRSS")
    ready = case.build((side,))[side]
    ready.prepare()
    settle()
    before = resident("VmRSS")
    ready.run()
    print(json.dumps({"held": before - empty, "peak": resident("VmHWM") - empty}))


def peak_of(case, side):
    """{"held": bytes before the call, "peak": bytes at its height} of `side`, from a process of its own."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "benchmarks.peak", case.name, side]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
