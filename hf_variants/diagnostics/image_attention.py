"""What text does with images: the entropy of its attention against the bound log(N + j), and its share on image tokens.

A text token that is number j of its row, behind N image tokens, sees N + j keys in a causal stack, so the entropy of its
attention is log(N + j) at most. Notable here: the readable backend is watched while the model runs as it is; where images are
read by cross-attention, the gates say how much of it enters.
"""

from dataclasses import asdict, dataclass

import torch

from .observed import observe_attention


@dataclass
class LayerReading:
    """One layer, over the text tokens that stand behind an image.

    Attributes:
        layer: its index.
        entropy: mean over heads and tokens, in nats.
        bound: mean of log(N + j), or of the log of the fewer keys that a window lets through.
        fullest: largest entropy divided by its own bound; 1 is an even look at everything.
        image_share: mean weight on image tokens, delimiters included.
        even_share: what an even look would put there, mean of N / (N + j).
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


def entropies(weights):
    """Entropy in nats over the last dimension; what is masked counts nothing."""
    return -(weights * weights.clamp_min(1e-30).log()).sum(dim=-1)


def tokens_before(is_image, real):
    """(N, j) of each token [B, T]: image tokens, and text tokens up to and with it."""
    return (is_image & real).long().cumsum(dim=1), (~is_image & real).long().cumsum(dim=1)


@torch.no_grad()
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
    ids = inputs["input_ids"]
    is_image, real = ids == model.config.image_token_id, inputs.get("attention_mask", torch.ones_like(ids)).bool()
    before, number = tokens_before(is_image, real)
    asked = real & ~is_image & (before > 0)
    if not asked.any():
        raise ValueError("no text token stands behind an image, so there is no attention to it; give a question behind images")
    found = {int(layer): gates_of(block) for layer, block in model.model.cross_layers.items()}

    def see(seen):
        weights = seen.weights.transpose(1, 2)
        visible = seen.visible[:, 0].expand(len(ids), ids.shape[1], -1)
        keys = visible.sum(dim=-1)[asked].double()
        entropy, bound = entropies(weights[asked].double()), keys.log()
        layer = found.setdefault(seen.layer, {})
        if seen.across:
            layer.update(cross_entropy=entropy.mean().item(), cross_bound=bound.mean().item())
            return
        on_images = (weights * is_image[:, None, None]).sum(dim=-1)[asked]
        layer.update(
            entropy=entropy.mean().item(),
            bound=bound.mean().item(),
            fullest=(entropy.amax(dim=1) / bound.clamp_min(1e-9)).amax().item(),
            image_share=on_images.mean().item(),
            even_share=(before / (before + number))[asked].double().mean().item(),
        )

    with observe_attention(model.model.language_model, see, beside=[model.model.cross_layers]):
        model(**inputs, use_cache=False)
    return [LayerReading(layer, **found[layer]) for layer in sorted(found)]


def gates_of(block):
    """{attention_gate, mlp_gate} of one gated cross-attention, tanh(alpha)."""
    gates = {"attention_gate": torch.tanh(block.attn_gate.alpha).item()}
    if hasattr(block, "mlp_gate"):
        gates["mlp_gate"] = torch.tanh(block.mlp_gate.alpha).item()
    return gates
