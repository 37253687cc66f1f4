"""Every key of the `scaling study` recipe, as a dataclass."""

from dataclasses import dataclass
from typing import Literal

from ..training.bounds import SEEDS
from ..training.spec_parsing import key


@dataclass
class ScalingStudySpec:
    """Sizes, token counts and seeds; a run for each combination, and the law fitted to them."""

    output_dir: str = key("directory of runs, table, law and figure")
    base: dict = key("keys of the pretrain command; {config: recipes/pretrain.yaml} starts from a recipe", factory=dict)
    sizes: dict = key("{name: {dotted key: value}}: what makes each size of the base, its learning rate too", factory=dict)
    token_counts: list[int] = key("tokens to train each size on, each rounded to whole steps", factory=list, least=1)
    seeds: list[int] = key("a run per size, token count and seed (weights and data order)", factory=lambda: [0], **SEEDS)
    decay_share: float = key(
        "share of a run in which the learning rate falls to zero, behind a constant part", 0.2, above=0, below=1
    )
    decay_type: Literal["linear", "1-sqrt", "cosine"] = key("how it falls (Hagele et al. 2024, arXiv:2405.18392)", "1-sqrt")
    count: Literal["total", "non_embedding"] = key("which parameters are N of the law; the table holds both", "total")
    bootstrap: int = key("resampled fits for the intervals", 200, least=0)
    overwrite: bool = key("start runs afresh whose settings changed", False)
