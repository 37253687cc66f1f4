"""Scaling study: the same function and the same keys as `hf-variants scaling study`, as a script to start from.

python recipes/scaling_study.py --config recipes/scaling/study.yaml
"""

import argparse
import sys
from pathlib import Path

from hf_variants.jobs import ScalingStudySpec, scaling_study
from hf_variants.training import load_spec

if __name__ == "__main__":
    # beside this script lies evaluate.py, which would hide the library of that name
    sys.path = [path for path in sys.path if Path(path) != Path(__file__).resolve().parent]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="recipe (YAML)")
    options, words = parser.parse_known_args()
    scaling_study(load_spec(ScalingStudySpec, options.config, words))
