"""A tiny pretraining run that has everything which a resume must restore: dropout, experts with a bias, sliding layers."""

import json

from hf_variants.training import TrainingSpec, build_spec

MODEL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
    "num_experts": 4,
    "moe_intermediate_size": 16,
    "mlp_layer_types": ["dense", "sparse"],
    "router_balance": "bias",
    "tie_word_embeddings": True,
    "attention_dropout": 0.1,
}
STEPS = {"logging_steps": 1, "eval_steps": 5, "save_steps": 5, "warmup_steps": 2, "use_cpu": True, "disable_tqdm": True}


def write_text(file, documents=20):
    """Documents of verses, apart by blank lines; returns the path as str."""
    verses = [
        f"verse {n}: the {w} of day {n % 7} was good, and it was so.\n"
        for n in range(10 * documents)
        for w in ("light", "sea")
    ]
    file.write_text("\n".join("".join(verses[begin : begin + 20]) for begin in range(0, len(verses), 20)))
    return str(file)


def spec_of(source, output_dir, model=MODEL, data=None, tokenizer=None, trainer=None, **keys):
    """A `TrainingSpec` of 10 steps; sections given are laid over its own."""
    loaded = keys.get("model_path") or (tokenizer or {}).get("path")
    mapping = {
        "output_dir": str(output_dir),
        "data": {"source": source, "sequence_length": 32, "eval_fraction": 0.2, **(data or {})},
        "tokenizer": {**({} if loaded else {"vocab_size": 300}), **(tokenizer or {})},
        "model": model,
        "trainer": {"max_steps": 10, "per_device_train_batch_size": 4, "learning_rate": 1e-2, **STEPS, **(trainer or {})},
        **keys,
    }
    return build_spec(TrainingSpec, mapping)


def losses_of(directory):
    """(training losses, held-out losses) in the log of a finished run."""
    log = json.loads((directory / "training_log.json").read_text())
    return [line["loss"] for line in log if "loss" in line], [line["eval_loss"] for line in log if "eval_loss" in line]


def quiet(_):
    pass
