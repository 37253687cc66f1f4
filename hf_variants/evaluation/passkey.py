"""Passkey retrieval (Mohtashami & Jaggi 2023, arXiv:2305.16300): can a model still use one sentence of a long text?

    bos  task | filler filler | The pass key is 48213. Remember it. | filler | What is the pass key? The pass key is | 48213

Notable here: one forward per text says whether greedy decoding would give the key, since a key is right only where each of
its tokens is the likeliest after those before it; its loss shows a model that is close before the first hit.
"""

import random

import torch
from torch.nn.functional import cross_entropy

TASK = "There is a pass key hidden in the text below. Find it and remember it.\n"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
NEEDLE = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"


@torch.no_grad()
def passkey_retrieval(model, tokenizer, lengths, depths=(0.1, 0.5, 0.9), trials=2, digits=5, filler=FILLER, seed=0):
    """Retrieval at several lengths.

    Args:
        model: a causal model; it is put in eval mode for the measurement and set back.
        lengths: tokens of the whole text, key included.
        depths: where the key stands, as shares of the filler before it.
        trials: random keys per length and depth.
        digits: of a key.
        filler: text that is repeated around the key.

    Returns:
        one dict per length: length, texts, accuracy, key_loss (nats per token of the key), and `depths`, a list of
        {depth, accuracy, key_loss}.

    Raises:
        ValueError: for a length that does not hold the task and the key, or is beyond the context of the model.
    """
    limit = getattr(model.config, "max_position_embeddings", None)
    was_training = model.training
    model.eval()
    try:
        rows = []
        for length in lengths:
            if limit is not None and length > limit:
                raise ValueError(f"lengths holds {length}, beyond max_position_embeddings={limit}")
            draw, by_depth = random.Random(f"{seed} {length}"), []
            for depth in depths:
                results = [_trial(model, tokenizer, length, depth, _key(draw, digits), filler) for _ in range(trials)]
                by_depth.append({"depth": depth, **_means(results)})
            rows.append({"length": length, "texts": len(by_depth) * trials, **summary(by_depth), "depths": by_depth})
        return rows
    finally:
        model.train(was_training)


def summary(rows):
    """Mean accuracy and key_loss of rows that count equally."""
    return _means([(row["accuracy"], row["key_loss"]) for row in rows])


def passkey_text(tokenizer, length, depth, key, filler=FILLER):
    """(ids of a text of exactly `length` tokens that ends with the key, number of tokens of the key).

    Raises:
        ValueError: for a length that cannot hold the task and its key.
    """

    def encode(text):
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    head = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    question = encode(QUESTION)
    # the key as it is spelt after the question, whichever way the tokenizer cuts blanks and digits
    whole = encode(f"{QUESTION} {key}")
    answer = whole[len(question) :] if whole[: len(question)] == question else encode(f" {key}")
    task, needle = encode(TASK), encode(NEEDLE.format(key=key))
    room = length - len(head) - len(task) - len(needle) - len(question) - len(answer)
    if room < 0:
        raise ValueError(f"lengths holds {length}, less than the {length - room} tokens of the task and the key")
    unit = encode(filler)
    around = (unit * (room // len(unit) + 1))[:room]
    cut = round(depth * room)
    ids = head + task + around[:cut] + needle + around[cut:] + question + answer
    return ids, len(answer)


def _trial(model, tokenizer, length, depth, key, filler):
    ids, number = passkey_text(tokenizer, length, depth, key, filler)
    ids = torch.tensor([ids], device=model.device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=number + 1).logits[0, -number - 1 : -1].float()
    answer = ids[0, -number:]
    return float((logits.argmax(-1) == answer).all()), cross_entropy(logits, answer).item()


def _key(draw, digits):
    return "".join(draw.choice("123456789") for _ in range(digits))


def _means(results):
    accuracy, loss = zip(*results, strict=True)
    return {"accuracy": sum(accuracy) / len(accuracy), "key_loss": sum(loss) / len(loss)}
