"""Run the whole job: the same function and the same keys as `hf-variants quickstart`, as a script to start from.

python recipes/quickstart.py --config recipes/quickstart.yaml
"""

import argparse

from hf_variants.jobs import QuickstartSpec, quickstart
from hf_variants.training import load_spec

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="recipe (YAML)")
    options, words = parser.parse_known_args()
    quickstart(load_spec(QuickstartSpec, options.config, words))
