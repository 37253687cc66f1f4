"""Every key of the `extrapolate` recipe, as a dataclass."""

from dataclasses import dataclass
from typing import Literal

from ..ablation.specs import AblateSpec
from ..training.bounds import SEEDS
from ..training.spec_parsing import key


@dataclass
class ExtrapolateSpec:
    """A base and variants that tell positions in other ways, trained at one length and measured at longer ones."""

    output_dir: str = key("directory of runs, tables, plot and report")
    base: dict = key("keys of the pretrain command; {config: recipes/pretrain.yaml} starts from a recipe", factory=dict)
    base_name: str = key("what the base is called in tables and plots", "RoPE")
    variants: dict = key("{name: {dotted key: value}}, each one change of the base", factory=dict)
    seeds: list[int] = key("a run per variant and seed (weights and data order)", factory=lambda: [0], **SEEDS)
    match: Literal["none", "parameters", "flops"] = key("what every variant shares with the base, as in ablate", "flops")
    lengths: list[int] = key(
        "tokens per row at which perplexity is measured; each reads and predicts the same held-out tokens",
        factory=lambda: [512, 768, 1024, 1536, 2048],
        least=2,
    )
    methods: list[str] = key(
        "ways of rescaling RoPE at test time, without training, by the longest of `lengths` over the trained one",
        factory=lambda: ["ntk", "yarn"],
    )
    rows: int = key("held-out rows to measure on; each is as long as the least common multiple of `lengths`", 8, least=1)
    bucket: int = key("tokens per range of positions in the table by position", 128, least=1)
    confidence: float = key("of the intervals over seeds", 0.95, above=0, below=1)
    launcher: str | None = key("command of a run, as in ablate; null: one after another, here", None)
    parallel: int = key("runs that the launcher works on at the same time", 1, least=1)
    collect_only: bool = key("train nothing, only measure what is finished", False)
    overwrite: bool = key("start runs afresh whose settings changed", False)

    def ablation(self):
        """The `AblateSpec` of the training part."""
        shared = ("base", "base_name", "variants", "seeds", "match", "confidence", "launcher", "parallel", "collect_only")
        keys = {name: getattr(self, name) for name in (*shared, "overwrite")}
        return AblateSpec(output_dir=f"{self.output_dir}/training", **keys)
