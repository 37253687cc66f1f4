"""`python -m benchmarks.memory_plan [CASE ...]`: peaks that `plan_memory` predicts beside measured, of eight small models
in fp32, and of two of them with weights in bf16 and under autocast.

Each case is trained for two steps of AdamW (fused, as Trainer's default) on random tokens in a process of its own, with and
without activation checkpointing; what is read is the kernel's high-water mark of resident memory, less what the process held
after two steps of a tiny model of the same toggles, which load the kernels (`benchmarks/peak.py` says how). Half precision is
multiplied by kernels that oneDNN compiles for each shape and keeps, up to a thousand of them; here few are kept.

Notable here: the prediction knows the config and the batch alone; nothing is fitted to these cases.
"""

import json
import os
import subprocess
import sys

SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
}
MLA = {
    **{"attention_type": "mla", "num_key_value_heads": None, "num_attention_heads": 8, "q_lora_rank": 128},
    **{"kv_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32},
}
BERT = {
    **{"is_causal": False, "norm_type": "layernorm", "norm_placement": "post_ln", "mlp_type": "plain", "hidden_act": "gelu"},
    **{"position_embedding_type": "learned", "embedding_norm": True, "attention_bias": True, "mlp_bias": True},
    **{"num_key_value_heads": 4, "lm_head_act": "gelu", "lm_head_bias": True, "tie_word_embeddings": True},
}
# name -> (what it is, keys beside SHAPE, rows, tokens)
CASES = {
    "gqa": ("dense, grouped queries", {}, 2, 768),
    "experts": (
        "4 of 16 experts and a shared one",
        {
            **{"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192, "num_shared_experts": 1},
        },
        2,
        384,
    ),
    "mla": ("latent attention", MLA, 2, 768),
    "windows": (
        "windows of 256, every third layer full, one long row",
        {
            "num_hidden_layers": 6,
            "sliding_window": 256,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        },
        1,
        2304,
    ),
    "encoder": ("BERT's choices, a tied vocabulary of 24,000", {**BERT, "vocab_size": 24000}, 4, 256),
    "encoder-decoder": ("one table for both stacks, twice as much read as written", {"num_hidden_layers": 3}, 2, 512),
    "images in the row": ("a SigLIP tower, 4 images of 64 patches by an MLP", {"num_hidden_layers": 4}, 2, 512),
    "images across": ("the same tower, read by two gated cross-attentions; text frozen", {"num_hidden_layers": 4}, 2, 512),
}
TOWER = {
    **{
        "model_type": "siglip_vision_model",
        "image_size": 128,
        "patch_size": 16,
        "hidden_size": 256,
        "intermediate_size": 1024,
    },
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "vision_use_head": False},
}
ACROSS = {"bridge": "gated_cross_attention", "cross_attention_layers": [1, 3], "cross_attention_mlp": True}
# cases with images -> keys of the config, parts that are trained
SEES = {
    "images in the row": ({"token_compression": "none"}, ["tower", "bridge", "text"]),
    "images across": (ACROSS, ["tower", "bridge"]),
}
IMAGES = 4
# tokens that the encoder of a case reads
READ = {"encoder-decoder": 1024}
# cases that differ from another one in precision alone -> that one, and a dtype of `plan_memory`
IN_HALF = {
    f"{name}, {words}": (name, dtype)
    for name in ("gqa", "experts")
    for words, dtype in (("bf16 weights", "bfloat16"), ("autocast", "mixed"))
}
SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}


def config_of(name, **keys):
    from hf_variants import VariantsConfig, VariantsSeq2SeqConfig, VariantsVisionConfig

    small = bool(keys)
    keys = {**SHAPE, **CASES[name][1], **keys}
    if name in SEES:
        tower = {**TOWER, **({"hidden_size": 32, "intermediate_size": 64} if small else {})}
        keys["num_hidden_layers"] = CASES[name][1]["num_hidden_layers"]
        joined = {"text_config": keys, "vision_config": tower, "image_token_id": 0}
        return VariantsVisionConfig(**joined, **SEES[name][0])
    if name in READ:
        return VariantsSeq2SeqConfig(encoder=keys, decoder=dict(keys), share_embeddings=True, decoder_start_token_id=0)
    return VariantsConfig(**keys)


def predicted(name, checkpointing):
    """Bytes of the peak by `plan_memory`."""
    from hf_variants.analysis import plan_memory

    name, dtype = IN_HALF.get(name, (name, "float32"))
    _, _, rows, length = CASES[name]
    options = {
        "length": length,
        "encoder_length": READ.get(name),
        **({"images": IMAGES, "trains": SEES[name][1]} if name in SEES else {}),
        "rows": rows,
        "dtype": dtype,
        "device": "cpu",
        "checkpointing": checkpointing,
    }
    return plan_memory(config_of(name), **options)["peak"]


def model_of(config):
    from hf_variants import VariantsForCausalLM, VariantsForImageTextToText, VariantsForMaskedLM, VariantsForSeq2SeqLM

    if hasattr(config, "vision_config"):
        return VariantsForImageTextToText(config)
    if len(config.stacks) > 1:
        return VariantsForSeq2SeqLM(config)
    return (VariantsForCausalLM if config.is_causal else VariantsForMaskedLM)(config)


def train(config, rows, length, checkpointing, steps=2, read=None, trains=None, dtype="float32"):
    """Two steps of AdamW on random tokens; `read`: tokens of the encoder of an encoder-decoder; `trains`: parts of a model
    with images that are trained; `dtype`: float32, bfloat16, or mixed (fp32 weights under bf16 autocast).
    """
    import torch

    torch.manual_seed(0)
    model = model_of(config).train()
    if dtype == "bfloat16":
        model.to(torch.bfloat16)
    if trains:
        from hf_variants.vision_language.phases import freeze

        freeze(model, trains)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3, fused=True)
    vocabulary = getattr(config, "text_config", config).vocab_size
    labels = torch.randint(1, vocabulary, (rows, length))
    inputs = {"input_ids": torch.randint(1, vocabulary, (rows, read)) if read else labels, "labels": labels}
    if trains:
        labels[:, : IMAGES * config.tokens_of_image()] = config.image_token_id
        inputs["pixel_values"] = torch.randn(rows * IMAGES, 3, TOWER["image_size"], TOWER["image_size"])
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed"):
            loss = model(**inputs).loss
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()


def measure(name):
    """Bytes of the measured peaks in this process: [without, with] checkpointing."""
    from benchmarks.peak import resident, settle

    name, dtype = IN_HALF.get(name, (name, "float32"))
    _, _, rows, length = CASES[name]
    trains = SEES[name][1] if name in SEES else None
    small = {**SMALL, **({"layer_types": config_of(name).layer_types[:3]} if name == "windows" else {})}
    if name == "experts":
        small["moe_intermediate_size"] = 32
    peaks = []
    for checkpointing in (False, True):
        options = {"read": READ.get(name), "trains": trains, "dtype": dtype}
        train(config_of(name, **small), 1, length, checkpointing, **options)
        settle()
        empty = resident("VmRSS")
        train(config_of(name), rows, length, checkpointing, **options)
        peaks.append(resident("VmHWM") - empty)
    return peaks


def measured(name):
    """The same, from a process of its own."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    environment |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
    command = [sys.executable, "-m", "benchmarks.memory_plan", "--measure", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(words):
    if words[:1] == ["--measure"]:
        print(json.dumps(measure(words[1])))
        return
    print("| case | checkpointing | predicted MB | measured MB | predicted / measured | at its height |")
    print("|---|---|---|---|---|---|")
    for name in words or (*CASES, *IN_HALF):
        for checkpointing, peak in zip((False, True), measured(name), strict=True):
            plan = predicted(name, checkpointing)
            cells = (name, "yes" if checkpointing else "no", f"{plan['bytes'] / 1e6:.0f}", f"{peak / 1e6:.0f}")
            print(f"| {' | '.join(cells)} | {plan['bytes'] / peak:.3f} | {plan['phase']} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
