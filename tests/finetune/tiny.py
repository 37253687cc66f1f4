"""A tiny model with experts, its tokenizer, and examples of each task, on disk."""

import json

import torch

from hf_variants import VariantsConfig, VariantsForCausalLM
from tests.tokenizers_for_tests import byte_level_bpe

MODEL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "num_experts": 4,
    "moe_intermediate_size": 64,
    "mlp_layer_types": ["dense", "sparse"],
    "router_balance": "bias",
}
WORDS = ("sun", "moon", "sea", "day")
RUN = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 5e-3, "disable_tqdm": True, "logging_steps": 1}


def chat(word, answer):
    return {"messages": [{"role": "user", "content": f"Say {word}"}, {"role": "assistant", "content": answer}]}


def records(task):
    words = WORDS * 5
    if task == "supervised":
        return [chat(word, f"{word} it is") for word in words]
    if task == "preference":
        return [{"prompt": f"Say {word}:", "chosen": f" {word} it is", "rejected": " no word"} for word in words]
    if task == "classification":
        return [{"text": f"here is the {word}", "label": "sky" if word in ("sun", "moon") else "earth"} for word in words]
    return [{"text": f"the {word} is here, and the {word} was there, and so it is with the {word}."} for word in words]


def write_records(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_model(folder, **overrides):
    tokenizer = byte_level_bpe()
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = VariantsForCausalLM(VariantsConfig(**{"vocab_size": len(tokenizer), **MODEL, **ids, **overrides}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def mapping(model_path, folder, task="supervised", method="full", **keys):
    """The recipe of a run of seconds."""
    source = write_records(folder / f"{task}.jsonl", records(task))
    data = {"source": source, "sequence_length": 64, "eval_fraction": 0.2, **keys.pop("data", {})}
    if task == "supervised":
        keys.setdefault("samples", 1)
    base = {"model_path": model_path, "output_dir": str(folder / "out"), "task": task, "method": method, "data": data}
    return {**base, "trainer": {**RUN, **keys.pop("trainer", {})}, **keys}
