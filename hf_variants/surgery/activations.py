"""What the attention layers of a model read on real text: the second moment of their inputs, layer by layer.

Notable here: a projection's error matters where its inputs are large. Weights times a root of E[x x^T] have the Frobenius
norm of the projection's OUTPUT, so that methods made for weights minimise the error of keys and values themselves.
"""

import torch


@torch.no_grad()
def input_roots(model, batches):
    """One root L per layer, fp64 [in + 1, in + 1], with L L^T = E[x x^T] of inputs with a one behind them (for a bias).

    Args:
        model: a model of the family in eval mode.
        batches: iterable of int64 [B, T] without padding.

    Raises:
        ValueError: for no token, or inputs that are not finite, naming the layer.
    """
    layers = [layer.self_attn for layer in model.base_model.layers]
    moments = [0.0] * len(layers)
    count = 0

    def watch(index):
        def add(module, args):
            rows = args[0].detach().double().flatten(0, -2)
            rows = torch.cat((rows, rows.new_ones(len(rows), 1)), dim=1)
            moments[index] = moments[index] + rows.T @ rows

        return add

    hooks = [layer.k_proj.register_forward_pre_hook(watch(index)) for index, layer in enumerate(layers)]
    try:
        for ids in batches:
            model.base_model(input_ids=ids.to(model.device), use_cache=False)
            count += ids.numel()
    finally:
        for hook in hooks:
            hook.remove()
    if not count:
        raise ValueError("calibration holds no token; give text to weigh the errors by")
    return [_root(moment / count, index) for index, moment in enumerate(moments)]


def _root(moment, index):
    if not torch.isfinite(moment).all():
        raise ValueError(f"layer {index}: the inputs of attention are not finite on the calibration text")
    # a channel that the text never uses must not make the root singular
    floor = 1e-6 * moment.diagonal().mean()
    return torch.linalg.cholesky(moment + floor * torch.eye(len(moment), dtype=moment.dtype, device=moment.device))
