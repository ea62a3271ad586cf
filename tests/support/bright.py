"""A reward that moves little where pixels do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def judge(pictures: Sequence[np.ndarray], prompts: Sequence[Any]) -> list[float]:
    """How bright they are, from 0 to 1."""
    return [float(picture.mean()) / 255 for picture in pictures]
