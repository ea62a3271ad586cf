"""How networks lie on the ranks of a trainer."""

from __future__ import annotations

from typing import Literal

from burnish.options.shared import Count
from burnish.registry import options


@options
class ShardingOptions:
    """How the networks of a trainer of several ranks are shared out among them (FSDP2). A single rank holds them whole.

    Trained weights, gradients and the optimizer are float32, whatever the network computes in."""

    gather: Literal["exact", "compute"] = "exact"
    """How weights travel to the ranks that compute with them: exact, as they are held, which gives the numbers of a
    single rank; or rounded to model.dtype beforehand, which halves the traffic with bfloat16."""
    reshard_after_forward: bool = True
    """Give gathered weights up after each forward, and gather them again for the backward pass: less memory, half as
    much traffic again."""
    offload: bool = False
    """Keep weights, gradients and the optimizer in the memory of the CPU, and bring a block's weights to the GPU while
    it runs."""
    shard_size: Count | None = None
    """Ranks that share one copy of the weights, as those of a machine may; other ranks hold further copies. null
    shares one copy among all."""
