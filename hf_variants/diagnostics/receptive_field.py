"""How far back a prediction sees: counted from the layer plan, and measured by changing one token at a time.

A layer with a window of W tokens, itself included, reaches W - 1 back; L of them reach L (W - 1), which is the L x W of
Mistral 7B (Jiang et al. 2023, arXiv 2310.06825, 2) counted exactly. Notable here: rows are compared in double precision, where
what lies outside the field differs by rounding alone, many orders below what lies inside.
"""

from copy import deepcopy
from dataclasses import asdict, dataclass

import torch

# Rounding of fp64 through a stack, relative to the output.
NOTHING = 1e-12


@dataclass
class ReceptiveField:
    """The field of the last position of a row.

    Attributes:
        length: tokens of the row.
        predicted_first: first position that can matter by the layer plan.
        measured_first: first position whose change moves the output by more than 1e-12 of it; None where none does. In a deep
            stack the edge of the predicted field may be fainter than that.
        influence: largest change of the last hidden state per changed position, relative to its largest entry, [length].
    """

    length: int
    predicted_first: int
    measured_first: int | None
    influence: list

    def as_dict(self):
        """Plain data."""
        return asdict(self)


def predicted_reach(config, length):
    """First position that the last of `length` tokens can see through all layers, as an index.

    Raises:
        ValueError: for a length below 1.
    """
    if length < 1:
        raise ValueError(f"length={length} must be at least 1")
    first = length - 1
    for plan in reversed(config.layer_plan()):
        if plan.window is not None:
            first -= (plan.window - 1) if config.is_causal else plan.window // 2
        elif plan.chunk is not None:
            first = first // plan.chunk * plan.chunk
        else:
            return 0
        first = max(first, 0)
    return first


# rows of more tokens than that would be read as many times
LONGEST = 16384


@torch.no_grad()
def receptive_field(model, length, batch_size=16, seed=0, progress=None):
    """Measure the field of the last position of a random row.

    Args:
        model: a model of the family; left as it is, a copy in double precision is measured.
        length: tokens of the row; longer than the field, or its edge is not seen.
        batch_size: changed rows per forward.
        progress: called with (done, length).

    Raises:
        ValueError: for a length below 2, above `LONGEST` or beyond learned positions.
    """
    config = model.config
    if not 2 <= length <= LONGEST:
        raise ValueError(f"length={length} must be at least 2, and at most {LONGEST}: every position is changed in turn")
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(config.vocab_size, (length,), generator=generator)
    # another token everywhere: an offset that is never zero modulo the vocabulary
    other = (row + torch.randint(1, config.vocab_size, (length,), generator=generator)) % config.vocab_size
    measured, influence = deepcopy(model.base_model).double().eval(), []
    for start in range(0, length, batch_size):
        places = torch.arange(start, min(start + batch_size, length))
        changed = row.repeat(len(places) + 1, 1)
        changed[torch.arange(len(places)), places] = other[places]
        out = _last(measured, changed)
        influence += ((out[:-1] - out[-1]).abs().amax(1) / out[-1].abs().max()).tolist()
        if progress:
            progress(len(influence), length)
    touched = [place for place, change in enumerate(influence) if change > NOTHING]
    return ReceptiveField(length, predicted_reach(config, length), touched[0] if touched else None, influence)


def _last(model, ids):
    keywords = {"use_cache": False} if model.config.is_causal else {}
    return model(input_ids=ids.to(model.device), **keywords).last_hidden_state[:, -1]
