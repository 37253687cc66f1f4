"""How evenly the experts of a model are used on a text.

    load f_e = tokens of expert e / (tokens * experts per token);   even use is 1 / E
    max_violation = max f_e * E - 1     (Wang et al. 2024, arXiv:2408.15664)      0 is even, E / k - 1 is collapse
    entropy = -sum f_e ln f_e / ln E                                              1 is even
    unused = share of the experts without a token

Notable here: counted from what the routers choose in evaluation, bias included, in windows like those of perplexity.
"""

import math
from contextlib import ExitStack

import torch

from .perplexity import batches, check_window, padded, windows


@torch.no_grad()
def expert_balance(model, tokenizer, texts, window=None, batch_size=8, max_tokens=None):
    """Expert use of a model of the family.

    Args:
        model: with `VariantsTopKRouter` modules; it is put in eval mode for the measurement and set back.
        texts: documents. window, batch_size, max_tokens: as in `corpus_perplexity`.

    Returns:
        dict: max_violation (largest of any layer), entropy and unused (means over layers), tokens, and layers: a list of
        {layer, load [E], max_violation, entropy, unused}.

    Raises:
        ValueError: for a model without experts.
    """
    routers = {name: module for name, module in model.named_modules() if type(module).__name__ == "VariantsTopKRouter"}
    if not routers:
        raise ValueError(f"the model {type(model).__name__} has no routed experts, so there is no balance to measure")
    window, stride = check_window(model, window, None)
    counts, current, tokens = {name: 0 for name in routers}, {}, 0
    was_training = model.training
    model.eval()
    try:
        with ExitStack() as stack:
            for name, router in routers.items():
                stack.callback(router.register_forward_hook(_counter(name, counts, current)).remove)
            for batch in batches(windows(texts, tokenizer, window, stride, False), batch_size, max_tokens):
                ids, mask = padded(batch, model.device)
                current["mask"] = mask
                model(input_ids=ids, attention_mask=mask, use_cache=False)
                tokens += int(mask.sum())
    finally:
        model.train(was_training)
    layers = [{"layer": _layer_of(name), **_numbers(count)} for name, count in counts.items()]
    return {
        "max_violation": max(layer["max_violation"] for layer in layers),
        "entropy": sum(layer["entropy"] for layer in layers) / len(layers),
        "unused": sum(layer["unused"] for layer in layers) / len(layers),
        "tokens": tokens,
        "layers": layers,
    }


def _counter(name, counts, current):
    def hook(router, inputs, output):
        chosen = next(part for part in output if isinstance(part, torch.Tensor) and not part.is_floating_point())
        chosen = chosen.reshape(-1, chosen.shape[-1])[current["mask"].reshape(-1).bool()]
        counts[name] = counts[name] + torch.bincount(chosen.flatten(), minlength=router.weight.shape[0]).cpu()

    return hook


def _numbers(count):
    share = count.double() / count.sum()
    used = share[share > 0]
    return {
        "load": share.tolist(),
        "max_violation": share.max().item() * len(share) - 1,
        "entropy": -(used * used.log()).sum().item() / math.log(len(share)),
        "unused": (count == 0).double().mean().item(),
    }


def _layer_of(name):
    return next((int(part) for part in name.split(".") if part.isdigit()), name)
