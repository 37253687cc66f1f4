"""The device that is measured: its clock, its memory, its name and what it can do.

Notable here: seconds are taken between two CUDA events on the stream that the work runs on, the device idle before the first;
memory is what torch's allocator had given out at the height of a call. A CPU stands in for a card where shapes are tried out:
it has a clock, and no count of memory.
"""

import gc
import statistics
import time

import torch
import transformers

from hf_variants.training.peak_flops import data_sheet


class Card:
    """One device.

    Args:
        device: a CUDA device, or the CPU.
    """

    def __init__(self, device):
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"
        self.name = torch.cuda.get_device_name(self.device) if self.is_cuda else "cpu"
        self.dtype = torch.bfloat16 if self.is_cuda else torch.float32

    def wait(self):
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, call):
        """Seconds of one call."""
        # graphs of earlier calls may be overwritten from here on
        torch.compiler.cudagraph_mark_step_begin()
        self.wait()
        if not self.is_cuda:
            began = time.perf_counter()
            call()
            return time.perf_counter() - began
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        self.wait()
        return start.elapsed_time(end) / 1000

    def release(self):
        """Give back the memory of what nothing refers to any more."""
        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()

    def peak(self, call, clear):
        """{"peak_gib": at the height of a call, "held_gib": before it}; empty where the device keeps no count.

        A first call is not counted: workspaces and compiled code are made once. `clear` drops what a call leaves behind.
        """
        if not self.is_cuda:
            return {}
        call()
        clear()
        self.wait()
        self.release()
        torch.cuda.reset_peak_memory_stats(self.device)
        held = torch.cuda.memory_allocated(self.device)
        call()
        self.wait()
        return {"peak_gib": torch.cuda.max_memory_allocated(self.device) / 2**30, "held_gib": held / 2**30}

    def is_usable(self):
        """Whether the device still answers: an illegal access ends all work of the process on it."""
        try:
            self.wait()
            torch.ones(1, device=self.device).add_(1).item()
        except RuntimeError:
            return False
        return True

    def median(self, call, repeats=5):
        """Median seconds of a call, after two that are not counted."""
        return statistics.median([self.seconds(call) for _ in range(repeats + 2)][2:])

    def matrix_rate(self, size):
        """FLOP/s of a square matrix product of `size`, of random numbers."""
        left, right = (torch.randn(size, size, device=self.device, dtype=self.dtype) for _ in range(2))
        return 2 * size**3 / self.median(lambda: left @ right)

    def memory_rate(self, numbers):
        """Bytes per second of a copy, read and written."""
        source = torch.randn(numbers, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.numel() * source.element_size() / self.median(lambda: target.copy_(source))

    def describe(self, tiny=False):
        """{what: value} of the card, the versions and the day, and the limits that were measured just now."""
        _, sheet = data_sheet(self.name)
        found = {
            "name": self.name,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "transformers": transformers.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "dtype": str(self.dtype).removeprefix("torch."),
            "bytes_per_number": self.dtype.itemsize,
            "matrix_tflops": self.matrix_rate(128 if tiny else 8192) / 1e12,
            "memory_gb_per_second": self.memory_rate(1 << 16 if tiny else 1 << 29) / 1e9,
            "sheet_tflops": None if sheet is None else sheet / 1e12,
        }
        if self.is_cuda:
            properties = torch.cuda.get_device_properties(self.device)
            found["memory_gib"] = properties.total_memory / 2**30
            found["multiprocessors"] = properties.multi_processor_count
        self.release()
        return found
