"""Training runs as points (parameters, tokens, loss), read from CSV, JSON or JSON lines.

Notable here: a bad row is named by its number and its key, never skipped.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from .checks import positive
from .laws import FLOPS_PER_PARAMETER_TOKEN

# Names people give these columns, ours first.
_KEYS = {
    "parameters": ("parameters", "params", "n", "model_size"),
    "tokens": ("tokens", "d", "training_tokens"),
    "loss": ("loss", "l", "eval_loss"),
    "flops": ("flops", "c", "training_flops"),
}


@dataclass(frozen=True)
class Run:
    """One finished training run.

    Attributes:
        parameters: N (of a mixture of experts: state which you count, the law will mean the same).
        tokens: D, trained on.
        loss: held-out cross-entropy, nats per token.
        flops: training operations; 6 N D where not given.
    """

    parameters: float
    tokens: float
    loss: float
    flops: float | None = None

    def __post_init__(self):
        for name in ("parameters", "tokens", "loss"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        flops = FLOPS_PER_PARAMETER_TOKEN * self.parameters * self.tokens if self.flops is None else self.flops
        object.__setattr__(self, "flops", positive("flops", flops))


def read_runs(path):
    """Runs of a .csv (with a header), .json (a list of objects) or .jsonl file.

    Raises:
        ValueError: for a missing file, another suffix, a row without one of parameters, tokens and loss, or numbers that
            are none.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"runs={str(path)!r} is not a file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    try:
        if path.suffix == ".csv":
            rows = list(csv.DictReader(text.splitlines()))
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        elif path.suffix == ".json":
            rows = json.loads(text)
            rows = rows.get("runs") if isinstance(rows, dict) else rows
        else:
            raise ValueError(f"runs={str(path)!r} has suffix {path.suffix!r}; choose from .csv, .json, .jsonl")
    except json.JSONDecodeError as error:
        raise ValueError(f"runs={str(path)!r} is not valid JSON: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"runs={str(path)!r} holds no list of runs")
    return [_run(path, number, row) for number, row in enumerate(rows, start=1)]


def _run(path, number, row):
    if not isinstance(row, dict):
        raise ValueError(f"{path}: run {number} is a {type(row).__name__}, not an object with parameters, tokens and loss")
    lower = {str(key).strip().lower(): value for key, value in row.items()}
    values = {}
    for key, names in _KEYS.items():
        value = next((lower[name] for name in names if lower.get(name) not in (None, "")), None)
        if value is None:
            if key != "flops":
                raise ValueError(
                    f"{path}: run {number} has no {key} (also read: {', '.join(names[1:])}); it has {sorted(lower)}"
                )
            continue
        try:
            values[key] = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{path}: run {number}: {key}={value!r} is not a number") from None
    try:
        return Run(**values)
    except ValueError as error:
        raise ValueError(f"{path}: run {number}: {error}") from None
