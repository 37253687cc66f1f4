"""What numbers a key of a recipe may hold, declared beside the key: `key("tokens per row", 256, least=2)`.

Notable here: NaN and infinity are no values of any key; a number that is out of range is refused where the recipe is read and
again where a job begins, before anything is loaded.
"""

import dataclasses
import math
from dataclasses import dataclass

SEEDS = {"least": 0, "most": 2**32 - 1}  # what numpy and torch both take


@dataclass(frozen=True)
class Bounds:
    """Limits of a number; None where there is none."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def allow(self, value):
        """Whether a number lies within; NaN and infinity never do."""
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def words(self):
        """The limits as a sentence says them: `be at least 2`, `lie between 0 and 1`, `lie in [0, 1)`."""
        low, high = (self.above if self.least is None else self.least), (self.below if self.most is None else self.most)
        if low is not None and high is not None:
            if self.least is None and self.most is None:
                return f"lie between {low} and {high}"
            return f"lie in {'(' if self.least is None else '['}{low}, {high}{')' if self.most is None else ']'}"
        if low is not None:
            return f"be above {low}" if self.least is None else f"be at least {low}"
        if high is not None:
            return f"be below {high}" if self.most is None else f"be at most {high}"
        return "be a finite number"

    def check(self, value, key):
        """Raise a ValueError naming `key` where a number, or one in a list, is out of range."""
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(number, (int, float)) and not isinstance(number, bool) and not self.allow(number):
                raise ValueError(f"{key}={value!r} must {self.words()}")


def check_numbers(spec, where=""):
    """Raise a ValueError for the first number of a spec (sections and lists of sections included) that is out of range."""
    for field in dataclasses.fields(spec):
        value, key = getattr(spec, field.name), where + field.name
        if dataclasses.is_dataclass(value):
            check_numbers(value, f"{key}.")
        elif isinstance(value, list) and any(map(dataclasses.is_dataclass, value)):
            for index, item in enumerate(value):
                check_numbers(item, f"{key}[{index}].")
        else:
            field.metadata.get("bounds", Bounds()).check(value, key)
