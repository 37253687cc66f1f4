"""Run the whole job: the same function and the same keys as `hf-variants quickstart`, as a script to start from.

python recipes/quickstart.py --config recipes/quickstart.yaml
"""

import argparse
import sys
from pathlib import Path

from hf_variants.jobs import QuickstartSpec, quickstart
from hf_variants.training import load_spec

if __name__ == "__main__":
    # beside this script lies evaluate.py, which would hide the library of that name
    sys.path = [path for path in sys.path if Path(path) != Path(__file__).resolve().parent]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="recipe (YAML)")
    options, words = parser.parse_known_args()
    quickstart(load_spec(QuickstartSpec, options.config, words))
