"""Sums over the rows of a batch of what one attention of one layer does, per head.

Notable here: rows come without their pads, so that rows of different lengths count as if each had run alone; every query
weighs the same, whatever row it is of.
"""

import torch


class Tally:
    """What has been counted of one layer.

    Args:
        layer: its index.
        shape: (queries, keys) of the longest row.
        sink_tokens: first keys of a row whose weight is counted.
        keep_maps: sum the weights themselves, too.
        ordered: whether queries and keys are of one row, so that a query has a distance to a key.
    """

    def __init__(self, layer, heads, shape, sink_tokens=1, keep_maps=False, ordered=True):
        self.layer, self.heads, self.sink_tokens, self.ordered = layer, heads, sink_tokens, ordered
        self.sums = {}
        self.queries = self.choices = self.behind = 0
        self.top = self.capped = self.unnormed = torch.full((heads,), -torch.inf)
        self.fullest = 0.0
        self.likeness = torch.zeros(heads, heads, dtype=torch.float64)
        self.places = {name: torch.zeros(shape[0], dtype=torch.float64) for name in ("entropy", "bound", "count")}
        self.maps = (torch.zeros(heads, *shape), torch.zeros(shape)) if keep_maps else None

    def add(self, weights, scores, unnormed, softcap, visible, asks, images=None, behind=None):
        """Count one row.

        Args:
            weights, scores, unnormed: [heads, Q, K], as in `SeenAttention`; unnormed may be None. softcap: the cap, or None.
            visible: bool [Q, K]. asks: bool [Q], the queries that are counted.
            images: bool [K], which keys are of images, or None; behind: bool [Q], the queries with an image before them.
        """
        if self.maps is not None:
            for whole, part in zip(self.maps, (weights.cpu(), 1), strict=True):
                whole[..., : weights.shape[1], : weights.shape[2]] += part
        places = asks.nonzero().flatten()
        if not len(places):
            return
        weights, visible = weights[:, asks].double().cpu(), visible[asks].cpu()
        raw = _largest(scores, asks, visible)
        capped = raw if softcap is None else softcap * torch.tanh(raw / softcap)
        self.top, self.capped = torch.maximum(self.top, raw), torch.maximum(self.capped, capped)
        self.unnormed = torch.maximum(self.unnormed, raw if unnormed is None else _largest(unnormed, asks, visible))
        flat = weights.flatten(1)
        self.likeness += flat @ flat.T
        seen = visible.sum(-1)
        entropies, bounds = entropy(weights), seen.clamp_min(1).double().log()
        self._place(places.cpu(), entropies.mean(0), bounds)
        choice = seen > 1
        shares = entropies / bounds.clamp_min(1e-9)
        columns = {
            "entropy": entropies,
            "bound": bounds.expand_as(entropies),
            "entropy_share": shares,
            "sink_mass": weights[..., : self.sink_tokens].sum(-1),
            "learned_sink_mass": (1 - weights.sum(-1)).clamp_min(0),
        }
        if self.ordered:
            keys = torch.arange(weights.shape[-1], dtype=torch.float64)
            columns["distance"] = (weights * (places.cpu()[:, None] - keys).abs()).sum(-1)
        self._sum(columns, choice)
        self.queries, self.choices = self.queries + len(places), self.choices + int(choice.sum())
        if bool(choice.any()):
            self.fullest = max(self.fullest, float(shares[:, choice].max()))
        if images is not None:
            images, behind = images.cpu(), behind[asks].cpu()
            even = (visible & images).sum(-1) / seen.clamp_min(1).double()
            masses = {"image_mass": weights[..., images].sum(-1), "even_image_mass": even.expand_as(entropies)}
            self._sum(masses, behind)
            self.behind += int(behind.sum())

    def _place(self, places, entropies, bounds):
        for name, values in (("entropy", entropies), ("bound", bounds), ("count", torch.ones_like(bounds))):
            self.places[name][places] += values

    def _sum(self, columns, chosen):
        for name, values in columns.items():
            self.sums[name] = self.sums.get(name, 0) + (values * chosen).sum(-1)

    def means(self):
        """{column: [heads]}: means over the queries that see more than one key, of images over those behind one."""
        found = {}
        for name, total in self.sums.items():
            found[name] = total / max(self.behind if name.endswith("image_mass") else self.choices, 1)
        logits = {"max_logit": self.top, "max_capped_logit": self.capped, "max_unnormed_logit": self.unnormed}
        return {**found, **logits, "redundancy": self._redundancy()}

    def rows(self):
        """A dict per head: `layer`, `head` and the columns of `means`."""
        numbers = {name: values.tolist() for name, values in self.means().items()}
        return [
            {"layer": self.layer, "head": head, **{name: values[head] for name, values in numbers.items()}}
            for head in range(self.heads)
        ]

    def by_position(self, buckets):
        """List of {"start", "end", "entropy", "bound"}: means of heads and queries, without ranges that hold no query."""
        sums, found = self.places, []
        size = len(sums["count"])
        edges = sorted({round(size * i / buckets) for i in range(buckets + 1)})
        for start, end in zip(edges, edges[1:], strict=False):
            if count := float(sums["count"][start:end].sum()):
                means = {name: float(sums[name][start:end].sum()) / count for name in ("entropy", "bound")}
                found.append({"start": start, "end": end, **means})
        return found

    def mean_maps(self):
        """[heads, Q, K]: means over the rows that are long enough."""
        total, count = self.maps
        return total / count.clamp_min(1)

    def _redundancy(self):
        """Largest cosine of each head's maps with those of another head: [heads]; zero for a single one."""
        norms = self.likeness.diagonal().sqrt().clamp_min(1e-12)
        cosines = self.likeness / norms[:, None] / norms
        return cosines.fill_diagonal_(0.0).amax(1)


def _largest(scores, asks, visible):
    """Largest visible score of each head, of the queries that ask."""
    return scores[:, asks].cpu().masked_fill(~visible, -torch.inf).amax((1, 2))


def entropy(weights):
    """Entropy in nats over the last axis, of the share that goes to keys (a learned sink may hold the rest)."""
    share = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
    return -(share * share.clamp_min(1e-30).log()).sum(-1)
