"""What torch's fused attention cannot express (soft-caps, ALiBi, sinks) against native eager; windows against native sdpa.

The vocabularies are small and the layers few, so that attention is most of what is measured.
"""

from transformers import BloomConfig, Gemma2Config, GptOssConfig, MistralConfig

from benchmarks.case import Case
from benchmarks.generation import prefill_of
from benchmarks.pairs import models, random_ids
from benchmarks.training_step import step_of
from benchmarks.work import prefill_flops, training_flops

SMALL = {"vocab_size": 1024, "num_hidden_layers": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
WIDTHS = {"hidden_size": 512, "num_attention_heads": 8}


def gemma2():
    shape = {"intermediate_size": 1024, "num_key_value_heads": 4, "head_dim": 64, "query_pre_attn_scalar": 64}
    return Gemma2Config(**SMALL, **WIDTHS, **shape, sliding_window=4096, max_position_embeddings=8192)


def bloom():
    return BloomConfig(**{**SMALL, "n_layer": 2, "hidden_size": 512, "n_head": 8})


def gpt_oss():
    shape = {"intermediate_size": 256, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 128}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return GptOssConfig(**SMALL, **WIDTHS, **shape, **experts, max_position_embeddings=8192)


def mistral(window=512):
    shape = {"intermediate_size": 1024, "num_key_value_heads": 4, "head_dim": 64, "sliding_window": window}
    return MistralConfig(**SMALL, **WIDTHS, **shape, max_position_embeddings=32768)


def training(make, length, native_attention="eager"):
    def build(sides):
        config = make()
        ids = random_ids(config, 1, length)
        return {side: step_of(model, ids) for side, model in models(config, sides, native_attention=native_attention).items()}

    return build


def prefill(make, length, native_attention="eager"):
    def build(sides):
        config = make()
        ids = random_ids(config, 1, length)
        return {
            side: prefill_of(model, ids) for side, model in models(config, sides, native_attention=native_attention).items()
        }

    return build


_SHORT = {"rounds": 3, "seconds": 12.0, "peak": True, "tolerance": 1e-3}
_FUSED = {"speed": 1.5, "peak": 0.6}

CASES = [
    Case(
        "softcap_training",
        "training step with soft-capped scores, Gemma-2 shape, T=4096, native eager",
        training(gemma2, 4096),
        flops=lambda: training_flops(gemma2(), 1, 4096),
        targets={"speed": 1.0, "peak": 0.5},
        **_SHORT,
    ),
    Case(
        "alibi_training",
        "training step with ALiBi, BLOOM shape, T=2048, native eager",
        training(bloom, 2048),
        flops=lambda: training_flops(bloom(), 1, 2048),
        targets=_FUSED,
        **_SHORT,
    ),
    Case(
        "alibi_prefill",
        "prefill with ALiBi, BLOOM shape, T=2048, native eager",
        prefill(bloom, 2048),
        flops=lambda: prefill_flops(bloom(), 1, 2048),
        targets=_FUSED,
        **_SHORT,
    ),
    Case(
        "sinks_training",
        "training step with sinks, gpt-oss shape, T=2048, native eager",
        training(gpt_oss, 2048),
        flops=lambda: training_flops(gpt_oss(), 1, 2048),
        targets=_FUSED,
        **_SHORT,
    ),
    Case(
        "sinks_prefill",
        "prefill with sinks, gpt-oss shape, T=2048, native eager",
        prefill(gpt_oss, 2048),
        flops=lambda: prefill_flops(gpt_oss(), 1, 2048),
        targets=_FUSED,
        **_SHORT,
    ),
    Case(
        "window_prefill",
        "prefill through a window of 512, T=8192, native sdpa",
        prefill(mistral, 8192, native_attention="sdpa"),
        flops=lambda: prefill_flops(mistral(), 1, 8192),
        targets={"speed": 1.0, "peak": 1.0},
        **_SHORT,
    ),
]
