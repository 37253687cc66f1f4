"""Training: recipes as dataclasses, tokenizers, packed data, a Trainer that resumes, and its callbacks.

Notable here: names are resolved on first use, so that reading a recipe does not import torch.
"""

_WHERE = {
    "TrainingSpec": "specs",
    "DataSpec": "specs",
    "TokenizerSpec": "specs",
    "load_spec": "spec_parsing",
    "build_spec": "spec_parsing",
    "pretrain": "pretraining",
    "train": "pretraining",
    "prepare_data": "pretraining",
    "train_tokenizer": "tokenizer",
    "load_tokenizer": "tokenizer",
    "read_documents": "documents",
    "split_documents": "documents",
    "packed_dataset": "row_files",
    "PackedRows": "row_files",
    "pack": "packing",
    "collate_rows": "trainer",
    "ImageTextCollator": "image_text",
    "VariantsTrainer": "trainer",
    "RunStopped": "errors",
    "ThroughputCallback": "callbacks",
    "PerplexityCallback": "callbacks",
    "last_good_checkpoint": "checkpoints",
    "run_stage": "stages",
}

__all__ = list(_WHERE)


def __getattr__(name):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
