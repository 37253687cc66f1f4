"""Pushes a vision-language model and its processor to the double that HF_ENDPOINT names; task: {"picture": file}."""

import json
import sys
from pathlib import Path

import hf_variants
from tests.hub.load_vision_clean import outputs
from tests.vision import GATED
from tests.vision_language.test_processor import model_and_processor


def main():
    task = json.loads(Path(sys.argv[1]).read_text())
    model, processor = model_and_processor(**GATED)
    expected = outputs(model, processor, task["picture"])
    model.push_to_hub("me/vlm")
    processor.push_to_hub("me/vlm")
    Path(sys.argv[2]).write_text(json.dumps({"expected": expected, "version": hf_variants.__version__}))


if __name__ == "__main__":
    main()
