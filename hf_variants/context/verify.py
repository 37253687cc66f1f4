"""Proof that a rescaled RoPE took effect in a model, measured on the angles that it really turns by.

Notable here: frequencies are read back from the cosines and sines of position 1, not from a buffer that might be
unused, and are held against formulas that share no code with the model.
"""

from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import numpy as np
import torch

from .frequencies import expected_rotation

TOLERANCE = 1e-5


@dataclass
class ScalingReport:
    """What `verify_scaling` measured.

    Attributes:
        rows: one dict per rotary embedding: `key`, `rope_type`, `theta`, `theta_kept`, `frequencies` (their number),
            `changed` (how many differ from before), `largest_stretch` (of a wavelength), `relative_error` (against the
            formula), `attention_factor`, `expected_attention_factor`, `length` (of the row it was measured at).
        context_before, context_after: `max_position_embeddings`.
        reloads_equal: whether the saved config comes back with equal RoPE keys.
        failures: what is wrong, in words; empty where everything holds.
    """

    rows: list
    context_before: int
    context_after: int
    reloads_equal: bool
    failures: list = field(default_factory=list)

    @property
    def ok(self):
        return not self.failures

    def to_dict(self):
        """Plain JSON values."""
        return {
            "ok": self.ok,
            "context_before": self.context_before,
            "context_after": self.context_after,
            "reloads_equal": self.reloads_equal,
            "rotary": self.rows,
            "failures": list(self.failures),
        }


def verify_scaling(model, config):
    """Check that `model` turns as its config says, and say what changed since `config`.

    Args:
        model: a model with the rescaled config.
        config: the config before.

    Returns:
        ScalingReport; its `failures` are empty where every frequency follows the formula within 1e-5 (relative), the
        attention factor too, theta is kept (or raised, with the plain rule), a rescaling changed at least one frequency,
        and the saved config reloads equal.
    """
    rotaries = rotary_embeddings(model)
    rows = [_measure(rotaries[key], key, model.config, config) for key in model.config.rope_keys]
    report = ScalingReport(
        rows, config.max_position_embeddings, model.config.max_position_embeddings, _reloads_equal(model.config)
    )
    for row in rows:
        report.failures += _failures_of(row)
    if not report.reloads_equal:
        report.failures.append("the saved config does not reload with equal rope_parameters")
    return report


def measured_rotation(rotary, length):
    """(frequencies [d / 2], attention factor) of a rotary embedding for a row of `length` tokens, read off its
    output."""
    device = next(rotary.buffers()).device
    position = torch.ones(1, 1, dtype=torch.long, device=device)
    lengths = dict.fromkeys(("prompt", "current"), torch.full_like(position, length))
    cos, sin = rotary(position, lengths, torch.float32)
    cos, sin = (part.double().cpu().numpy().reshape(-1) for part in (cos, sin))
    return np.arctan2(sin, cos), float(np.hypot(cos, sin).mean())


def rotary_embeddings(model):
    """The rotary embeddings of a model by key of `rope_parameters`. Raises ValueError where it has none."""
    found = {
        name.rsplit(".", 1)[-1]: module
        for name, module in model.named_modules()
        if type(module).__name__ == "VariantsRotaryEmbedding"
    }
    missing = [key for key in model.config.rope_keys if key not in found]
    if missing:
        raise ValueError(f"the model has no rotary embedding for {missing}; it has {sorted(found)}")
    return found


def _measure(rotary, key, config, before):
    rope, dim = config.rope_of(key), config.rotary_dim_of(key)
    old = _rope_before(before, key)
    length = config.max_position_embeddings
    expected, expected_factor = expected_rotation(rope, dim, length)
    frequencies, attention_factor = measured_rotation(rotary, length)
    previous, previous_factor = expected_rotation(old, dim, before.max_position_embeddings)
    stretch = previous / frequencies
    return {
        "key": key,
        "rope_type": rope["rope_type"],
        "theta": rope["rope_theta"],
        "theta_kept": rope["rope_theta"] == old["rope_theta"],
        # raising the base is a rule of its own; no other may touch it
        "theta_may_rise": rope["rope_type"] == "default" and rope["rope_theta"] > old["rope_theta"],
        "frequencies": len(frequencies),
        "changed": int((np.abs(stretch - 1) > TOLERANCE).sum()),
        "largest_stretch": float(stretch.max()),
        "relative_error": float(np.abs(frequencies / expected - 1).max()),
        "attention_factor": attention_factor,
        "expected_attention_factor": expected_factor,
        "attention_factor_before": previous_factor,
        "length": length,
        "must_change": rope != old and (rope.get("factor", 1) > 1 or rope["rope_theta"] != old["rope_theta"]),
    }


def _rope_before(before, key):
    if not before.rope_is_nested:
        return before.rope_parameters
    if key in before.rope_parameters:
        return before.rope_parameters[key]
    return before.rope_of(before.rope_keys[0])


def _failures_of(row):
    name = f"{row['key']} ({row['rope_type']})"
    if row["relative_error"] > TOLERANCE:
        yield f"{name}: frequencies differ from the formula by {row['relative_error']:.2e}"
    if abs(row["attention_factor"] - row["expected_attention_factor"]) > TOLERANCE:
        yield f"{name}: attention factor {row['attention_factor']} is not {row['expected_attention_factor']}"
    if not row["theta_kept"] and not row["theta_may_rise"]:
        yield f"{name}: rope_theta changed to {row['theta']}"
    if row["must_change"] and not row["changed"]:
        yield f"{name}: the rule changed but no frequency did"


def _reloads_equal(config):
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        again = type(config).from_pretrained(folder)
    same_length = again.max_position_embeddings == config.max_position_embeddings
    return same_length and again.rope_parameters == config.rope_parameters
