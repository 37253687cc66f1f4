"""The stacks of layers that are quantised, in the order in which hidden states pass through them.

Notable here: a model of one stack has one; an encoder-decoder has its encoder's, whose states the decoder reads, then its
decoder's; of a vision-language model the language model's layers alone are quantised, since 4 bits are calibrated on what text
and image tokens become there. Tower, bridge, cross-attention to images and heads stay dense.
"""

from contextlib import nullcontext
from dataclasses import dataclass

from torch import nn

from ..modeling.expert_loading import quantized_as

# model type -> (module under the base model that holds `layers`, field of the config that describes them)
_PARTS = {
    "variants_seq2seq": (("encoder", "encoder"), ("decoder", "decoder")),
    "variants_vision": (("language_model", "text_config"),),
}
# model type -> module under the base model whose entries, named by the index of a layer, run before that layer
_INSERTED = {"variants_vision": "cross_layers"}


@dataclass(frozen=True)
class Stack:
    """One stack of a model.

    Attributes:
        path: full name of its list of layers, such as `model.decoder.layers`.
        config: its `VariantsConfig`, an object of the model's own config.
        inserted: full name of the modules that run before some of its layers, or None.
    """

    path: str
    config: object
    inserted: str | None = None

    def layers(self, model):
        """The list of layers in `model`."""
        return model.get_submodule(self.path)

    def insertions(self, model):
        """{index of a layer: module that runs before it}."""
        return {} if self.inserted is None else {int(index): m for index, m in model.get_submodule(self.inserted).items()}

    def names(self):
        """(full name, `LayerPlan`) of each layer."""
        return [(f"{self.path}.{plan.index}", plan) for plan in self.config.layer_plan()]

    def as_quantized(self, whole):
        """Within it the stack's config says that weights are quantised where the `whole` one does: experts come apart."""
        return nullcontext() if self.config is whole else quantized_as(whole, self.config)


def stacks_of(model):
    """The `Stack`s of a model of the family.

    Raises:
        ValueError: for a model of several parts of which it is not known which are quantised.
    """
    top = "" if model.base_model is model else f"{model.base_model_prefix}."
    kind = model.config.model_type
    check_stacks(model.config)
    if kind not in _PARTS:
        return [Stack(f"{top}layers", model.config)]
    inserted = f"{top}{_INSERTED[kind]}" if kind in _INSERTED else None
    return [Stack(f"{top}{part}.layers", getattr(model.config, name), inserted) for part, name in _PARTS[kind]]


def check_stacks(config):
    """Raise ValueError for a config of several parts of which it is not known which are quantised."""
    if config.sub_configs and config.model_type not in _PARTS:
        raise ValueError(
            f"model_type={config.model_type!r} is made of {sorted(config.sub_configs)}, which no method here packs: choose a "
            "decoder, an encoder, an encoder-decoder or a vision-language model"
        )


def main_config(config):
    """The `VariantsConfig` of the stack that the head reads: the decoder's, the text's, or the config itself."""
    parts = _PARTS.get(config.model_type)
    return config if parts is None else getattr(config, parts[-1][1])


def has_experts(config):
    """Whether some stack that is quantised has experts."""
    parts = _PARTS.get(config.model_type)
    stacks = [config] if parts is None else [getattr(config, name) for _, name in parts]
    # a native config has no such key, and no experts of ours
    return any(getattr(stack, "has_experts", False) for stack in stacks)


def put(model, path, module):
    """Put `module` at the full name `path` of `model`; returns what was there."""
    parent, _, last = path.rpartition(".")
    owner = model.get_submodule(parent)
    before = getattr(owner, last)
    setattr(owner, last, module)
    return before


def without_layers(model):
    """{id: empty list} of every quantised stack's layers, as `copy.deepcopy` takes what is not to be copied."""
    return {id(stack.layers(model)): nn.ModuleList() for stack in stacks_of(model)}
