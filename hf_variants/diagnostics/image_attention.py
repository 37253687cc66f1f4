"""What text does with images: the entropy of its attention against the bound log(N + j), and its share on image tokens.

A text token that is number j of its row, behind N image tokens, sees N + j keys in a causal stack, so the entropy of its
attention is log(N + j) at most. Notable here: what `attention_kinds` counts per head, as means of a layer over the text
behind an image; where images are read by cross-attention, the gates say how much of it enters.
"""

from dataclasses import asdict, dataclass

import torch

from .attention_kinds import tally_attention


@dataclass
class LayerReading:
    """One layer, over the text tokens that stand behind an image.

    Attributes:
        layer: its index.
        entropy: mean over heads and tokens, in nats.
        bound: mean of log(N + j), or of the log of the fewer keys that a window lets through.
        fullest: largest entropy divided by its own bound; 1 is an even look at everything.
        image_share: mean weight on image tokens, delimiters included.
        even_share: what an even look would put there, mean of N / (N + j), or of what a window lets through of both.
        cross_entropy, cross_bound: the same for the images that are read by cross-attention before the layer, with the bound
            log(states seen); None where there is none.
        attention_gate, mlp_gate: tanh(alpha) of it; None where there is none.
    """

    layer: int
    entropy: float
    bound: float
    fullest: float
    image_share: float
    even_share: float
    cross_entropy: float | None = None
    cross_bound: float | None = None
    attention_gate: float | None = None
    mlp_gate: float | None = None

    def as_dict(self):
        """Plain data."""
        return asdict(self)


def image_attention(model, inputs):
    """A `LayerReading` per layer of the language model.

    Args:
        model: a `VariantsForImageTextToText` whose language model is causal.
        inputs: its inputs, with `input_ids`, `pixel_values` and, where rows are padded, `attention_mask`.

    Raises:
        ValueError: where no text stands behind an image, or for a model that holds no images.
    """
    if getattr(model.config, "model_type", None) != "variants_vision":
        raise ValueError(
            f"model_type={getattr(model.config, 'model_type', None)!r} reads no images; give a variants_vision model"
        )
    if inputs.get("pixel_values") is None:
        raise ValueError("inputs have no pixel_values, so there is no attention to images")
    tallies = tally_attention(model, dict(inputs), behind_images=True)
    found = {int(layer): gates_of(block) for layer, block in model.model.cross_layers.items()}
    for tally in tallies["self"]:
        means = {name: float(values.mean()) for name, values in tally.means().items()}
        found.setdefault(tally.layer, {}).update(
            entropy=means["entropy"],
            bound=means["bound"],
            fullest=tally.fullest,
            image_share=means["image_mass"],
            even_share=means["even_image_mass"],
        )
    for tally in tallies.get("images", []):
        means = tally.means()
        found[tally.layer].update(cross_entropy=float(means["entropy"].mean()), cross_bound=float(means["bound"].mean()))
    return [LayerReading(layer, **found[layer]) for layer in sorted(found)]


def gates_of(block):
    """{attention_gate, mlp_gate} of one gated cross-attention, tanh(alpha)."""
    gates = {"attention_gate": torch.tanh(block.attn_gate.alpha).item()}
    if hasattr(block, "mlp_gate"):
        gates["mlp_gate"] = torch.tanh(block.mlp_gate.alpha).item()
    return gates
