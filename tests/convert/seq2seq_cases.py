"""Tiny random native encoder-decoders: one entry per family and per choice that its config offers."""

import copy

import torch
from transformers import CONFIG_MAPPING, AutoModelForSeq2SeqLM

from hf_variants.convert import find_family

_T5 = {
    **{"vocab_size": 64, "d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4},
    **{"decoder_start_token_id": 0, "dropout_rate": 0.0, "relative_attention_num_buckets": 8},
    **{"relative_attention_max_distance": 12},
}
_BART = {
    **{"vocab_size": 64, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 6, "encoder_ffn_dim": 40, "decoder_ffn_dim": 28, "max_position_embeddings": 48},
    **{
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    },
}
_STACK = {
    **{"vocab_size": 64, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 10, "query_pre_attn_scalar": 12, "sliding_window": 4},
    **{"attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0, "max_position_embeddings": 64},
}
_OTHER = {**_STACK, "hidden_size": 32, "num_hidden_layers": 3}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_NO_START = {key: value for key, value in _BART.items() if key != "decoder_start_token_id"}
_APART = {**_BART, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}

# (family, choice) -> (native keys, whether the head has a table of its own)
CASES = {
    ("t5", "tied and scaled"): ({**_T5, "tie_word_embeddings": True}, False),
    ("t5", "gated with its own head"): ({**_T5, **_GATED}, True),
    ("t5", "gated silu, tied"): ({**_T5, "feed_forward_proj": "gated-silu", "tie_word_embeddings": False}, False),
    ("mt5", "own head"): ({**_T5, "feed_forward_proj": "gated-gelu"}, True),
    ("mt5", "tied"): ({**_T5, "feed_forward_proj": "relu"}, False),
    ("longt5", "tied and scaled"): ({**_T5, "local_radius": 2, "tie_word_embeddings": True}, False),
    ("longt5", "gated with its own head"): ({**_T5, **_GATED, "local_radius": 5}, True),
    ("umt5", "tied"): ({**_T5, "feed_forward_proj": "gated-gelu"}, False),
    ("umt5", "own head, relu"): ({**_T5, "feed_forward_proj": "relu"}, True),
    ("bart", "plain"): (_BART, False),
    ("bart", "scaled relu"): ({**_BART, "scale_embedding": True, "activation_function": "relu"}, False),
    ("mbart", "scaled"): ({**_BART, "scale_embedding": True}, False),
    ("mbart", "plain"): ({**_BART, "decoder_start_token_id": None}, False),
    ("plbart", "scaled"): ({**_NO_START, "scale_embedding": True}, False),
    ("plbart", "plain"): ({**_BART, "scale_embedding": False, "activation_function": "relu"}, False),
    ("mvp", "plain"): (_BART, False),
    ("mvp", "scaled"): ({**_BART, "scale_embedding": True}, False),
    ("blenderbot", "plain"): ({**_BART, "pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1}, False),
    ("blenderbot", "scaled"): ({**_BART, "scale_embedding": True, "activation_function": "gelu_new"}, False),
    ("m2m_100", "scaled"): ({**_BART, "scale_embedding": True}, False),
    ("m2m_100", "pad 3"): ({**_BART, "scale_embedding": False, "pad_token_id": 3}, False),
    ("pegasus", "scaled"): ({**_BART, "scale_embedding": True, "pad_token_id": 0, "decoder_start_token_id": 0}, False),
    ("marian", "shared"): ({**_BART, "scale_embedding": True, "activation_function": "swish"}, False),
    ("marian", "two vocabularies"): ({**_APART, "scale_embedding": True}, False),
    ("marian", "two vocabularies, untied"): ({**_APART, "tie_word_embeddings": False}, True),
    ("t5gemma", "alike"): ({"encoder": _STACK, "decoder": _STACK, "vocab_size": 64}, False),
    ("t5gemma", "two sizes, untied"): (
        {"encoder": _OTHER, "decoder": _STACK, "vocab_size": 64, "tie_word_embeddings": False},
        True,
    ),
}


def native_config(case, **changes):
    """A fresh native config of one case."""
    return CONFIG_MAPPING[case[0]](**copy.deepcopy({**CASES[case][0], **changes}))


def native_model(case, seed=0, **changes):
    """A native model of one case with everything that is trained random, in fp32 and eval mode."""
    torch.manual_seed(seed)
    config = native_config(case, **changes)
    model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    if CASES[case][1] and find_family(case[0]).head_told_by_weights:
        # as loading a file that holds a head leaves it
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        model.all_tied_weights_keys.pop("lm_head.weight")
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if case[0] in ("marian", "pegasus") and "embed_positions" in name:
                continue
            if "norm" in name:
                tensor.normal_(std=0.3).add_(0.0 if "bias" in name or case[0] == "t5gemma" else 1.0)
            elif "embed" in name or "shared" in name:
                tensor.normal_(std=0.7)
            else:
                tensor.normal_(std=0.2 if tensor.dim() == 1 else 0.5 * tensor.shape[-1] ** -0.5)
    return model


def rows(config, lengths=(9, 14, 6), width=14, side="right", seed=1, vocab=50):
    """Rows of random tokens for the encoder, padded on `side`."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), width), config.pad_token_id)
    mask = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        columns = slice(0, length) if side == "right" else slice(width - length, width)
        ids[row, columns] = torch.randint(4, vocab, (length,), generator=generator)
        mask[row, columns] = 1
    return {"input_ids": ids, "attention_mask": mask}
