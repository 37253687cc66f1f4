"""Opening a checkpoint for measurement or generation."""

from ..training.models import load_model
from ..training.tokenizer import load_tokenizer


def open_checkpoint(path, dtype="auto", device="auto"):
    """(model in eval mode, tokenizer) of a directory or Hub id. Raises ValueError when either is missing."""
    import torch

    import hf_variants  # noqa: F401 - registers the family with the Auto classes

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = dtype if dtype == "auto" else getattr(torch, dtype)
    return load_model(path, dtype=dtype).to(device).eval(), load_tokenizer(path)


def documents_of(spec, part):
    """The "train", "eval" or "all" documents of a `DataSpec`."""
    from ..training.documents import read_documents, train_and_eval_documents

    if part == "all":
        return list(read_documents(spec))
    train, held_out = train_and_eval_documents(spec)
    return train if part == "train" else held_out
