"""Loading AWQ checkpoints with plain `from_pretrained` where gptqmodel is not installed.

Notable here: transformers' own quantizer for `quant_method: awq` is left in place where its kernels exist; otherwise
this one takes its place and builds `AwqLinear`. It travels with checkpoints, so that a process without the package reads
them too.
"""

from transformers.quantizers import auto
from transformers.quantizers.quantizer_awq import AwqQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils import is_gptqmodel_available
from transformers.utils.quantization_config import AwqConfig, AwqFormat

from .awq_linear import AwqLinear
from .packed_loading import place, replace_packed


class GemmAwqConfig(AwqConfig):
    """An AwqConfig that is written as AutoAWQ writes it, without the fields it inherits from GPTQ."""

    def to_dict(self):
        return {
            "quant_method": "awq",
            "bits": self.bits,
            "group_size": self.group_size,
            "zero_point": self.zero_point,
            "version": AwqFormat(self.format).value,
            "modules_to_not_convert": list(self.modules_to_not_convert or []),
        }

    def to_diff_dict(self):
        return self.to_dict()


class TorchAwqQuantizer(AwqQuantizer):
    """Loads AWQ `gemm` checkpoints on torch's own kernels, without gptqmodel.

    Raises:
        ValueError: for another width, format or symmetric codes; for quantised tensors that no Linear of the model can take.
    """

    def __init__(self, quantization_config, **kwargs):
        fields = {"bits": quantization_config.bits, "group_size": quantization_config.group_size}
        fields["zero_point"], fields["format"] = quantization_config.zero_point, quantization_config.format
        clean = GemmAwqConfig(modules_to_not_convert=quantization_config.modules_to_not_convert, **fields)
        super().__init__(clean, **kwargs)

    def validate_environment(self, **kwargs):
        config = self.quantization_config
        for name, value, choice in (
            ("bits", config.bits, 4),
            ("version", AwqFormat(config.format).value, "gemm"),
            ("zero_point", config.zero_point, True),
        ):
            if value != choice:
                raise ValueError(
                    f"quantization_config.{name}={value!r} cannot be loaded without gptqmodel; choose from [{choice!r}] or "
                    "install gptqmodel"
                )

    def update_dtype(self, dtype):
        return dtype

    def _process_model_before_weight_loading(self, model, checkpoint_files=None, **kwargs):
        replace_packed(model, checkpoint_files, "qweight", lambda linears: self._chosen(model, linears), self._layer)

    def _chosen(self, model, linears):
        output, skip = model.get_output_embeddings(), list(self.quantization_config.modules_to_not_convert or [])
        return {n for n in linears if should_convert_module(n, skip) and model.get_submodule(n) is not output}

    def _layer(self, dense):
        group, bias = self.quantization_config.group_size, dense.bias is not None
        return AwqLinear(dense.in_features, dense.out_features, group, bias, device="meta", dtype=dense.weight.dtype)

    def _process_model_after_weight_loading(self, model, **kwargs):
        return model

    def is_serializable(self):
        return True

    @property
    def is_trainable(self):
        # adapters train; the packed weights have no gradient
        return True


def register_awq():
    """Make `from_pretrained` use `TorchAwqQuantizer` for AWQ checkpoints, unless gptqmodel is installed. Safe to repeat."""
    if not is_gptqmodel_available():
        place(auto.AUTO_QUANTIZER_MAPPING, "awq", TorchAwqQuantizer)
