"""Sequence classification: classes of the examples, their tokens, and what is measured on the held-out ones."""


def class_names(examples, spec):
    """Names (list of str) of the classes in the training records, sorted; numbers are sorted as numbers.

    Raises:
        ValueError: for a single class, or a held-out class that training never sees.
    """
    found = sorted({record[spec.data.label_key] for record in examples.train})
    if len(found) < 2:
        raise ValueError(f"data.label_key={spec.data.label_key!r} holds the single class {found}; a classifier needs two")
    unseen = {record[spec.data.label_key] for record in examples.eval} - set(found)
    if unseen:
        raise ValueError(f"the held-out examples hold classes that training never sees: {sorted(map(str, unseen))}")
    return [str(name) for name in found]


def tokenized(records, tokenizer, spec, names):
    """Records as {input_ids, attention_mask, labels}, cut to `data.sequence_length`."""
    number = {name: index for index, name in enumerate(names)}

    def encode(record):
        encoded = tokenizer(record[spec.data.text_key], truncation=True, max_length=spec.data.sequence_length)
        ids = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        return {**ids, "labels": number[str(record[spec.data.label_key])]}

    return records.map(encode, remove_columns=records.column_names)


def measured(prediction):
    """{metric: number} of a transformers EvalPrediction, by this package's `classification` metric."""
    from ..metrics import load_metric

    scores = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    values = load_metric("classification").compute(predictions=scores.argmax(-1), references=prediction.label_ids)
    values.pop("examples")
    return values
