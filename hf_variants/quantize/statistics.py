"""What calibration must remember of a Linear's input: X^T X and the mean magnitudes.

Notable here: ||X D^T||^2 = sum((D G) * D) with G = X^T X, so a search over many candidates reads the tokens once; the rows
themselves are kept while they are fewer than the columns, so that hundreds of experts do not each hold a square matrix.
"""

import torch


class InputStatistics:
    """Sums over all tokens that reached one input of `features` columns: `gram` [in, in], `magnitude` [in] (sum of |x|),
    `tokens`."""

    def __init__(self, features, device=None):
        self.features = features
        self.magnitude = torch.zeros(features, device=device)
        self.tokens = 0
        self._rows, self._gram = [], None

    def add(self, x):
        """Add the rows of `x` [..., in]."""
        rows = x.detach().reshape(-1, self.features).float()
        self.magnitude += rows.abs().sum(0)
        self.tokens += rows.shape[0]
        if self._gram is None and self.tokens <= self.features:
            self._rows.append(rows.clone())
            return
        if self._gram is None:
            self._gram = self._gram_of_rows()
            self._rows = []
        self._gram.addmm_(rows.t(), rows)

    @property
    def gram(self):
        """X^T X, float32 [in, in]; made anew at each access while the rows are kept."""
        return self._gram_of_rows() if self._gram is None else self._gram

    def mean_magnitude(self):
        """Mean |x| per channel; zeros where no token came."""
        return self.magnitude / max(self.tokens, 1)

    def rescale(self, columns):
        """Follow a smoothing: the input was divided by `columns` [in]."""
        self.magnitude /= columns
        self._rows = [rows / columns for rows in self._rows]
        if self._gram is not None:
            self._gram /= columns.unsqueeze(0) * columns.unsqueeze(1)

    def is_finite(self):
        held = self._rows if self._gram is None else [self._gram]
        return all(bool(torch.isfinite(tensor).all()) for tensor in held)

    def _gram_of_rows(self):
        if not self._rows:
            return torch.zeros(self.features, self.features, device=self.magnitude.device)
        rows = torch.cat(self._rows)
        return rows.t() @ rows


def squared_error(difference, gram):
    """sum of (X D^T)^2 for D [..., out, in] and G = X^T X [..., in, in], summed over out: [...]."""
    return ((difference @ gram) * difference).sum((-2, -1))
