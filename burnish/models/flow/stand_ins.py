"""Parts of a pipeline that answer some calls otherwise, in the copy of it that runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


class StandIn:
    """A part of a pipeline that answers some calls otherwise; all else is the part's own."""

    def __init__(self, part: nn.Module, call: Callable[..., Any] | None = None, **known: Any) -> None:
        """Args: ``call`` in place of the part's own; ``known`` attributes, methods among them."""
        self.__dict__ |= known
        self._part, self._call = part, call or part

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def precise(part: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a part that is given tensors of the part's own precision: a VAE of float32 beside others of less."""

    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Tensor, lambda v: v.to(part.dtype) if v.is_floating_point() else v, (args, kwargs))
        return method(*args, **kwargs)

    return functools.wraps(method)(called)
