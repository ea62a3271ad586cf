"""Terms of losses as reference cases hold them, and roles that predict what a case says, whatever they are asked."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from burnish.batches.samples import ForwardTerms
from burnish.registry import lookup


def forward_terms(
    target: Tensor, *, clean: Tensor | None = None, noisy: Tensor | None = None, time: Tensor | None = None,
    value: Tensor | None = None,
) -> ForwardTerms:  # fmt: skip
    """Terms [M] of a case; what it doesn't hold is not read."""
    count = len(target)
    unread: Any = torch.zeros(count)
    return ForwardTerms(
        conditioning=unread, unconditional=unread, target=target, share=torch.ones(count), atom=unread,
        clean=unread if clean is None else clean, noisy=unread if noisy is None else noisy,
        time=unread if time is None else time, value=unread if value is None else value,
    )  # fmt: skip


def roles_that_say(policy: Tensor, reference: Tensor, old: Tensor | None = None) -> Any:
    """Roles with these velocities."""

    def says(velocity: Tensor | None) -> Any:
        return lambda *asked, **guidance: velocity

    return SimpleNamespace(
        policy=says(policy), reference=says(reference), lagged=lambda name: says(old), is_policy=lambda name: False
    )


def by_name(name: str, part: ForwardTerms, roles: Any, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss of the algorithm that a recipe names, and the means of what it reports."""
    loss = lookup("flow algorithm", name)(**options).loss(part, roles)
    return loss.total / len(part), {key: total / count for key, (total, count) in loss.metrics.items()}
