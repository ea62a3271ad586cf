"""A reward that looks at nothing and tells samples apart, in a file of its own, which imports nothing."""

import itertools
from typing import Any

COUNT = itertools.count()
VALUES = 7  # different ones, so that groups have something to compare


def varied(samples: list[Any], prompts: list[Any]) -> list[float]:
    """Values from 0 to 1 in turn."""
    return [next(COUNT) % VALUES / VALUES for _ in samples]
