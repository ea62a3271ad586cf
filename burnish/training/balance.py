"""Even use of the experts of a mixture: a loss on whatever tokens the policy learns from, beside the algorithm's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.algorithms.base import Metrics
from burnish.language.logprobs import ResponseStates
from burnish.losses.tokens import expert_load, load_balancing
from burnish.training.ranks import Ranks
from burnish.types.batch import numbers, to_device


class Balance:
    """The load balancing loss of an optimizer batch (Fedus et al. 2021, arXiv:2101.03961, eq. 4).

    It is a product of how often each expert is used, which has no gradient, and of router probabilities. The former
    is counted on the whole batch beforehand, so that the gradient does not depend on how the batch is cut. Tokens are
    those that responses were chosen from, each as often as a token of a response was: that makes the layout of a
    forward pass count for nothing, too.
    """

    def __init__(self, network: nn.Module, coef: float) -> None:
        """Listen to the routers of a network, which must not be copied from now on."""
        self.coef = coef
        self._heard: list[Tensor] | None = None
        self._does: Literal["nothing", "count", "learn"] = "nothing"
        self._load: Tensor = torch.zeros(0)
        self._tokens = 0
        self._losses: list[Tensor] = []
        routers: list[Any] = [module for module in network.modules() if hasattr(module, "top_k")]
        routers = [module for module in routers if hasattr(module, "num_experts") and hasattr(module, "weight")]
        assert routers, "a dense model should have been refused"
        self.top_k = int(routers[0].top_k)
        for router in routers:
            router.register_forward_hook(self._hear)

    def _hear(self, router: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> None:
        if self._heard is not None:
            self._heard.append(output[0])

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Forward passes of the policy in here count which experts are used."""
        self._load, self._tokens, self._losses = torch.zeros(0), 0, []
        with torch.no_grad(), self._doing("count"):
            yield

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Backward passes through the policy in here balance that use."""
        with self._doing("learn"):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Forward passes in here are not those of the batch, whatever they lie between."""
        with self._doing("nothing"):
            yield

    def agree(self, ranks: Ranks) -> None:
        """Make what each rank has counted of its rows that of the whole batch."""
        if ranks.size == 1:
            return
        counted = ranks.gather((self._load.cpu(), self._tokens))
        loads = [load for load, _ in counted if len(load)]
        self._load = torch.stack(loads).sum(0) if loads else self._load
        self._tokens = sum(tokens for _, tokens in counted)

    @contextmanager
    def _doing(self, what: Literal["count", "learn", "nothing"]) -> Iterator[None]:
        before, self._does = self._does, what
        try:
            yield
        finally:
            self._does = before

    def metrics(self) -> Metrics:
        """The loss of the batch; as large as experts per token where all are used alike."""
        return {"actor/router_aux_loss": sum(numbers(self._losses))} if self._tokens else {}

    def through(self, run: Callable[[], ResponseStates]) -> ResponseStates:
        """A forward pass of the policy: counted, or with the loss behind its states."""
        if self._does == "nothing":
            return run()
        self._heard = []
        try:
            states = run()
            logits = [layer.index_select(0, states.index) for layer in self._heard]
        finally:
            self._heard = None  # what is computed again in a backward pass is not heard
        every = torch.ones(1, len(states.index), dtype=torch.bool, device=states.index.device)
        if self._does == "count":
            load = expert_load(logits, every, self.top_k)
            self._load = self._load.to(load.device) + load if len(self._load) else load
            self._tokens += every.numel()
            return states
        loss = load_balancing(logits, every, to_device(self._load, logits[0].device), self.top_k).sum() / max(
            self._tokens, 1
        )
        self._losses.append(loss.detach())
        hidden = _Behind.apply(states.hidden, self.coef * loss)  # type: ignore[no-untyped-call]
        return replace(states, hidden=hidden)


class _Behind(torch.autograd.Function):
    """States as they are, whose backward pass is that of a loss, too: nothing divides it as the algorithm's is."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, loss: Tensor) -> Tensor:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones((), dtype=torch.float32)
