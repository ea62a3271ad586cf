"""What is reported of rewards and advantages, by verl's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def range_metrics(**values: Tensor) -> dict[str, float]:
    """Mean and range of each, as ``critic/NAME/mean``, ``/max`` and ``/min``; nothing of what is empty."""
    return {
        f"critic/{name}/{how}": float(getattr(value, how)())
        for name, value in values.items()
        if len(value)
        for how in ("mean", "max", "min")
    }


def advantage_metrics(reward: Tensor, advantage: Tensor) -> dict[str, float]:
    """Of the rewards and advantages of a batch."""
    return range_metrics(rewards=reward, advantages=advantage, returns=advantage)
