"""Load balancing loss of a mixture of experts, in addition to the algorithm's loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.algorithms.base import Metrics
from burnish.language.logprobs import ResponseStates
from burnish.losses.balance import expert_load, load_balancing
from burnish.training.ranks import Ranks
from burnish.types.batch import numbers, to_device


class Balance:
    """The load balancing loss of an optimizer batch (Fedus et al. 2021, arXiv:2101.03961, eq. 4).

    It is a product of each expert's load, which has no gradient, and of router probabilities. The load is counted on
    the full batch beforehand, so that the gradient does not depend on micro-batches. Positions count once for each
    response token that is predicted from them, so that the layout of a forward pass does not matter either.
    """

    def __init__(self, network: nn.Module, coef: float) -> None:
        """Register hooks on the routers of a network, which must not be copied afterwards."""
        self.coef = coef
        self._router_logits: list[Tensor] | None = None  # of the forward pass that is recorded, by layer
        self._mode: Literal["off", "count", "loss"] = "off"
        self._load: Tensor = torch.zeros(0)
        self._tokens = 0
        self._losses: list[Tensor] = []
        routers: list[Any] = [module for module in network.modules() if hasattr(module, "top_k")]
        routers = [module for module in routers if hasattr(module, "num_experts") and hasattr(module, "weight")]
        assert routers, "a dense model should have been refused"
        self.top_k = int(routers[0].top_k)
        for router in routers:
            router.register_forward_hook(self._observe)

    def _observe(self, router: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> None:
        if self._router_logits is not None:
            self._router_logits.append(output[0])

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Forward passes in this context count the load of the experts."""
        self._load, self._tokens, self._losses = torch.zeros(0), 0, []
        with torch.no_grad(), self._in_mode("count"):
            yield

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Backward passes in this context include the gradient of the loss."""
        with self._in_mode("loss"):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Forward passes in this context are ignored."""
        with self._in_mode("off"):
            yield

    def agree(self, ranks: Ranks) -> None:
        """Sum the counts over ranks."""
        if ranks.size == 1:
            return
        counted = ranks.gather((self._load.cpu(), self._tokens))
        loads = [load for load, _ in counted if len(load)]
        self._load = torch.stack(loads).sum(0) if loads else self._load
        self._tokens = sum(tokens for _, tokens in counted)

    @contextmanager
    def _in_mode(self, mode: Literal["off", "count", "loss"]) -> Iterator[None]:
        before, self._mode = self._mode, mode
        try:
            yield
        finally:
            self._mode = before

    def metrics(self) -> Metrics:
        """The loss of the batch; it equals experts per token if the load is uniform."""
        return {"actor/router_aux_loss": sum(numbers(self._losses))} if self._tokens else {}

    def through(self, run: Callable[[], ResponseStates]) -> ResponseStates:
        """Run a forward pass of the policy, and count its load or attach the loss to its hidden states."""
        if self._mode == "off":
            return run()
        self._router_logits = []
        try:
            states = run()
            logits = [layer.index_select(0, states.index) for layer in self._router_logits]
        finally:
            self._router_logits = None  # recomputation in a backward pass is not recorded
        every = torch.ones(1, len(states.index), dtype=torch.bool, device=states.index.device)
        if self._mode == "count":
            load = expert_load(logits, every, self.top_k)
            self._load = self._load.to(load.device) + load if len(self._load) else load
            self._tokens += every.numel()
            return states
        loss = load_balancing(logits, every, to_device(self._load, logits[0].device), self.top_k).sum() / max(
            self._tokens, 1
        )
        self._losses.append(loss.detach())
        hidden = _AttachLoss.apply(states.hidden, self.coef * loss)  # type: ignore[no-untyped-call]
        return replace(states, hidden=hidden)


class _AttachLoss(torch.autograd.Function):
    """Identity on hidden states whose backward pass adds the gradient of a loss, unscaled."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, loss: Tensor) -> Tensor:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones((), dtype=torch.float32)
