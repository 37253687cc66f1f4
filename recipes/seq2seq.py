"""Teach an encoder-decoder on pairs of texts: the same function and keys as `hf-variants seq2seq`, as a script to start from.

torchrun --nproc_per_node 2 recipes/seq2seq.py --config recipes/seq2seq.yaml
"""

import argparse
import sys
from pathlib import Path

from hf_variants.jobs import Seq2SeqSpec, seq2seq
from hf_variants.training import load_spec

if __name__ == "__main__":
    # beside this script lies evaluate.py, which would hide the library of that name
    sys.path = [path for path in sys.path if Path(path) != Path(__file__).resolve().parent]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="recipe (YAML)")
    options, words = parser.parse_known_args()
    seq2seq(load_spec(Seq2SeqSpec, options.config, words))
