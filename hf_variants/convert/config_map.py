"""Config rules: what keys of a native config mean in toggles of ours, and which native keys a toggle writes back.

Notable here: a rule reads a native config object into keywords of VariantsConfig and writes ours into native keys.
Writing need not be complete: whatever a family cannot say is found by reading the written config again and comparing
(`meaning.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class ConfigRule:
    """Base: reads nothing, writes nothing, tells nothing."""

    def read(self, native):
        """Keywords of VariantsConfig that a native config object means. Raises ValueError for what none means."""
        return {}

    def write(self, config):
        """Native keys for a VariantsConfig."""
        return {}

    def untrained(self, native):
        """What native training does under a key that no toggle means, as text; None where it does nothing."""
        return None


class Same(ConfigRule):
    """Keys of one name and meaning on both sides."""

    def __init__(self, *names):
        self.names = names

    def read(self, native):
        return {name: getattr(native, name) for name in self.names}

    def write(self, config):
        return {name: getattr(config, name) for name in self.names}


@dataclass
class Key(ConfigRule):
    """One key under two names."""

    ours: str
    native: str

    def read(self, native):
        return {self.ours: getattr(native, self.native)}

    def write(self, config):
        return {self.native: getattr(config, self.ours)}


class Always(ConfigRule):
    """Toggles that a family fixes without a key."""

    def __init__(self, **toggles):
        self.toggles = toggles

    def read(self, native):
        return dict(self.toggles)


@dataclass
class Both(ConfigRule):
    """A pair of functions, for what no simpler rule says."""

    reader: Callable = lambda native: {}
    writer: Callable = lambda config: {}

    def read(self, native):
        return self.reader(native)

    def write(self, config):
        return self.writer(config)


@dataclass
class Refuse(ConfigRule):
    """A native setting that ours cannot mean: `broken(native)` true raises a ValueError with `reason`.

    `key` names the setting; a dot reaches into a nested config.
    """

    key: str
    broken: Callable
    reason: str

    def read(self, native):
        value = native
        for part in self.key.split("."):
            value = getattr(value, part, None)
        if self.broken(native):
            raise ValueError(f"{native.model_type} with {self.key}={value!r} cannot be converted: {self.reason}")
        return {}


@dataclass
class TrainingOnly(ConfigRule):
    """A native key that acts in training alone and that no toggle means: told, kept for the way back, and else written as 0.

    `key` names the setting; a dot reaches into a nested config, to whose rule its writing is left. It acts unless 0 or None.
    """

    key: str
    what: str

    def write(self, config):
        return {} if "." in self.key else {self.key: 0.0}

    def untrained(self, native):
        value = native
        for part in self.key.split("."):
            value = getattr(value, part, None)
        return f"{self.key}={value!r}: natively it {self.what}, here it does nothing" if value else None


@dataclass
class HeadDim(ConfigRule):
    """Head width; families that do not declare `head_dim` honour one, so it is written where it is no quotient."""

    declared: bool = False

    def read(self, native):
        return {"head_dim": getattr(native, "head_dim", None) or native.hidden_size // native.num_attention_heads}

    def write(self, config):
        quotient = config.hidden_size / config.num_attention_heads
        return {"head_dim": config.head_dim} if self.declared or config.head_dim != quotient else {}


class SpecialTokens(ConfigRule):
    """Token ids; an id beyond the vocabulary can never occur, so it means None to ours and stays native."""

    names = ("pad_token_id", "bos_token_id", "eos_token_id")

    def read(self, native):
        return {name: self._within(getattr(native, name, None), native.vocab_size) for name in self.names}

    def write(self, config):
        return {name: getattr(config, name) for name in self.names}

    def _within(self, ids: Any, size):
        if isinstance(ids, (list, tuple)):
            return [i for i in ids if 0 <= i < size] or None
        return ids if ids is not None and 0 <= ids < size else None


class FrozenPad(ConfigRule):
    """The row of the pad is not trained, by `padding_idx`, which counts a negative id from the end as torch does."""

    def read(self, native):
        return {"freeze_pad_embedding": native.pad_token_id is not None and native.pad_token_id >= 0}

    def untrained(self, native):
        row = frozen_last_row(native)
        return None if row is None else f"pad_token_id={native.pad_token_id}: natively it freezes row {row} of the embedding"


def frozen_last_row(native):
    """The row of the embedding that a negative pad id freezes natively (LLaMA 1 has -1), None where there is none."""
    pad = getattr(native, "pad_token_id", None)
    return native.vocab_size + pad if isinstance(pad, int) and pad < 0 else None
