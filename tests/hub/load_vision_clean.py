"""Loads vision-language folders with trust_remote_code and reports what they compute; see `test_vision_clean_process.py`."""

import json
import sys
from pathlib import Path

import torch
import transformers
from PIL import Image


def outputs(model, processor, picture):
    """Logits and new tokens of one prompt with an image."""
    inputs = processor(images=Image.open(picture), text="what is <image>?", return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
        tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    return {"logits": logits.flatten().tolist(), "tokens": tokens[0].tolist()}


def main():
    task = json.loads(Path(sys.argv[1]).read_text())
    result = {"outputs": {}, "resaved": {}, "base": {}}
    for name, path in task["folders"].items():
        trust = {"trust_remote_code": True}
        model = transformers.AutoModelForImageTextToText.from_pretrained(path, **trust).eval()
        processor = transformers.AutoProcessor.from_pretrained(path, **trust)
        result["outputs"][name] = outputs(model, processor, task["picture"])
        result["base"][name] = type(transformers.AutoModel.from_pretrained(path, **trust)).__name__
        again = f"{path}_again"
        model.save_pretrained(again)
        processor.save_pretrained(again)
        model = transformers.AutoModelForImageTextToText.from_pretrained(again, **trust).eval()
        processor = transformers.AutoProcessor.from_pretrained(again, **trust)
        result["resaved"][name] = outputs(model, processor, task["picture"])
    result["has_package"] = "hf_variants" in sys.modules
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
