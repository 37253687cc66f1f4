"""Fine-tune a checkpoint: the same function and the same keys as `hf-variants finetune`, as a script to start from.

torchrun --nproc_per_node 2 recipes/finetune.py --config recipes/finetune.yaml
"""

import argparse
import sys
from pathlib import Path

from hf_variants.jobs import FinetuneSpec, finetune
from hf_variants.training import load_spec

if __name__ == "__main__":
    # beside this script lies evaluate.py, which would hide the library of that name
    sys.path = [path for path in sys.path if Path(path) != Path(__file__).resolve().parent]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="recipe (YAML)")
    options, words = parser.parse_known_args()
    finetune(load_spec(FinetuneSpec, options.config, words))
