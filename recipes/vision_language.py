"""Train a vision-language model on the digits task: the same function and the same keys as `hf-variants vision-language`.

python recipes/vision_language.py --config recipes/vision_language.yaml output_dir=runs/digits
"""

import argparse
import sys
from pathlib import Path

from hf_variants.jobs import VisionLanguageSpec, vision_language
from hf_variants.training import load_spec

if __name__ == "__main__":
    # beside this script lies evaluate.py, which would hide the library of that name
    sys.path = [path for path in sys.path if Path(path) != Path(__file__).resolve().parent]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="recipe (YAML)")
    options, words = parser.parse_known_args()
    vision_language(load_spec(VisionLanguageSpec, options.config, words))
