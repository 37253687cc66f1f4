"""Helpers of the generation tests: models by toggle, greedy references, and which toggles follow the length."""

from functools import cache

import pytest
import torch

from tests.variants import TOGGLES, build, draw_ids, tiny

PROMPT, NEW = 7, 6
# no token ends a row, so every comparison covers all the new tokens
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": None}
STATIC = {"cache_implementation": "static", "disable_compile": True}
# one toggle of each way through attention, positions, masks and feed-forward, for what is slow to run
FAMILIES = (
    *("gqa", "mla", "mla_qk_head", "sliding", "mla_alternating", "chunked_nope", "sinks_softcap_chunked"),
    *("alibi_terms", "learned_offset", "sinusoidal", "dynamic", "longrope", "mla_nested_longrope", "moe_groups"),
)
LONGROPE = ("longrope", "mla_longrope", "nested_longrope")


def every_toggle(fast=FAMILIES):
    """Parametrise `name` over all toggles; those outside `fast` run in the slow suite."""
    slow = pytest.mark.slow
    names = [name if name in fast else pytest.param(name, marks=slow) for name in TOGGLES]
    return pytest.mark.parametrize("name", names)


@cache
def model_of(name):
    """The model of a toggle, built once; tests do not change it."""
    return build(tiny(name))


@torch.no_grad()
def generate(model, ids, **options):
    """Rows that `model` generates from `ids`, greedily unless the options say otherwise."""
    options = {**GREEDY, **options}
    if "attention_mask" not in options and "inputs_embeds" not in options:
        options["attention_mask"] = torch.ones_like(ids)
    return model.generate(ids, **options)


@torch.no_grad()
def with_cache(model, ids, cache, new=NEW):
    """Greedy rows, and the logits [new, B, vocab] they were chosen by: a prompt, then one cached token at a time."""
    rows, logits = ids, []
    out = model(ids, past_key_values=cache, use_cache=True).logits[:, -1]
    for _ in range(new):
        logits.append(out)
        rows = torch.cat((rows, out.argmax(-1, keepdim=True)), dim=1)
        out = model(rows[:, -1:], past_key_values=cache, use_cache=True).logits[:, -1]
    return rows, torch.stack(logits)


@torch.no_grad()
def without_cache(model, ids, new=NEW):
    """As `with_cache`, each step one forward over the whole row."""
    rows, logits = ids, []
    for _ in range(new):
        logits.append(model(rows, use_cache=False).logits[:, -1])
        rows = torch.cat((rows, logits[-1].argmax(-1, keepdim=True)), dim=1)
    return rows, torch.stack(logits)


def relative(a, b):
    """Largest difference, relative to the largest logit where that is above one (some toggles have logits above ten)."""
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


def keeps_its_prompt(name):
    """Whether decoding past the original length differs from one long forward by design: `dynamic` keeps its prompt's base."""
    config = tiny(name)
    return "dynamic" in {config.rope_of(key)["rope_type"] for key in config.rope_keys}


def left_padded(ids, pads):
    """`ids` with the first `pads[i]` tokens of row i replaced by pads, and its mask."""
    columns = torch.arange(ids.shape[1])
    mask = (columns >= torch.tensor(pads).unsqueeze(1)).long()
    return ids * mask, mask


__all__ = ["TOGGLES", "build", "draw_ids", "tiny"]
