"""Heads of several linear layers with nothing between them: one vector and one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.utils.errors import UserError, listed

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class AffineHead:
    """x @ weight + bias."""

    weight: Tensor  # [D] float32
    bias: float

    def __call__(self, x: Tensor) -> Tensor:
        """Values [B] of rows [B, D]."""
        from burnish.types.batch import to_device

        return x.float() @ to_device(self.weight, x.device) + self.bias


def folded(weights: Mapping[str, Tensor], layers: Sequence[str], where: Path) -> AffineHead:
    """The head that linear layers make one after another, multiplied in float64.

    Args:
        weights: of all of them and nothing else, NAME.weight and NAME.bias.
        layers: their names, in order; "" for a single layer without one.
        where: file, for messages.

    Raises:
        UserError: some are missing, further, of shapes that don't follow each other, or not finite.
    """
    import torch

    pairs = [tuple(f"{layer}.{part}".lstrip(".") for part in ("weight", "bias")) for layer in layers]
    wanted = {name for pair in pairs for name in pair}
    if missing := sorted(wanted - weights.keys()):
        raise UserError(f"{where} lacks {listed(missing)}; give the file of this head")
    if further := sorted(weights.keys() - wanted):
        raise UserError(f"{where} has {listed(further)}, which this head does not have; give the file of this head")
    try:
        weight, bias = weights[pairs[0][0]].double(), weights[pairs[0][1]].double()
        for name, other in pairs[1:]:
            step = weights[name].double()
            weight, bias = step @ weight, step @ bias + weights[other].double()
        if weight.shape[0] != 1 or bias.shape != (1,):
            raise RuntimeError(f"it ends with {weight.shape[0]} values, not one")
    except RuntimeError as error:
        raise UserError(f"{where} does not fit together: {error}; give the file of this head") from None
    if not bool(torch.isfinite(weight).all() & torch.isfinite(bias).all()):
        raise UserError(f"{where} has non-finite values; fetch it again")
    return AffineHead(weight[0].float(), float(bias))
