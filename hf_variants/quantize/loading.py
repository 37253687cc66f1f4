"""Loading AWQ checkpoints with plain `from_pretrained` where gptqmodel is not installed.

Notable here: transformers' own quantizer for `quant_method: awq` is left in place where its kernels exist; otherwise
this one takes its place and builds `AwqLinear`. What becomes 4-bit is what the checkpoint holds as `qweight`, so
nothing is guessed from names, and a matrix that no Linear can take is an error instead of random weights.
"""

from safetensors import safe_open
from torch import nn
from transformers.quantizers import auto
from transformers.quantizers.quantizer_awq import AwqQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils import is_gptqmodel_available
from transformers.utils.quantization_config import AwqConfig, AwqFormat

from .awq_linear import AwqLinear


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
        linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        stored = stored_quantized_names(checkpoint_files, model.base_model_prefix, linears)
        if stored is None:
            output = model.get_output_embeddings()
            skip = list(self.quantization_config.modules_to_not_convert or [])
            stored = {n for n in linears if should_convert_module(n, skip) and model.get_submodule(n) is not output}
        missing = sorted(stored - linears)
        if missing:
            raise ValueError(
                f"the checkpoint holds 4-bit weights for {missing[:3]}{' and more' if len(missing) > 3 else ''}, but "
                f"{type(model).__name__} has no Linear of that name (fused experts, or another architecture), and would start "
                "from random weights there; load it with a class that keeps these matrices apart"
            )
        for name in sorted(stored):
            dense = model.get_submodule(name)
            layer = AwqLinear(
                dense.in_features,
                dense.out_features,
                self.quantization_config.group_size,
                dense.bias is not None,
                device="meta",
                dtype=dense.weight.dtype,
            )
            model.set_submodule(name, layer)

    def _process_model_after_weight_loading(self, model, **kwargs):
        return model

    def is_serializable(self):
        return True

    @property
    def is_trainable(self):
        # adapters train; the packed weights have no gradient
        return True


def stored_quantized_names(files, base_prefix, linears):
    """Names of the modules that `files` (safetensors) hold as `qweight`, as the model calls them; None where not readable.

    A checkpoint of a model with a head is read by the bare model too, and the other way round: the base prefix is added or
    taken away where that is how the model names its Linears.
    """
    if not files or not all(str(file).endswith(".safetensors") for file in files):
        return None
    stored = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            stored |= {name.removesuffix(".qweight") for name in tensors.keys() if name.endswith(".qweight")}
    prefix = f"{base_prefix}."
    if stored and not stored & linears:
        if any(name.removeprefix(prefix) in linears for name in stored):
            return {name.removeprefix(prefix) for name in stored}
        if any(prefix + name in linears for name in stored):
            return {prefix + name for name in stored}
    return stored


def register_awq():
    """Make `from_pretrained` use `TorchAwqQuantizer` for AWQ checkpoints, unless gptqmodel is installed. Safe to repeat."""
    if not is_gptqmodel_available():
        auto.AUTO_QUANTIZER_MAPPING["awq"] = TorchAwqQuantizer
