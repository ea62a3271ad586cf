"""Options of FSDP sharding."""

from __future__ import annotations

from typing import Literal

from burnish.options import Count
from burnish.registry import options


@options
class ShardingOptions:
    """FSDP2 sharding over the trainer's ranks; a single rank is not sharded.

    Trained weights, gradients and optimizer states are float32, whatever the precision of the forward pass."""

    gather: Literal["exact", "compute"] = "exact"
    """Precision of the weight all-gather: exact keeps the stored precision, with the numbers of a single rank; compute
    casts to model.dtype first, which halves the traffic with bfloat16."""
    reshard_after_forward: bool = True
    """Free gathered weights after each forward pass, and gather them again for the backward pass: less memory, 1.5
    times the traffic."""
    offload: bool = False
    """Keep weights, gradients and optimizer states in CPU memory, and copy a block's weights to the GPU while it
    runs."""
    shard_size: Count | None = None
    """Ranks per shard group, such as the GPUs of a machine; the weights are replicated across groups (HSDP). null
    shards over all ranks."""
