"""Loading 8-bit checkpoints of the compressed-tensors format (weights alone, symmetric) on torch's own kernels.

Notable here: transformers' own quantizer of that name needs the package compressed-tensors and computes with dense matrices
from the first forward on; models of the family are read by this one whether or not it is installed, other models where it is
not. Everything else that the format can hold is left to transformers' own.
"""

import copy
from contextlib import contextmanager
from contextvars import ContextVar

from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
from transformers.utils import is_compressed_tensors_available
from transformers.utils.quantization_config import CompressedTensorsConfig, QuantizationConfigMixin, QuantizationMethod

from .int8_linear import Int8Linear
from .packed_loading import place, replace_packed

METHOD = "compressed-tensors"
_OF_THE_FAMILY = ContextVar("loads_a_model_of_the_family", default=False)


def int8_settings(group_size, dense_names):
    """The `quantization_config` of an 8-bit checkpoint. `group_size`: inputs per scale, -1 for one per output."""
    strategy = {"strategy": "channel", "group_size": None} if group_size == -1 else {"strategy": "group"}
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "group_size": group_size, **strategy}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": METHOD,
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(dense_names),
    }


def reads(settings):
    """Whether a `quantization_config` (a dict) describes what `Int8Linear` holds, in every Linear alike."""
    groups = list((settings.get("config_groups") or {}).values())
    if settings.get("format") != "pack-quantized" or len(groups) != 1 or settings.get("kv_cache_scheme"):
        return False
    given = groups[0]
    weights = given.get("weights") or {}
    plain = not any(given.get(part) for part in ("input_activations", "output_activations"))
    wanted = {"num_bits": 8, "type": "int", "symmetric": True}
    known = weights.get("strategy") in ("channel", "group") and not weights.get("dynamic") and not weights.get("actorder")
    return plain and known and all(weights.get(key) == value for key, value in wanted.items())


def read_here(settings, family):
    """Whether a `quantization_config` (a dict) is read by this module in a model of the family, or in another one."""
    return reads(settings) and (family or not is_compressed_tensors_available())


class PackedInt8Config(QuantizationConfigMixin):
    """The `quantization_config` of an 8-bit checkpoint, written again as it was read."""

    packed_int8 = True

    def __init__(self, **settings):
        self.quant_method = QuantizationMethod.COMPRESSED_TENSORS
        self.settings = copy.deepcopy(settings)

    @property
    def group_size(self):
        """Inputs that share a scale; -1 where an output has one."""
        (group,) = self.settings["config_groups"].values()
        return group["weights"]["group_size"] if group["weights"]["strategy"] == "group" else -1

    @property
    def ignore(self):
        """Names of the Linears that are dense."""
        return self.settings.get("ignore") or []

    @ignore.setter
    def ignore(self, names):
        self.settings["ignore"] = list(names)

    def to_dict(self):
        return copy.deepcopy(self.settings)


class TorchInt8Quantizer(HfQuantizer):
    """Loads 8-bit `pack-quantized` checkpoints on `Int8Linear`.

    Raises:
        ValueError: for packed tensors that no Linear of the model can take.
    """

    requires_calibration = True

    def _process_model_before_weight_loading(self, model, checkpoint_files=None, **kwargs):
        dense = set(self.quantization_config.ignore)
        replace_packed(model, checkpoint_files, "weight_packed", lambda linears: linears - dense, self._layer)

    def _layer(self, dense):
        group, bias = self.quantization_config.group_size, dense.bias is not None
        return Int8Linear(dense.in_features, dense.out_features, group, bias, device="meta", dtype=dense.weight.dtype)

    def is_serializable(self):
        return True

    @property
    def is_trainable(self):
        # adapters train; the packed weights have no gradient
        return True


class Configs:
    """Stands for `CompressedTensorsConfig` where transformers looks up the class of a `quantization_config`."""

    stands_for = CompressedTensorsConfig

    @staticmethod
    def from_dict(settings, **kwargs):
        if read_here(settings, _OF_THE_FAMILY.get()):
            return PackedInt8Config.from_dict(settings, **kwargs)
        return CompressedTensorsConfig.from_dict(settings, **kwargs)


def quantizer_of(quantization_config, **kwargs):
    """Stands for `CompressedTensorsHfQuantizer` where transformers looks up the quantizer of a config."""
    ours = getattr(quantization_config, "packed_int8", False)
    return (TorchInt8Quantizer if ours else CompressedTensorsHfQuantizer)(quantization_config, **kwargs)


@contextmanager
def loading_the_family():
    """Within it 8-bit checkpoints are read by this module whatever is installed."""
    token = _OF_THE_FAMILY.set(True)
    try:
        yield
    finally:
        _OF_THE_FAMILY.reset(token)


def register_int8():
    """Have `from_pretrained` read 8-bit checkpoints with `Int8Linear`. Safe to repeat."""
    place(auto.AUTO_QUANTIZER_MAPPING, METHOD, quantizer_of)
    place(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, METHOD, Configs)
