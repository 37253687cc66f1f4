"""Native models and the family's own on the same random weights."""

import torch
from transformers import AutoModelForCausalLM

from benchmarks.case import OURS, REFERENCE
from hf_variants.convert import from_native

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "eos_token_id": None,
    "bos_token_id": None,
}


def models(config, sides=(REFERENCE, OURS), dtype="fp32", native_attention="sdpa", native_experts=None, **ours_keys):
    """{side: model in eval mode}. The native model is drawn with one seed and converted.

    Args:
        config: a native config.
        native_attention, native_experts: implementations of the native side.
        ours_keys: keywords of `from_native`.
    """
    torch.manual_seed(0)
    options = {} if native_experts is None else {"experts_implementation": native_experts}
    native = AutoModelForCausalLM.from_config(config, attn_implementation=native_attention, dtype=DTYPES[dtype], **options)
    native = native.eval()
    made = {}
    if OURS in sides:
        made[OURS] = from_native(native, **ours_keys)
    if REFERENCE in sides:
        made[REFERENCE] = native
    return {side: made[side] for side in sides}


def random_ids(config, batch, length, seed=1):
    """Token ids [batch, length], never 0."""
    return torch.randint(1, config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))
