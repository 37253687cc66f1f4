"""Every key of the `ablate` recipe, as a dataclass."""

from dataclasses import dataclass
from typing import Literal

from ..training.bounds import SEEDS
from ..training.spec_parsing import key


@dataclass
class AblateSpec:
    """A base, single changes of it, a budget that all of them share, and seeds."""

    output_dir: str = key("directory of runs, table, plots and report")
    base: dict = key("keys of the pretrain command; {config: recipes/pretrain.yaml} starts from a recipe", factory=dict)
    base_name: str = key("what the base is called in tables and plots", "base")
    design: Literal["single", "staircase", "grid"] = key(
        "single: each variant is one change of the base; staircase: each adds to the one before; grid: all combinations",
        "single",
    )
    variants: dict = key(
        "{name: {dotted key: value}} for single and staircase; a key set to null is left out, `against` names the variant to "
        "compare with instead of the base",
        factory=dict,
    )
    grid: dict = key("{dotted key: [values]} for grid; the first value of each is the base", factory=dict)
    seeds: list[int] = key("a run per variant and seed (weights and data order)", factory=lambda: [0, 1, 2], **SEEDS)
    match: Literal["none", "parameters", "active_parameters", "flops", "kv_bytes"] = key(
        "what every variant shares with the base: total or active parameters, training FLOPs, or bytes of the KV cache", "none"
    )
    match_by: str | None = key(
        "key that is adjusted to match; null: trainer.max_steps for flops; the feed-forward width for parameters; "
        "kv_lora_rank or head_dim for kv_bytes",
        None,
    )
    match_multiple: int = key("the adjusted width is a multiple of this", 4, least=1)
    tolerance: float = key("relative difference from the base that still counts as equal", 0.01, least=0)
    confidence: float = key("of the intervals, and of the verdict over all comparisons together", 0.95, above=0, below=1)
    launcher: str | None = key(
        "command of a run, with {recipe} and optionally {name}, e.g. srun -n1 hf-variants pretrain {recipe}; null: one after "
        "another, here",
        None,
    )
    parallel: int = key("runs that the launcher works on at the same time", 1, least=1)
    collect_only: bool = key("start nothing, only collect what is finished", False)
    keep_checkpoints: bool = key("keep the intermediate checkpoints of finished runs", False)
    overwrite: bool = key("start runs afresh whose settings changed", False)
