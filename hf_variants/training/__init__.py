"""Training: recipes as dataclasses, tokenizers, packed data, a Trainer that resumes, and its callbacks.

Notable here: names are resolved on first use, so that reading a recipe does not import torch.
"""

from ..lazy_names import lazy_names

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

__all__, __getattr__ = lazy_names(__name__, _WHERE)
