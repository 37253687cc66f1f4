"""Every recipe that trains, as runs of seconds: {name: (recipe, its keys)}."""

import copy
import json

from tests.ablation import tiny as ablations
from tests.finetune import tiny as tunings
from tests.studies import tiny_scaling
from tests.training.runs import STEPS, spec_of, write_text

STACK = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "max_position_embeddings": 64,
}
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
PLAIN = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16},
    **{"num_key_value_heads": 2, "max_position_embeddings": 64},
}
# the same number of rows in a step as one process with four has
SHORT = {**STEPS, "max_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "eval_steps": 2, "save_steps": 2}


def tuning(base, folder, name, task, method="full", **keys):
    where = folder / name
    where.mkdir()
    mapping = tunings.mapping(base, where, task, method, **{**keys, "trainer": {**SHORT, **keys.get("trainer", {})}})
    return "finetune", {**mapping, "output_dir": str(folder / name / "out")}


def extension(base, folder, **keys):
    (folder / "long.txt").write_text("\n\n".join(" ".join(WORDS[(n * k * k + k) % 8] for k in range(900)) for n in range(6)))
    data = {"source": str(folder / "long.txt"), "sequence_length": 256, "eval_fraction": 0.3}
    common = {"model_path": base, "output_dir": str(folder / "extend"), "data": data, "compare": ["none", "yarn"]}
    return "extend", {**common, "factor": 2.0, "passkey": {"trials": 0}, "trainer": SHORT, **keys}


def pairs(folder, **keys):
    records = [{"source": f"{a} {b}", "target": f"{b} and {a}"} for a in WORDS for b in WORDS]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    data = {"source": str(folder / "pairs.jsonl"), "max_source_length": 32, "max_target_length": 32, "eval_fraction": 0.25}
    model = {"encoder": STACK, "decoder": {**STACK, "num_hidden_layers": 2}}
    common = {"output_dir": str(folder / "seq2seq"), "data": data, "model": model, "tokenizer": {"vocab_size": 300}}
    return "seq2seq", {**common, "generation": {"max_new_tokens": 6}, "generated": 4, "trainer": SHORT, **keys}


def images(folder):
    encoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "position_embedding_type": "learned"}
    phase = {"steps": 2, "batch_size": 4, "learning_rate": 0.01}
    return "vision_language", {
        "output_dir": str(folder / "vision"),
        "tower": {"image_size": 8, "patch_size": 4, "class_token": False, "encoder": encoder},
        "text": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        "data": {"eval_examples": 6},
        "examples": 2,
        "measure_every": 2,
        "trainer": {"logging_steps": 1, "disable_tqdm": True},
        "phases": [
            {"name": "tower", "reads": "labels", "trains": ["tower"], **phase},
            {"name": "words", "reads": "words", "trains": ["text"], **phase},
            {"name": "bridge", "reads": "images", "trains": ["bridge", "text"], **phase},
        ],
    }


def studies(folder):
    trainer = {"trainer": {**SHORT, "per_device_train_batch_size": 1}}
    ablation = ablations.mapping(folder / "ablation", seeds=[0], base=trainer)
    long = {"sequence_length": 16, "eval_fraction": 0.2}
    model = {"max_position_embeddings": 16, "hidden_size": 16, "intermediate_size": 16}
    extrapolation = ablations.mapping(folder / "extrapolation", seeds=[0], base={**trainer, "data": long, "model": model})
    study = tiny_scaling.mapping(folder / "study", sizes={"small": {"model.intermediate_size": 24}})
    study["base"]["trainer"]["per_device_train_batch_size"] = 2
    return {
        "scaling_study": ("scaling_study", study),
        "ablate": ("ablate", ablation),
        "extrapolate": ("extrapolate", {**extrapolation, "lengths": [16, 32], "rows": 2}),
    }


def recipes(folder):
    """{name: (recipe, keys)} of every recipe that trains, for runs of two steps under `folder`."""
    base = tunings.write_model(folder / "base")
    text = write_text(folder / "text.txt", documents=10)
    return {
        "pretrain": ("pretrain", spec_of(text, folder / "pretrain", PLAIN, trainer=SHORT).to_dict()),
        "extend": extension(base, folder),
        "supervised": tuning(base, folder, "supervised", "supervised", toggles={"qk_norm": "head"}),
        "preference": tuning(base, folder, "preference", "preference", "lora"),
        "classification": tuning(base, folder, "classification", "classification"),
        "continued": tuning(base, folder, "continued", "continued", toggles={"qk_norm": "head"}),
        "seq2seq": pairs(folder),
        "vision_language": images(folder),
        **studies(folder),
    }


def sharded_recipes(folder, section):
    """{name: (recipe, keys)} of the recipes with a `distributed` section besides pretraining, for runs of four steps."""
    base = tunings.write_model(folder / "base", num_key_value_heads=2)
    longer = {"trainer": {**SHORT, "max_steps": 4}, "distributed": section}
    # whole batches in all steps: of a last one that is not, two processes make another than one does
    short = {"continued": {"data": {"sequence_length": 16}}}
    return {
        **{
            task: tuning(base, folder, task, task, **longer, **short.get(task, {}))
            for task in ("supervised", "preference", "classification", "continued")
        },
        "extend": extension(base, folder, **longer),
        "seq2seq": pairs(folder, **longer),
    }


def alone(keys):
    """The same run for one process, in another directory."""
    keys = copy.deepcopy(keys)
    del keys["distributed"]
    keys["output_dir"] += "-alone"
    keys["trainer"]["per_device_train_batch_size"] *= 2
    return keys


def sharded(folder):
    found = sharded_recipes(folder, {"fsdp_size": 2})
    return {name: {"recipe": recipe, "spec": keys, "last": 3} for name, (recipe, keys) in found.items()}
