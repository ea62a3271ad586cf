"""Classifier-free guidance in velocity space."""

from __future__ import annotations

from torch import Tensor


def guide(conditional: Tensor, unconditional: Tensor, scale: float, *, rescale: bool = False, axis: int = 1) -> Tensor:
    """unconditional + scale * (conditional - unconditional).

    With ``rescale`` the result gets the norm of ``conditional`` along ``axis`` (channels), as Qwen-Image does.
    In the space of clean images it is the same formula, since x_0 is linear in v.
    """
    guided = unconditional + scale * (conditional - unconditional)
    if rescale:
        guided = guided * (conditional.norm(dim=axis, keepdim=True) / guided.norm(dim=axis, keepdim=True))
    return guided
