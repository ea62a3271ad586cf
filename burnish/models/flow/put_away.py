"""Frozen parts of a pipeline rest in CPU memory, and are on the device only between their use and the next forward of
a network that is trained: text encoders and the VAE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from burnish.models.placing import place, place_buffers

if TYPE_CHECKING:
    import torch
    from torch import nn


class PutAway:
    """A part whose weights are copied to the device when one of its modules runs, and dropped there again.

    Nothing is copied back, as its weights never change. Buffers stay on the device: pipelines read some directly.
    """

    def __init__(self, part: nn.Module, device: torch.device) -> None:
        """Args: ``part`` is frozen; its weights need not be placed yet."""
        self.part, self.device = part, device
        place(part, "cpu")
        for owner in part.modules():
            place_buffers(owner, device)
        self._resting = [
            (owner, name, weight) for owner in part.modules() for name, weight in owner._parameters.items()
            if weight is not None
        ]  # fmt: skip
        self.is_away = True
        self.instead_of: list[PutAway] = []  # parts that leave when it comes
        kind = type(part)  # pipelines send inputs to where a part says that it is
        part.__class__ = type(kind.__name__, (kind,), {"device": device, "__module__": kind.__module__})
        # some are called by their inner modules alone, as a VAE is by its decoder
        for owner in {owner for owner, _, _ in self._resting}:
            owner.register_forward_pre_hook(lambda module, args: self.bring())

    def bring(self) -> None:
        """Copy the weights to the device, unless they are there."""
        if self.is_away:
            for other in self.instead_of:
                other.leave()
            place(self.part, self.device)
            self.is_away = False

    def leave(self) -> None:
        """Drop the copies on the device."""
        if not self.is_away:
            for owner, name, weight in self._resting:
                owner._parameters[name] = weight
            self.is_away = True


def leave_at(networks: Iterable[nn.Module], parts: Iterable[PutAway]) -> None:
    """Have parts leave the device whenever one of some networks runs."""
    every = list(parts)

    def leave(module: nn.Module, args: Any) -> None:
        for part in every:
            part.leave()

    for network in networks:
        network.register_forward_pre_hook(leave)
