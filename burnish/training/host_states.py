"""Optimizers whose states are in CPU memory, where they step on copies of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn


class HostStates(torch.optim.Optimizer):
    """An optimizer of copies: at a step gradients and weights come to the CPU, and weights go back.

    Between steps the device holds weights alone, and through the backward pass their gradients.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        make: Callable[[Mapping[str, nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        """Args: ``make`` returns the optimizer of the copies, which have the parameters' names."""
        self._pairs = [
            (weight, nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype))) for weight in parameters.values()
        ]
        self._inner = make(dict(zip(parameters, (copy for _, copy in self._pairs), strict=True)))
        self.param_groups, self.state, self.defaults = self._inner.param_groups, self._inner.state, self._inner.defaults

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step with the gradients that the weights have."""
        assert closure is None, "nothing here computes a loss again"
        learned = [(weight, copy) for weight, copy in self._pairs if weight.grad is not None]
        for weight, copy in learned:
            assert weight.grad is not None
            copy.copy_(weight)
            copy.grad = weight.grad.to("cpu", copy.dtype)
        self._inner.step()
        for weight, copy in learned:
            weight.copy_(copy)
            copy.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert set_to_none, "gradients of zero would still take memory"
        for weight, _ in self._pairs:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._inner.load_state_dict(state_dict)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state
