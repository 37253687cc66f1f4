"""`python -m benchmarks.packing`: tokens per second of packing from tokenised parquet, and of reading the packed rows.

Documents are random ids of random lengths (mean about 400 tokens); reading is in shuffled order, in batches of 8 rows, through
the DataLoader that Trainer uses, up to the tensors a model receives.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hf_variants.training.packing import PACKINGS, PackingStats, pack_blocks
from hf_variants.training.row_files import PackedRows, read_tokens, write_rows, write_tokens
from hf_variants.training.trainer import collate_rows

TOKENS = 8_000_000


def documents(total):
    """Random documents of `total` tokens in all."""
    draw = np.random.default_rng(0)
    while total > 0:
        length = int(draw.lognormal(5.5, 1.0)) + 2
        yield draw.integers(0, 49152, length, dtype=np.int32)
        total -= length


def main(arguments):
    """Measure both ways of packing at two lengths and print a table."""
    if arguments:
        raise SystemExit("benchmarks.packing takes no arguments")
    table = Table("packing", "row", "packed tokens/s", "read tokens/s", "padding")
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(documents(TOKENS), Path(folder) / "tokens")
        for packing in PACKINGS:
            for length in (256, 2048):
                target, stats = Path(folder) / f"{packing}-{length}", PackingStats()
                began = time.perf_counter()
                write_rows(pack_blocks(read_tokens(Path(folder) / "tokens"), length, packing, stats=stats), target, {}, stats)
                packed = stats.tokens / (time.perf_counter() - began)
                rows = PackedRows(target)
                loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate_rows)
                began, read = time.perf_counter(), 0
                for batch in loader:
                    read += batch["input_ids"].numel()
                    if read > 2_000_000:
                        break
                share = stats.padding / (stats.rows * length)
                speeds = (f"{packed:,.0f}", f"{read / (time.perf_counter() - began):,.0f}")
                table.add_row(packing, str(length), *speeds, f"{share:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
