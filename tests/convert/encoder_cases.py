"""Tiny random native encoders: one entry per family and per choice that its config offers, for each of its heads.

Every parameter is random, the padding rows of the tables too; tensors that natively feed nothing are zero, as they are when a
model is made.
"""

import copy

import pytest
import torch
from transformers import CONFIG_MAPPING

from hf_variants.convert.heads import auto_class
from hf_variants.convert.registry import family_names, find_family

_COMMON = {
    **{"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 40},
    **{"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "type_vocab_size": 3},
    **{"num_labels": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
_DISTIL = {
    **{"vocab_size": 64, "dim": 48, "n_layers": 3, "n_heads": 6, "hidden_dim": 40, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "num_labels": 2, "dropout": 0.0, "attention_dropout": 0.0},
    **{"seq_classif_dropout": 0.0, "qa_dropout": 0.0},
}
_MODERN = {key: value for key, value in _COMMON.items() if "dropout" not in key and key != "type_vocab_size"}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 5000.0}
_SLIDE, _FULL = "sliding_attention", "full_attention"
_BERT = {"plain": {}, "untied_relu": {"tie_word_embeddings": False, "hidden_act": "relu", "layer_norm_eps": 1e-5}}
_ROBERTA = {
    "plain": {"pad_token_id": 1, "bos_token_id": 0, "type_vocab_size": 1},
    "untied": {"tie_word_embeddings": False, "hidden_act": "relu", "pad_token_id": 3},
}

_XLM = {
    **{"vocab_size": 64, "emb_dim": 48, "n_layers": 3, "n_heads": 6, "max_position_embeddings": 64, "num_labels": 2},
    **{"dropout": 0.0, "attention_dropout": 0.0, "summary_first_dropout": 0.0, "pad_token_id": 2},
}
_UNTYPED = {key: value for key, value in _COMMON.items() if key != "type_vocab_size"}
_BASES = {"mpnet": _UNTYPED, "distilbert": _DISTIL, "modernbert": _MODERN, "eurobert": _MODERN}
_BASES |= {"xlm": _XLM, "flaubert": _XLM, "ultrabert": _MODERN}
_CHOICES = {
    "bert": _BERT,
    "ernie": {"plain": {}},
    "megatron-bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": {"plain": _ROBERTA["plain"]},
    "camembert": {"plain": _ROBERTA["plain"]},
    "data2vec-text": {"plain": _ROBERTA["plain"]},
    "roberta-prelayernorm": _ROBERTA,
    "xlm-roberta-xl": {"plain": _ROBERTA["plain"]},
    "mpnet": {
        "plain": {"pad_token_id": 1, "bos_token_id": 0},
        "untied_relu": {"tie_word_embeddings": False, "hidden_act": "relu", "pad_token_id": 1, "bos_token_id": 0},
    },
    "distilbert": {"plain": {}, "untied_relu": {"tie_word_embeddings": False, "activation": "relu"}},
    "electra": {
        "narrow": {"embedding_size": 20},
        "wide_untied": {"embedding_size": 48, "tie_word_embeddings": False, "hidden_act": "relu"},
    },
    "modernbert": {
        "alternating": {"local_attention": 6},
        "mean_biased": {
            **{"layer_types": [_SLIDE, _FULL, _SLIDE], "local_attention": 5, "classifier_pooling": "mean", "norm_bias": True},
            **{"attention_bias": True, "mlp_bias": True, "classifier_bias": True, "decoder_bias": False},
            **{"tie_word_embeddings": False, "classifier_activation": "relu"},
        },
        "all_full_old_keys": {"global_attn_every_n_layers": 1, "global_rope_theta": 900.0, "sparse_prediction": True},
    },
    "nomic_bert": {
        "plain": {},
        "scaled": {"tie_word_embeddings": False, "rope_parameters": {**_YARN, "rope_theta": 100.0}},
    },
    "eurobert": {
        "late": {"num_key_value_heads": 2},
        "mean_tied_biased": {
            **{"classifier_pooling": "mean", "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
            **{"rope_parameters": _YARN},
        },
        "bos": {"classifier_pooling": "bos", "head_dim": 12, "num_key_value_heads": 3},
    },
    "jina_embeddings_v3": {
        "plain": _ROBERTA["plain"],
        "untied_scaled": {**_ROBERTA["untied"], "rope_parameters": _YARN},
    },
    "roformer": {
        "narrow": {"embedding_size": 20},
        "wide_untied": {"tie_word_embeddings": False, "hidden_act": "relu"},
    },
    "ultrabert": {
        "pattern": {"layer_types": [_SLIDE, _FULL, _SLIDE], "sliding_window": 2, "classifier_dropout": 0.0},
        "mean_biased": {
            **{"classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
            **{"layer_types": [_FULL] * 3, "rope_parameters": {_FULL: _YARN}, "head_dim": 12},
        },
    },
    "gte": {
        "plain": {},
        "untyped_untied": {"type_vocab_size": 0, "tie_word_embeddings": False, "rope_parameters": _YARN, "hidden_act": "silu"},
    },
    "xlm": {
        "plain": {},
        "untied_relu": {"tie_word_embeddings": False, "gelu_activation": False, "n_langs": 3, "use_lang_emb": False},
    },
    "flaubert": {"plain": {"pad_token_id": 3}},
}

SINGLE = [name for name in family_names() if not find_family(name).two_stacks]
ENCODERS = [name for name in SINGLE if "causal_lm" not in find_family(name).heads]
CASES = [(family, name) for family, names in _CHOICES.items() for name in names]
FIRST = {family: next(iter(names)) for family, names in _CHOICES.items()}
# whose code is that of another family
COPIES = ("flaubert", "ernie", "xlm-roberta", "camembert", "data2vec-text", "xlm-roberta-xl")
# every head of the first case of each family; the others, and copies, with those that have weights of their own
HEADED = [
    (family, name, head)
    for family, name in CASES
    for head in find_family(family).heads
    if name == FIRST[family] and family not in COPIES or head in ("masked_lm", "sequence_classification")
]

# whose parts are those of families above, in other combinations: one head each is fast
RECOMBINED = {"jina_embeddings_v3": "masked_lm", "gte": "masked_lm", "xlm": "masked_lm", "flaubert": None, "roformer": "base"}
RECOMBINED["ultrabert"] = "sequence_classification"


def marked(family, name, head):
    """A parameter of these three, slow where it repeats a kind."""
    fast = family not in RECOMBINED or (name, head) == (FIRST[family], RECOMBINED[family])
    return pytest.param(family, name, head, marks=() if fast else pytest.mark.slow, id=f"{family}-{name}-{head}")


def native_config(family, name, **changes):
    """A fresh native config of one case."""
    keys = {**_BASES.get(family, _COMMON), **_CHOICES[family][name], **changes}
    return CONFIG_MAPPING[family](**copy.deepcopy(keys))


def native_model(family, name, head, seed=0, **changes):
    """A native model of one case with everything random, in fp32 and eval mode."""
    torch.manual_seed(seed)
    config = native_config(family, name, **changes)
    model = auto_class(head).from_config(config, dtype=torch.float32)
    dead = () if config.tie_word_embeddings else ("cls.predictions.bias", "lm_head.bias")
    dead = () if family == "eurobert" else dead
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if family == "roformer" and "embed_positions" in name:
                continue
            if "norm" in name.removeprefix("roberta_prelayernorm.").lower() or name.rpartition(".")[0].endswith(".ln"):
                tensor.normal_(std=0.3).add_(0.0 if "bias" in name else 1.0)
            elif "embeddings." in name or "embed_tokens" in name:
                tensor.normal_(std=0.7)
            else:
                tensor.normal_(std=0.2 if tensor.dim() == 1 else 0.5 * tensor.shape[-1] ** -0.5)
            if name in dead:
                tensor.zero_()
    return model.eval()


def rows(config, lengths=(9, 14, 6), width=14, side="right", seed=1):
    """Rows of random tokens, padded on `side`: input_ids, attention_mask and, where the model has types, token_type_ids."""
    generator = torch.Generator().manual_seed(seed)
    pad = config.pad_token_id
    ids = torch.full((len(lengths), width), pad)
    mask, types = torch.zeros(len(lengths), width, dtype=torch.long), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        columns = slice(0, length) if side == "right" else slice(width - length, width)
        ids[row, columns] = torch.randint(4, 64, (length,), generator=generator)
        mask[row, columns] = 1
        if getattr(config, "type_vocab_size", 0) > 1:
            types[row, columns] = torch.randint(0, config.type_vocab_size, (length,), generator=generator)
    batch = {"input_ids": ids, "attention_mask": mask}
    return {**batch, "token_type_ids": types} if types.any() else batch


def labels_for(head, batch):
    """Labels of a head, some of them to be skipped."""
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    tokens = ids.masked_fill(~mask | (ids % 3 == 0), -100)
    return {
        "masked_lm": {"labels": tokens},
        "sequence_classification": {"labels": torch.arange(len(ids)) % 2},
        "token_classification": {"labels": torch.where(tokens < 0, tokens, tokens % 2)},
        "question_answering": {"start_positions": torch.tensor([1, 0, 40]), "end_positions": torch.tensor([4, 5, 41])},
    }[head]


def outputs_of(model, batch):
    """{name: tensor} of the outputs that both sides give."""
    out = model(**batch)
    names = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")
    return {name: out[name] for name in names if name in out}
