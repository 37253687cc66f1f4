"""What quantising returns: the model with its codes, and an account of everything done and not done."""

from dataclasses import asdict, dataclass, field

import torch
from torch import nn


@dataclass
class QuantizationReport:
    """An account of one run; `to_dict()` is what `quantization_report.json` holds.

    Attributes:
        layers: per layer its name, the relative output error, the relative squared error of every Linear's weight
            (`weight_errors`) and the squared error of its outputs summed over the calibration tokens (`linear_errors`, to be
            seen beside `output_energy`), the sites with their search loss beside that of doing nothing, and the scales' span.
        skipped_sites: {site: reason} for places left unsmoothed.
        tokens_per_expert: calibration tokens that reached each routed expert.
        starved_experts: experts with fewer tokens than `min_expert_tokens`, quantised by rounding to nearest.
        perplexity: of the full model, of rounding to nearest and of the result, where evaluation tokens were given.
        divergence: of their predictions from those of the full model, mean KL in nats per scored token.
    """

    method: str
    bits: int
    group_size: int
    symmetric: bool = False
    calibration: dict = field(default_factory=dict)
    layers: list = field(default_factory=list)
    skipped_sites: dict = field(default_factory=dict)
    tokens_per_expert: dict = field(default_factory=dict)
    starved_experts: list = field(default_factory=list)
    quantized_modules: int = 0
    quantized_parameters: int = 0
    unquantized_modules: list = field(default_factory=list)
    perplexity: dict = field(default_factory=dict)
    divergence: dict = field(default_factory=dict)
    warnings: list = field(default_factory=list)

    def to_dict(self):
        return asdict(self)


@dataclass
class QuantizedModel:
    """A quantised model in memory.

    Attributes:
        model: its quantised Linears are packed (`PackedLinear`), experts apart; all else is float32 that its storage dtype
            holds exactly, so that its logits are those of the written checkpoint.
        names: full names of the quantised Linears.
        report: `QuantizationReport`.
        dtypes: full parameter name -> dtype in which it is stored.
        probe, probe_outputs: a batch of one row, as the model takes it, and what the model made of it while its quantised
            weights were still dense matrices: the reference for what is written.
    """

    model: nn.Module
    names: list
    report: QuantizationReport
    dtypes: dict
    quantization_config: dict
    probe: dict
    probe_outputs: torch.Tensor

    @property
    def main_dtype(self):
        """The dtype that most parameters are stored in."""
        kinds = list(self.dtypes.values())
        return max(set(kinds), key=kinds.count)

    @property
    def codes(self):
        """{full name: `GroupCodes`}, unpacked at each access."""
        return {name: self.model.get_submodule(name).to_codes() for name in self.names}

    def to_storage(self):
        """Cast what is dense to its storage dtype, in place; returns the model."""
        for name, parameter in self.model.named_parameters():
            parameter.data = parameter.data.to(self.dtypes.get(name, torch.float32))
        for name in self.names:
            self.model.get_submodule(name).compute_in(self.main_dtype)
        self.model.tie_weights()
        return self.model


def storage_dtypes(model, dtype=None):
    """{parameter name: dtype to store it in}: as in `model`, but float32 becomes `dtype` (bfloat16 when None)."""
    if dtype is not None:
        return {name: dtype for name, _ in model.named_parameters()}
    half = (torch.float16, torch.bfloat16)
    mixed = any(p.dtype in half for p in model.parameters())
    return {n: p.dtype if mixed or p.dtype in half else torch.bfloat16 for n, p in model.named_parameters()}
