"""Mixture-of-experts models against native's default experts implementation (grouped products), training and decoding."""

from transformers import DeepseekV3Config, MixtralConfig

from benchmarks.case import Case
from benchmarks.generation import decode_of
from benchmarks.pairs import models, random_ids
from benchmarks.training_step import step_of
from benchmarks.work import decode_bytes, training_flops

SMALL = {"vocab_size": 2048, "num_hidden_layers": 3, "hidden_size": 512, "bos_token_id": None, "eos_token_id": None}
HEADS = {"num_attention_heads": 8}
MIXTRAL = MixtralConfig(
    **SMALL,
    **HEADS,
    num_key_value_heads=2,
    intermediate_size=1024,
    num_local_experts=8,
    num_experts_per_tok=2,
    sliding_window=None,
)
DEEPSEEK = DeepseekV3Config(
    **SMALL,
    **HEADS,
    num_key_value_heads=8,
    intermediate_size=1024,
    moe_intermediate_size=128,
    n_routed_experts=64,
    n_shared_experts=1,
    num_experts_per_tok=6,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    q_lora_rank=None,
    kv_lora_rank=128,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=64,
)


def training(config):
    def build(sides):
        ids = random_ids(config, 2, 512)
        pair = models(config, sides, native_experts="grouped_mm")
        return {side: step_of(model, ids) for side, model in pair.items()}

    return build


def decoding(config):
    def build(sides):
        ids = random_ids(config, 1, 16)
        pair = models(config, sides, native_experts="grouped_mm")
        return {side: decode_of(model, ids, 24) for side, model in pair.items()}

    return build


def work_of_training(config):
    return {"flops": lambda: training_flops(config, 2, 512)}


def work_of_decoding(config):
    return {"bytes": lambda: decode_bytes(config, 1, 28, 24)}


CASES = [
    Case(
        f"{name}_{kind}",
        f"{kind} with {what}, native grouped experts",
        build(config),
        **work(config),
        targets={"speed": 1.0},
        rounds=4,
        seconds=12.0,
        tolerance=tolerance,
    )
    for name, config, what in (("mixtral", MIXTRAL, "8 experts"), ("deepseek", DEEPSEEK, "64 fine experts and a shared one"))
    for kind, build, work, tolerance in (
        ("training", training, work_of_training, 1e-3),
        ("decode", decoding, work_of_decoding, 0.0),
    )
]
