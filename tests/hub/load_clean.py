"""Loads what a task names with trust_remote_code, and reports how far its outputs are from those it was saved with.

task: {"loads": {name: {auto, path, expected, kwargs}}, "resave": {name: directory}, "tokenizers": {name: [path, texts]},
"refused": {name: [auto, path, kwargs]}, "configs": {name: [path, directory]}, "adapters": {name: [path, expected]},
"imports": [module]}
"""

import importlib
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file


def outputs(model, ids):
    """All tensors of one forward, side by side."""
    with torch.no_grad():
        decoded = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        found = model(**{model.main_input_name: ids}, **decoded)
    names = ("logits", "last_hidden_state", "start_logits", "end_logits")
    return torch.cat([found[name].flatten() for name in names if name in found])


def load(spec, trust):
    kwargs = {"trust_remote_code": True} if trust else {}
    return getattr(transformers, spec["auto"]).from_pretrained(spec["path"], **kwargs, **spec.get("kwargs", {})).eval()


def compare(spec, trust):
    model, expected = load(spec, trust), load_file(spec["expected"])
    difference = (outputs(model, expected["ids"]).double() - expected["outputs"].double()).abs().max()
    return model, difference.item()


def adapter_difference(path, expected):
    from peft import AutoPeftModelForCausalLM

    model = AutoPeftModelForCausalLM.from_pretrained(path, trust_remote_code=True).eval()
    return (outputs(model, expected["ids"]) - expected["outputs"]).abs().max().item()


def error_of(auto, path, kwargs):
    try:
        getattr(transformers, auto).from_pretrained(path, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main():
    task = json.loads(Path(sys.argv[1]).read_text())
    for module in task.get("imports", []):
        importlib.import_module(module)
    trust = not task.get("imports")
    result = {"differences": {}, "resaved": {}, "tokens": {}, "refused": {}, "configs": {}, "same_class": {}, "adapters": {}}
    for name, spec in task.get("loads", {}).items():
        model, result["differences"][name] = compare(spec, trust)
        config = transformers.AutoConfig.from_pretrained(
            spec["path"], trust_remote_code=trust or None, **spec.get("kwargs", {})
        )
        result["same_class"][name] = type(config) is type(model.config)
        target = task.get("resave", {}).get(name)
        if target:
            model.save_pretrained(target)
            result["resaved"][name] = compare({**spec, "path": target, "kwargs": {}}, trust)[1]
    for name, (path, target) in task.get("configs", {}).items():
        transformers.AutoConfig.from_pretrained(path, trust_remote_code=True).save_pretrained(target)
        config = transformers.AutoConfig.from_pretrained(target, trust_remote_code=True)
        model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=True)
        result["configs"][name] = [type(model).__name__, sum(p.numel() for p in model.parameters())]
    for name, (path, texts) in task.get("tokenizers", {}).items():
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=trust or None)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        result["tokens"][name] = {"ids": ids, "decoded": [tokenizer.decode(row) for row in ids]}
    for name, (path, expected) in task.get("adapters", {}).items():
        result["adapters"][name] = adapter_difference(path, load_file(expected))
    for name, given in task.get("refused", {}).items():
        result["refused"][name] = error_of(*given)
    result["has_package"] = "hf_variants" in sys.modules
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
