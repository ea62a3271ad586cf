"""Whether two short trainings are the same but for the order of sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.support.ray_runs import PER_RANK

WEIGHTS = {"rtol": 1e-5, "atol": 2e-5}


def compare(found: dict[str, Any], expected: dict[str, Any], weights: Mapping[str, float] = WEIGHTS) -> None:
    assert found["weights"].keys() == expected["weights"].keys()
    for name, value in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, **weights, msg=lambda text, n=name: f"{n}: {text}")
    assert len(found["metrics"]) == len(expected["metrics"])
    for one, other in zip(found["metrics"], expected["metrics"], strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            if name.startswith(PER_RANK):
                continue
            # a spread is the root of a difference of squares near 1, where rounding is all that there is; and what is
            # counted beyond a bound may lie on it, as values do that have not moved
            near = 3e-3 if "ratio_std" in name else 0.1 if "clipfrac" in name else 1e-4
            assert one[name] == pytest.approx(value, rel=1e-3, abs=near, nan_ok=True), name
