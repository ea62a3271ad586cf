"""What a test needs that an installation may lack, and what is left to ``make thorough``."""

from typing import Any

import pytest

NEED_RAY = ("runtime/test_", "faults/test_ray")  # modules of tests, by what their paths begin with


def seldom(*cases: Any) -> list[Any]:
    """Cases of a parametrised test that show once more what others show."""
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.thorough) for one in cases]
