"""MixGRPO: stochastic steps in a sliding window, deterministic ones around it (Li et al. 2025, arXiv:2507.21802)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from burnish.algorithms.base import Recording
from burnish.algorithms.flow.policy_gradient import Clipped, Share
from burnish.flow.windows import Window
from burnish.registry import options, register


@register("flow algorithm", "mix_grpo")
@options
class MixGRPO(Clipped):
    """Flow-GRPO in a window that moves from noise to picture; MixGRPO-Flash hurries through the steps after it."""

    window: Window = Field(default_factory=lambda: Window(kind="progressive", size=4, stride=1))
    """The window of stochastic and trained steps, and how it moves."""
    solver: Literal["euler", "dpm2"] = "euler"
    """Deterministic steps by Euler's method, or by DPM-Solver++ 2M, of which fewer are enough."""
    steps_after: Share = 1.0
    """Share of the steps after the window that are taken, rounded up (MixGRPO-Flash); the others are skipped."""

    @model_validator(mode="after")
    def _windows_agree(self) -> Self:
        if self.window.kind == "all":
            raise ValueError(
                "window.kind is all, so there are no deterministic steps to mix with; "
                "choose progressive, random or fixed, or algorithm=flow_grpo"
            )
        if self.steps_after < 1 and self.window.kind == "random" and self.window.shared_by == "group":
            raise ValueError(
                f"steps_after is {self.steps_after}, which thins the schedule of a whole update, but every prompt "
                "has a window of its own; set window.shared_by=update, or steps_after=1"
            )
        return self

    def recording(self) -> Recording:
        return replace(super().recording(), solver=self.solver, steps_after=self.steps_after)
