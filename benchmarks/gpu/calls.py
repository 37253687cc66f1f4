"""What is measured on each side: a training step, a generation, steps behind a long cache; and what proves the sides equal.

Notable here: a kind of call knows how to get a model ready (`begin`), the call itself (`run`), a small computation of the
same sort whose tensors the sides must agree on (`probe`), and what a call computes or reads by the family's counters (`work`).
"""

import torch
from torch.nn.functional import cross_entropy

from benchmarks.work import decode_bytes, training_flops

# tokens of a probe, at most: native eager attention keeps all scores of a row, in fp32 too
PROBED = 2048


class Training:
    """Forward, loss and backward; gradients are made anew each time, and there is no optimizer."""

    trains = True

    def units(self, ids):
        return ids.numel()

    def work(self, config, ids, size):
        return {"flops": training_flops(config, *ids.shape)}

    def begin(self, model, ids):
        return None

    def run(self, model, ids, state):
        model.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    def probe(self, model, ids):
        """Logits, and the gradient of the token embedding, which passes through every layer."""
        ids = ids[:1, :PROBED]
        model.zero_grad(set_to_none=True)
        logits = model(input_ids=ids, use_cache=False).logits
        cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        found = {"logits": logits.detach(), "gradient": model.get_input_embeddings().weight.grad}
        model.zero_grad(set_to_none=True)
        return found


class Generation:
    """Greedy generation of so many tokens behind a prompt.

    Args:
        tokens: how many.
        options: further keywords of `generate`.
    """

    trains = False

    def __init__(self, tokens, **options):
        self.tokens = tokens
        fixed = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        self.options = {**fixed, **options}

    def units(self, ids):
        return self.tokens * ids.shape[0]

    def work(self, config, ids, size):
        rows, length = ids.shape
        return {"bytes": decode_bytes(config, rows, length + self.tokens // 2, self.tokens, size)}

    def begin(self, model, ids):
        return {"attention_mask": torch.ones_like(ids)}

    def run(self, model, ids, state):
        return model.generate(ids, **state, **self.options)[:, ids.shape[1] :]

    @torch.no_grad()
    def probe(self, model, ids):
        """Logits of the prompt and of a few forced tokens behind it, each met one at a time by the cache."""
        return {"logits": forced(model, ids, [ids[:, :1], ids[:, 1:2], ids[:, 2:3]])}


class Steps:
    """Single-token forwards behind a cached prompt, which the cache is cut back to after each call."""

    trains = False

    def __init__(self, tokens):
        self.tokens = tokens

    def units(self, ids):
        return self.tokens * ids.shape[0]

    def work(self, config, ids, size):
        return {"bytes": decode_bytes(config, *ids.shape, self.tokens, size)}

    @torch.no_grad()
    def begin(self, model, ids):
        return model(ids, use_cache=True, logits_to_keep=1).past_key_values

    @torch.no_grad()
    def run(self, model, ids, state):
        for _ in range(self.tokens):
            model(ids[:, :1], past_key_values=state, use_cache=True)
        state.crop(-self.tokens)

    @torch.no_grad()
    def probe(self, model, ids):
        return {"logits": forced(model, ids[:, :PROBED], [ids[:, :1], ids[:, 1:2]])}


def forced(model, prompt, tokens):
    """Logits [B, 1 + len(tokens), V] of the last token of a prompt and of given tokens behind it."""
    out = model(prompt, use_cache=True, logits_to_keep=1)
    logits = [out.logits]
    for token in tokens:
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits)
    return torch.cat(logits, dim=1)
