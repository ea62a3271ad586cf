"""Load balancing losses of mixtures of experts, in addition to the algorithm's loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.language.packing import ResponseStates
from burnish.rl.algorithm import Metrics
from burnish.training.ranks import Ranks
from burnish.types.batch import numbers, to_device

NAMES = {"policy": "actor", "critic": "critic"}  # of roles in metrics


@dataclass
class Counted:
    """What is known of the experts of a role's network in an optimizer batch."""

    load: Tensor = field(default_factory=lambda: torch.zeros(0))
    tokens: int = 0
    losses: list[Tensor] = field(default_factory=list)


class Balance:
    """The load balancing losses of an optimizer batch (Fedus et al. 2021, arXiv:2101.03961, eq. 4), one for each role.

    It is a product of each expert's load, which has no gradient, and of router probabilities. The load is counted on
    the full batch beforehand, so that the gradient does not depend on micro-batches. Positions count once for each
    response token that is predicted from them, so that the layout of a forward pass does not matter either.
    """

    def __init__(self, networks: Mapping[str, nn.Module], coef: float) -> None:
        """Register hooks on the routers of networks, which must not be copied afterwards.

        Args:
            networks: by the roles that learn; of adapters the same one.
            coef: weight of the loss.
        """
        self.coef = coef
        self._router_logits: list[Tensor] | None = None  # of the forward pass that is recorded, by layer
        self._mode: Literal["off", "count", "loss"] = "off"
        self._counted = {role: Counted() for role in networks}
        for network in {id(network): network for network in networks.values()}.values():
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
        self._counted = {role: Counted() for role in self._counted}
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
        every = ranks.gather({role: (one.load.cpu(), one.tokens) for role, one in self._counted.items()})
        for role, own in self._counted.items():
            loads = [found[role][0] for found in every if len(found[role][0])]
            own.load = torch.stack(loads).sum(0) if loads else own.load
            own.tokens = sum(found[role][1] for found in every)

    @contextmanager
    def _in_mode(self, mode: Literal["off", "count", "loss"]) -> Iterator[None]:
        before, self._mode = self._mode, mode
        try:
            yield
        finally:
            self._mode = before

    def metrics(self) -> Metrics:
        """The losses of the batch; one equals experts per token if the load is uniform."""
        return {
            f"{NAMES[role]}/router_aux_loss": sum(numbers(one.losses))
            for role, one in self._counted.items()
            if one.tokens
        }

    def through(self, role: str, run: Callable[[], ResponseStates]) -> ResponseStates:
        """Run a forward pass, and if the role learns, count its load or attach the loss to its hidden states."""
        own = self._counted.get(role)
        if self._mode == "off" or own is None:
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
            own.load = own.load.to(load.device) + load if len(own.load) else load
            own.tokens += every.numel()
            return states
        loss = load_balancing(logits, every, to_device(own.load, logits[0].device), self.top_k).sum() / max(
            own.tokens, 1
        )
        own.losses.append(loss.detach())
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


def expert_load(router_logits: Sequence[Tensor], mask: Tensor, top_k: int) -> Tensor:
    """How many chosen tokens each expert gets, over all layers; sums of it over micro-batches are exact.

    Args:
        router_logits: per layer [B * T, E], as transformers returns them.
        mask: [B, T] bool, tokens that are not padding.
        top_k: experts per token.

    Returns:
        [E] float64.
    """
    rows, experts = mask.flatten(), router_logits[0].shape[-1]
    chosen = torch.cat([layer[rows].topk(top_k, -1).indices.flatten() for layer in router_logits])
    return torch.bincount(chosen, minlength=experts).double()


def load_balancing(router_logits: Sequence[Tensor], mask: Tensor, load: Tensor, top_k: int) -> Tensor:
    """The Switch Transformer's auxiliary loss (eq. 4), as transformers defines it: all layers as one.

    Divided by the number of tokens of the batch that ``load`` was counted on, the sum is transformers'
    ``load_balancing_loss_func`` of that batch, and so is its gradient.

    Args:
        router_logits: per layer [B * T, E].
        mask: [B, T] bool, tokens that are not padding.
        load: [E] from ``expert_load``, summed over the micro-batches and ranks of the optimizer batch.
        top_k: experts per token.

    Returns:
        [B, T] float32, 0 where masked; top_k where all experts are used alike.
    """
    rows, experts = mask.flatten(), router_logits[0].shape[-1]
    probability = torch.stack([layer[rows].float().softmax(-1) for layer in router_logits]).mean(0)
    share = (load * top_k / load.sum().clamp_min(1)).float()
    values = torch.zeros(len(rows), device=mask.device)
    return values.masked_scatter(rows, experts * (probability * share).sum(-1)).view_as(mask)
