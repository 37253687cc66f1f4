"""Decoding of multi-head latent attention: native expands every cached latent at each step, ours works on the latents."""

from transformers import DeepseekV3Config

from benchmarks.case import Case
from benchmarks.generation import step_of
from benchmarks.pairs import models, random_ids
from benchmarks.work import decode_bytes

# An eighth of DeepSeek-V3: hidden size, feed-forward, heads and query rank are divided, latent and head widths as published.
CONFIG = DeepseekV3Config(
    vocab_size=1024,
    hidden_size=896,
    intermediate_size=2304,
    num_hidden_layers=2,
    first_k_dense_replace=2,
    num_attention_heads=16,
    num_key_value_heads=16,
    q_lora_rank=192,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=8,
    n_group=1,
    topk_group=1,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    max_position_embeddings=32768,
    bos_token_id=None,
    eos_token_id=None,
)


def decode_behind(cached, tokens):
    def build(sides):
        ids = random_ids(CONFIG, 1, 8)
        return {side: step_of(model, ids, cached, tokens) for side, model in models(CONFIG, sides).items()}

    return build


CASES = [
    Case(
        f"latent_decode_{cached // 1024}k",
        f"MLA decode behind {cached} cached tokens, DeepSeek-V3 proportions",
        decode_behind(cached, 3),
        bytes=lambda cached=cached: decode_bytes(CONFIG, 1, cached, 3),
        targets={"speed": bound},
        rounds=3,
        seconds=15.0,
        tolerance=1e-3,
    )
    for cached, bound in ((4096, 3.0), (16384, 6.0))
]
