"""What calibration must remember of a Linear's input: not the tokens, but X^T X and the mean magnitudes.

Notable here: ||X D^T||^2 = sum((D G) * D) with G = X^T X, so a search over many candidates reads the tokens once.
"""

import torch


class InputStatistics:
    """Sums over all tokens that reached one input: `gram` [in, in], `magnitude` [in] (sum of |x|), `tokens`."""

    def __init__(self, features):
        self.gram = torch.zeros(features, features)
        self.magnitude = torch.zeros(features)
        self.tokens = 0

    def add(self, x):
        """Add the rows of `x` [..., in]."""
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        self.gram.addmm_(rows.t(), rows)
        self.magnitude += rows.abs().sum(0)
        self.tokens += rows.shape[0]

    def mean_magnitude(self):
        """Mean |x| per channel; zeros where no token came."""
        return self.magnitude / max(self.tokens, 1)

    def rescale(self, columns):
        """Follow a smoothing: the input was divided by `columns` [in]."""
        self.gram /= columns.unsqueeze(0) * columns.unsqueeze(1)
        self.magnitude /= columns

    def is_finite(self):
        return bool(torch.isfinite(self.gram).all())


def squared_error(difference, gram):
    """sum of (X D^T)^2 for D [..., out, in] and G = X^T X [..., in, in], summed over out: [...]."""
    return ((difference @ gram) * difference).sum((-2, -1))
