"""Full weights of sharded ones."""

from typing import Any

from torch import Tensor


def full_weight(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be sharded; a collective operation."""
    there: Any = tensor
    return there.full_tensor() if hasattr(tensor, "full_tensor") else tensor
