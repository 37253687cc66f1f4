"""What quantising returns: the model with its codes, and an account of everything done and not done."""

from dataclasses import asdict, dataclass, field

import torch
from torch import nn

from .awq_linear import AwqLinear


@dataclass
class QuantizationReport:
    """An account of one run; `to_dict()` is what `quantization_report.json` holds.

    Attributes:
        layers: per layer its name, the relative output error, the relative squared error of every Linear's weight, the sites
            with their search loss beside that of doing nothing, and the scales' span.
        skipped_sites: {site: reason} for places left unsmoothed.
        tokens_per_expert: calibration tokens that reached each routed expert.
        starved_experts: experts with fewer tokens than `min_expert_tokens`, quantised by rounding to nearest.
    """

    method: str
    bits: int
    group_size: int
    calibration: dict = field(default_factory=dict)
    layers: list = field(default_factory=list)
    skipped_sites: dict = field(default_factory=dict)
    tokens_per_expert: dict = field(default_factory=dict)
    starved_experts: list = field(default_factory=list)
    quantized_modules: int = 0
    quantized_parameters: int = 0
    unquantized_modules: list = field(default_factory=list)
    warnings: list = field(default_factory=list)

    def to_dict(self):
        return asdict(self)


@dataclass
class QuantizedModel:
    """A quantised model in memory.

    Attributes:
        model: float32, experts apart; every quantised weight holds exactly what its codes stand for, so that its logits are
            the reference for the written checkpoint. After `pack()` the same object with `AwqLinear` layers.
        codes: full name -> `GroupCodes`.
        report: `QuantizationReport`.
        dtypes: full parameter name -> dtype in which it is stored.
    """

    model: nn.Module
    codes: dict
    report: QuantizationReport
    dtypes: dict
    quantization_config: dict
    weight_errors: dict = field(default_factory=dict)

    @torch.no_grad()
    def round_to_storage(self):
        """Round what stays dense to its storage dtype, still held in float32."""
        coded = {f"{name}.weight" for name in self.codes}
        for name, parameter in self.model.named_parameters():
            if name in coded:
                continue
            parameter.copy_(parameter.to(self.dtypes.get(name, torch.float32)).float())

    def pack(self):
        """Replace every quantised Linear by an `AwqLinear` and cast the rest to its storage dtype, in place."""
        for name, codes in self.codes.items():
            linear = self.model.get_submodule(name)
            self.model.set_submodule(name, AwqLinear.from_codes(codes, linear.bias))
        for name, parameter in self.model.named_parameters():
            parameter.data = parameter.data.to(self.dtypes.get(name, torch.float32))
        self.model.tie_weights()
        return self.model


def storage_dtypes(model, dtype=None):
    """{parameter name: dtype to store it in}: as in `model`, but float32 becomes `dtype` (bfloat16 when None)."""
    if dtype is not None:
        return {name: dtype for name, _ in model.named_parameters()}
    half = (torch.float16, torch.bfloat16)
    mixed = any(p.dtype in half for p in model.parameters())
    return {n: p.dtype if mixed or p.dtype in half else torch.bfloat16 for n, p in model.named_parameters()}
