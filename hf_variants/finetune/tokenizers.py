"""The tokenizer of a fine-tuning run: its pad token and chat template, and how many tokens each example has.

Notable here: an example that is too long is counted before the trainer sees it, so that nothing is cut silently.
"""

from pathlib import Path

PLAIN_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def open_tokenizer(spec, path):
    """The tokenizer in `path`, with a pad token, and for chats a template.

    Raises:
        ValueError: where there is none, it has no eos token, or the template cannot be read.
    """
    from transformers import AutoTokenizer

    from ..training.tokenizer import load_tokenizer

    if spec.gguf_file is not None and str(path) == spec.model_path:
        tokenizer = AutoTokenizer.from_pretrained(path, gguf_file=spec.gguf_file)
    else:
        tokenizer = load_tokenizer(path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if spec.chat_template is not None:
        file = Path(spec.chat_template)
        if not file.is_file():
            raise ValueError(f"chat_template={spec.chat_template!r} is not a file")
        tokenizer.chat_template = file.read_text(encoding="utf-8")
    elif tokenizer.chat_template is None and spec.task in ("supervised", "preference"):
        tokenizer.chat_template = PLAIN_TEMPLATE.read_text(encoding="utf-8")
    return tokenizer


def check_vocabulary(tokenizer, config):
    """Refuse a tokenizer with ids that the model has no embedding for. Raises ValueError."""
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens and so ids up to {len(tokenizer) - 1}, but the model's "
            f"vocab_size={config.vocab_size} holds less; use the tokenizer the model was trained with"
        )


def token_counts(records, tokenizer, spec):
    """Tokens (list of int) of each record as it will be trained on; of a preference, those of the longer answer.

    Raises:
        ValueError: where the chat template cannot write an example.
    """
    from jinja2 import TemplateError

    counts = []
    for record in records:
        try:
            counts.append(max(_count(text, tokenizer, spec.task) for text in _texts(record, spec)))
        except TemplateError as error:
            raise ValueError(f"the chat template cannot write an example: {error}") from None
    return counts


def keep_short(records, counts, spec, name):
    """(records within `data.sequence_length`, number of longer ones), as `data.over_long` says.

    Raises:
        ValueError: for longer ones under over_long="refuse", or when dropping them leaves none.
    """
    limit = spec.data.sequence_length
    short = [index for index, count in enumerate(counts) if count <= limit]
    longer = len(counts) - len(short)
    if longer and spec.data.over_long == "refuse":
        raise ValueError(
            f"{longer} of {len(counts)} {name} examples have more tokens than data.sequence_length={limit}, up to "
            f"{max(counts)}; raise it, or set data.over_long to drop or truncate"
        )
    if not longer or spec.data.over_long == "truncate":
        return records, longer
    if not short:
        raise ValueError(f"all {len(counts)} {name} examples have more tokens than data.sequence_length={limit}")
    return records.select(short), longer


def _texts(record, spec):
    """What a record becomes: lists of messages or texts."""
    if spec.task == "classification":
        return [record[spec.data.text_key]]
    if "messages" in record:
        return [record["messages"]]
    return [record["prompt"] + record[name] for name in ("completion", "chosen", "rejected") if name in record]


def _count(text, tokenizer, task):
    if isinstance(text, list):
        return len(tokenizer.apply_chat_template(text, tokenize=True, return_dict=True)["input_ids"])
    # TRL adds the end token to texts
    return len(tokenizer(text, verbose=False)["input_ids"]) + int(task != "classification")
