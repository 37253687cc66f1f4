"""The comparisons, each with its large shape, for a card, and a small one, for tests.

Notable here: attention sections have few layers, so that attention is most of what is measured; vocabularies are moderate, so
that the loss is not. The sections that compile whole models stand last, for they take longest to begin.
"""

from functools import partial

from transformers import (
    BloomConfig,
    DeepseekV3Config,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
)

from benchmarks.gpu.calls import Generation, Steps, Training
from benchmarks.gpu.measure import Section

TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LARGE = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
}


def shape(tiny, **large):
    """Keys of a native config; `large` changes the large one."""
    return {**(SMALL if tiny else {**LARGE, **large}), **TOKENS}


def llama(tiny, layers=16):
    return LlamaConfig(**shape(tiny, num_hidden_layers=layers))


def gemma2(tiny):
    heads = {"head_dim": 16, "query_pre_attn_scalar": 16} if tiny else {"head_dim": 64, "query_pre_attn_scalar": 64}
    return Gemma2Config(**shape(tiny, num_hidden_layers=4), **heads)


def bloom(tiny):
    large = {"vocab_size": 32000, "hidden_size": 2048, "n_layer": 4, "n_head": 32}
    return BloomConfig(**({"vocab_size": 256, "hidden_size": 64, "n_layer": 2, "n_head": 4} if tiny else large), **TOKENS)


def gpt_oss(tiny):
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8 if tiny else 128}
    # RoPE without scaling: YaRN warns of lengths that are not its own
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}
    large = shape(tiny, num_hidden_layers=4, intermediate_size=1024)
    return GptOssConfig(**large, head_dim=16 if tiny else 64, **experts, **rope)


def mistral(tiny):
    return MistralConfig(**shape(tiny, num_hidden_layers=4), sliding_window=8 if tiny else 512)


def mixtral(tiny):
    return MixtralConfig(**shape(tiny, num_hidden_layers=4), num_local_experts=8, num_experts_per_tok=2, sliding_window=None)


def deepseek(tiny):
    keys = {**shape(tiny, num_hidden_layers=4), "num_key_value_heads": 4 if tiny else 32}
    return DeepseekV3Config(
        **keys,
        first_k_dense_replace=4,
        q_lora_rank=None,
        kv_lora_rank=32 if tiny else 512,
        qk_nope_head_dim=16 if tiny else 128,
        qk_rope_head_dim=16 if tiny else 64,
        v_head_dim=16 if tiny else 128,
        n_routed_experts=8,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
    )


def rows(tiny, batch, length, tiny_length=48):
    return (1, tiny_length) if tiny else (batch, length)


def generation(tiny, **options):
    return Generation(4 if tiny else 64, **options)


def attention(title, config, native):
    """A section of training steps with both of our backends beside native's."""
    both = {"ours": "sdpa", "ours flex": "flex_attention"}
    length = partial(rows, batch=1, length=4096)
    return Section(f"{title}, 4096 tokens, native {native}", config, length, lambda tiny: Training(), native, both)


SECTIONS = {
    "training": Section(
        "training step, Llama of 0.8 billion, 4 x 2048 tokens",
        llama,
        partial(rows, batch=4, length=2048),
        lambda tiny: Training(),
    ),
    "decoding": Section(
        "greedy decoding, Llama of 0.8 billion, growing cache, 1 row",
        llama,
        partial(rows, batch=1, length=8, tiny_length=8),
        generation,
    ),
    "softcap": attention("training step, soft-capped scores (Gemma 2)", gemma2, "eager"),
    "alibi": attention("training step, ALiBi (BLOOM)", bloom, "eager"),
    "sinks": attention("training step, sinks (gpt-oss)", gpt_oss, "eager"),
    "window": attention("training step, window of 512 (Mistral)", mistral, "sdpa"),
    "latent": Section(
        "MLA decoding behind 8192 tokens (DeepSeek-V3)",
        deepseek,
        partial(rows, batch=1, length=8192),
        lambda tiny: Steps(2 if tiny else 16),
    ),
    "experts": Section(
        "training step, 8 experts (Mixtral), 4 x 1024 tokens",
        mixtral,
        partial(rows, batch=4, length=1024),
        lambda tiny: Training(),
    ),
    "decoding_static": Section(
        "greedy decoding, static cache, compiled with CUDA graphs, 8 layers, 1 row",
        partial(llama, layers=8),
        partial(rows, batch=1, length=8, tiny_length=8),
        partial(generation, cache_implementation="static"),
        parks=False,
    ),
    "training_compiled": Section(
        "training step, compiled, 4 layers, 4 x 2048 tokens",
        partial(llama, layers=4),
        partial(rows, batch=4, length=2048),
        lambda tiny: Training(),
        compiled=True,
    ),
}
