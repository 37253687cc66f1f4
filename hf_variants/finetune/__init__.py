"""Fine-tuning: supervised, by preferences, on more text, or as a classifier; whole weights or adapters, float or 4-bit.

    finetune(FinetuneSpec)      merge_adapter(adapter, target)      load_adapter(adapter)

Notable here: TRL trains, peft adapts; this room reads and checks the examples, converts a native checkpoint on the way, and
proves what it merged. Names are resolved on first use, so that reading a recipe does not import torch.
"""

from ..lazy_names import lazy_names

_WHERE = {
    "FinetuneSpec": "specs",
    "AdapterSpec": "specs",
    "ExamplesSpec": "specs",
    "finetune": "run",
    "merge_adapter": "merging",
    "load_adapter": "merging",
    "split_experts": "expert_layout",
    "fuse_experts": "expert_layout",
}

__all__, __getattr__ = lazy_names(__name__, _WHERE)
