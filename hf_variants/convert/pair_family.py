"""Families of encoder-decoders: config rules for each stack and for what joins them.

Notable here: a flat native config has keys of both stacks side by side and is given whole to the rules of either; a nested one
gives each stack its own part.
"""

from dataclasses import dataclass, field

from hf_variants.convert.registry import Family


@dataclass(frozen=True)
class PairFamily(Family):
    """One native family of encoder-decoders; `config` are the rules of what joins the stacks.

    Attributes:
        encoder, decoder: lists of config rules of either stack.
        nested: whether the native config holds one config for each stack.
        head_told_by_weights: whether the native config says nothing of a head of its own (T5), which files then do.
    """

    encoder: list = field(default_factory=list)
    decoder: list = field(default_factory=list)
    nested: bool = False
    heads: dict = field(default_factory=lambda: {"seq2seq_lm": []})
    head_told_by_weights: bool = False
    two_stacks: bool = True

    def rules(self, head="seq2seq_lm"):
        """The weight rules of a whole model."""
        return [*self.weights, *self.heads[head]]

    def every_rule(self):
        return [*self.encoder, *self.decoder, *self.config]

    def read(self, native):
        """Keywords of VariantsSeq2SeqConfig that a native config object means. Raises ValueError for what none means."""
        keywords = {}
        for name in ("encoder", "decoder"):
            view = getattr(native, name) if self.nested else native
            keywords[name] = {key: value for rule in getattr(self, name) for key, value in rule.read(view).items()}
        for rule in self.config:
            keywords.update(rule.read(native))
        return keywords

    def write(self, config):
        """Native keys for a VariantsSeq2SeqConfig; not yet checked to mean the same."""
        keys = {}
        for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
            written = {key: value for rule in getattr(self, name) for key, value in rule.write(stack).items()}
            keys |= {name: written} if self.nested else written
        for rule in self.config:
            keys.update(rule.write(config))
        return keys
