"""Layers in short: which kinds a stack has, where they stand, and the pattern in which they repeat.

Notable here: pure functions of lists, so that a stack of a hundred layers is said in a line or two.
"""

from itertools import groupby


def spans(indices):
    """Layer numbers in short: `0-2`, `0, 2, ..., 40`, or `0, 5-7, 9`."""
    steps = {later - earlier for earlier, later in zip(indices, indices[1:], strict=False)}
    if len(indices) > 3 and len(steps) == 1 and steps != {1}:
        return f"{indices[0]}, {indices[1]}, ..., {indices[-1]}"
    runs = []
    for _, group in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        run = [index for _, index in group]
        runs.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(runs)


def runs_of(kinds):
    """Equal neighbours together: [(count, kind), ...]."""
    return [(len(list(group)), kind) for kind, group in groupby(kinds)]


def pattern_of(kinds):
    """A list of kinds as repetitions: [(times, [(count, kind), ...]), ...], which unfold to the list again.

    A short list of runs is given as it is; otherwise the shortest period is found, after a first run that may stand apart (the
    dense layers before experts), and what is left over at the end follows.
    """
    runs = runs_of(kinds)
    if len(runs) <= 3:
        return [(1, [run]) for run in runs]
    for start in (0, runs[0][0]):
        rest = kinds[start:]
        for period in range(2, len(rest) // 2 + 1):
            if rest[period:] == rest[:-period]:
                times, left = divmod(len(rest), period)
                found = [(1, [run]) for run in runs_of(kinds[:start])] + [(times, runs_of(rest[:period]))]
                return found + ([(1, runs_of(rest[-left:]))] if left else [])
    return [(1, [run]) for run in runs]
