"""Flow-GRPO-Fast: branch from a shared deterministic path, and train where it branches (arXiv:2505.05470)."""

from __future__ import annotations

from pydantic import Field

from burnish.algorithms.flow.policy_gradient import Clipped
from burnish.flow.windows import Window
from burnish.registry import options, register


@register("flow algorithm", "flow_grpo_fast")
@options
class FlowGRPOFast(Clipped):
    """Flow-GRPO with one or a few stochastic steps; what lies before them is computed once per prompt."""

    window: Window = Field(default_factory=lambda: Window(kind="random", size=2))
    """The few stochastic and trained steps; a prompt's samples always share them."""
    shared_noise: bool = True
    """Start all samples of a prompt from the same noise, so that they share their path up to the window."""
