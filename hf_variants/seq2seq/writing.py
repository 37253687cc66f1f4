"""What an encoder-decoder writes for texts, and how right it is.

Notable here: texts of like length share a batch and pads are hidden by the mask, so a text's answer is that of the text alone.
"""

from collections import defaultdict

import torch


@torch.no_grad()
def write_texts(model, tokenizer, sources, options=None, batch_size=32):
    """The texts (list of str) that a model writes for `sources`, in their order; mode of the model is kept.

    Args:
        options: `GenerationConfig` keys.
    """
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    written = [""] * len(sources)
    was_training = model.training
    model.eval()
    try:
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            batch = tokenizer([sources[index] for index in chosen], return_tensors="pt", padding=True, padding_side="right")
            batch.pop("token_type_ids", None)
            output = model.generate(**batch.to(model.device), **(options or {}))
            for index, text in zip(chosen, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
                written[index] = text
    finally:
        model.train(was_training)
    return written


def measured(texts, targets):
    """{"exact_match", "bleu", "chrf"} of written texts by this package's `translation` metric, and the signatures."""
    from ..metrics import load_metric

    return load_metric("translation").compute(predictions=texts, references=targets)


def exact_by_group(texts, records, spec):
    """{kind of pair: (share written exactly, pairs)} in the order of their names, empty without `group_key`."""
    if spec.group_key is None:
        return {}
    hits = defaultdict(list)
    for text, record in zip(texts, records, strict=True):
        hits[record[spec.group_key]].append(text.strip() == record[spec.target_key].strip())
    return {name: (sum(found) / len(found), len(found)) for name, found in sorted(hits.items())}
