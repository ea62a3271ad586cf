"""Router replay: the experts that a mixture chose for a token as it was sampled are chosen again as it is learned.

A router takes the k largest of E numbers, which rounding may swap: sampler and trainer run other kernels, and a token
that other experts read has another log-prob (Ma et al. 2025, "rollout routing replay", arXiv:2510.11370). How much each
of the experts counts is computed anew, so gradients reach the router.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from burnish.types.completion import Completion
from burnish.utils.errors import UserError

T = TypeVar("T")
TOLD = ("top_k", "num_experts", "weight")  # attributes of a router


def routers_of(network: nn.Module) -> dict[int, Any]:
    """The routers of a mixture of experts by layer, in order."""
    return {
        next(int(part) for part in place.split(".") if part.isdigit()): module
        for place, module in network.named_modules() if all(hasattr(module, name) for name in TOLD)
    }  # fmt: skip


def check_replay(network: nn.Module, *, recorded: bool = True) -> None:
    """Refuse to replay experts that nobody records, as samplers other than Burnish's own layers and vLLM do.

    Raises:
        UserError: they are not ``recorded``, or the network has no router whose choice can be replayed.
    """
    if not (recorded and routers_of(network)):
        raise UserError(
            f"rollout.router_replay is true, but responses of {type(network).__name__} are decoded by its own forward "
            "pass, in which nobody records what routers choose; remove it"
        )


class Routers:
    """What the routers of a network choose, and have to choose."""

    def __init__(self, network: nn.Module) -> None:
        """Args: ``network`` must not be copied afterwards."""
        self._seen: list[Tensor] | None = None  # while something is recorded
        self._given: Tensor | None = None  # while something is replayed
        self._learned: Tensor | None = None  # in the last forward pass that may be computed again
        routers = routers_of(network)
        self.layers = list(routers)  # that have a router
        for layer, router in enumerate(routers.values()):
            router.forward = partial(self._route, layer, router.num_experts, router.forward)

    def recorded(self, run: Callable[[], T]) -> tuple[T, list[Tensor]]:
        """What a function makes, and the experts [N, k] int16 that each layer chose meanwhile."""
        with patch.object(self, "_seen", list[Tensor]()) as seen:
            return run(), seen

    def replayed(self, experts: Tensor | None) -> AbstractContextManager[Any]:
        """Have experts [N, layers, k] chosen in this context, and where its forward pass is computed again.

        None and a -1 leave the choice to the routers. All passes that one backward pass goes through have the same.
        """
        if torch.is_grad_enabled():
            self._learned = experts
        return patch.object(self, "_given", experts)

    def _route(self, layer: int, count: int, own: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        again = torch._C._current_graph_task_id() >= 0  # in a backward pass
        given = self._learned if again else self._given
        if given is None and self._seen is None:
            return own(*args, **kwargs)
        with _Choice(count, None if given is None else given[:, layer]) as choice:
            out = own(*args, **kwargs)
        if self._seen is not None:
            self._seen.append(choice.made.to(torch.int16))
        return out


class _Choice(TorchFunctionMode):
    """Sees which experts ``topk`` chooses, or says which: their values are those of the router."""

    made: Tensor

    def __init__(self, count: int, given: Tensor | None) -> None:
        super().__init__()
        self.count, self.given = count, given

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or args[0].shape[-1] != self.count:  # groups of experts, say
            return out
        self.made = out.indices
        if self.given is None or out.indices.shape != self.given.shape:
            return out
        index = torch.where(self.given >= 0, self.given.long(), out.indices)
        return torch.return_types.topk((args[0].gather(-1, index), index))


def experts_of(completion: Completion, prompts: Sequence[int], owners: Sequence[int]) -> Tensor | None:
    """Experts [M, layers, k] of all tokens of prompts, and then of responses; None where nobody recorded any.

    Args:
        completion: [B] responses.
        prompts: [P] lengths.
        owners: [B] prompt of each response.
    """
    some = next((own for own in completion.routed_experts if len(own)), None)
    if some is None:
        return None
    asked, said = ([some.new_full((n, *some.shape[1:]), -1) for n in own] for own in (prompts, completion.length))
    for own, answer, owner in zip(completion.routed_experts, said, owners, strict=True):
        if len(own):
            asked[owner], read = own[: prompts[owner]], own[prompts[owner] :]
            answer[: len(read)] = read  # nobody reads the last token
    return torch.cat([*asked, *said])
