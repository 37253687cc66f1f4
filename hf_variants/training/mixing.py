"""Several sources become one stream of documents in which each has the share of the text that its weight says.

    weights 3 : 1    A A A B A A B A ...    the next document comes from the source that is furthest behind its share

Notable here: no random draw, so the shares hold in every stretch of the stream and a run can be repeated; shares count
characters, since documents of one source may be longer than those of another.
"""

from .sources import Streamed


def mixed(parts, sources, stopping_strategy="first_exhausted", shares=None):
    """Documents of `parts` (one iterable per source) in the proportions of the weights of `sources`.

    Args:
        stopping_strategy: `first_exhausted` ends when the first source does, so that no document is repeated;
            `all_exhausted` reads shorter sources again until the longest was read once (names of
            `datasets.interleave_datasets`).
        shares: a dict that receives {source: characters} while the documents are read.

    Returns:
        A list for lists, a re-readable iterable for streams. Without weights, all documents in the order of the sources.

    Raises:
        ValueError: where only some sources have a weight, or one is not positive.
    """
    shares = {} if shares is None else shares
    weights = check_weights(sources)
    names = [f"{index}: {source.source}" for index, source in enumerate(sources)]
    if weights is None:

        def read():
            for name, part in zip(names, parts, strict=True):
                for text in part:
                    shares[name] = shares.get(name, 0) + len(text)
                    yield text
    else:

        def read():
            shares.clear()
            yield from _interleaved(parts, names, weights, stopping_strategy == "all_exhausted", shares)

    if all(isinstance(part, list) for part in parts):
        return list(read())
    return Streamed(read, lambda text: True)


def check_weights(sources):
    """The weights, scaled to a sum of one; None where no source has any. Raises ValueError."""
    weights = [source.weight for source in sources]
    if all(weight is None for weight in weights):
        return None
    for index, weight in enumerate(weights):
        if weight is None or not 0 < weight < float("inf"):
            raise ValueError(
                f"data.sources[{index}].weight={weight} must be a positive number, since other sources have one; without any "
                "weight all documents of all sources are read once"
            )
    return [weight / sum(weights) for weight in weights]


def _interleaved(parts, names, weights, repeat, read):
    streams, finished = [iter(part) for part in parts], [False] * len(parts)
    counts = [0] * len(parts)
    while True:
        index = min(range(len(parts)), key=lambda i: counts[i] / weights[i])
        text = next(streams[index], None)
        if text is None:
            finished[index] = True
            if not repeat or all(finished):
                return
            streams[index] = iter(parts[index])
            text = next(streams[index], None)
            if text is None:
                return
        counts[index] += len(text)
        read[names[index]] = counts[index]
        yield text
