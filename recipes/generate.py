"""Continue prompts: the same function and the same keys as `hf-variants generate`, as a script to start from.

python recipes/generate.py --config recipes/generate.yaml
"""

import argparse
import sys
from pathlib import Path

from hf_variants.jobs import GenerateSpec, generate
from hf_variants.training import load_spec

if __name__ == "__main__":
    # beside this script lies evaluate.py, which would hide the library of that name
    sys.path = [path for path in sys.path if Path(path) != Path(__file__).resolve().parent]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="recipe (YAML)")
    options, words = parser.parse_known_args()
    generate(load_spec(GenerateSpec, options.config, words))
