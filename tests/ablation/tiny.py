"""An ablation of seconds: a tiny model on a tiny text."""

from hf_variants.ablation import AblateSpec
from hf_variants.training import build_spec

MODEL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
VARIANTS = {"MQA": {"model.num_key_value_heads": 1}}


def mapping(root, **keys):
    """The recipe as a nested mapping; `base` sections are merged one level deep."""
    root.mkdir(parents=True, exist_ok=True)
    text = root / "text.txt"
    if not text.is_file():
        verses = [
            f"verse {n}: the {w} of day {n % 7} was good, and it was so.\n" for n in range(100) for w in ("light", "sea")
        ]
        text.write_text("\n".join("".join(verses[begin : begin + 10]) for begin in range(0, len(verses), 10)))
    trainer = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "eval_steps": 3, "save_steps": 3}
    base = {
        "data": {"source": str(text), "sequence_length": 32, "eval_fraction": 0.2},
        "tokenizer": {"vocab_size": 300},
        "model": MODEL,
        "trainer": {**trainer, "disable_tqdm": True},
    }
    over = keys.pop("base", {})
    base = {name: {**value, **over.get(name, {})} for name, value in base.items()} | {
        k: v for k, v in over.items() if k not in base
    }
    given = {"output_dir": str(root / "out"), "base": base, "variants": VARIANTS, "seeds": [0, 1], "match": "none", **keys}
    return given


def spec_of(root, **keys):
    return build_spec(AblateSpec, mapping(root, **keys))
