"""TempFlow-GRPO: credit to the step where samples part, and weight by its noise (He et al. 2025, arXiv:2508.04324)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.flow.windows import Window
from burnish.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.rollout import Scored


@register("flow algorithm", "tempflow_grpo")
class TempFlowGRPO(FlowGRPO):
    """A prompt's deterministic path branches at one step, so that rewards differ by what was done there alone."""

    window: Window = Field(default_factory=lambda: Window(kind="random", size=1))
    """The step at which a prompt's path branches; every prompt and update has another."""
    shared_noise: bool = True
    """Start all samples of a prompt from the same noise, so that they part where the path branches."""
    noise_weighting: Literal["std", "none"] = "std"
    """Weight a step by its standard deviation over the mean of all steps: early ones explore more, and matter more."""

    def step_weights(self, scored: Scored) -> Tensor:
        weight = super().step_weights(scored)
        if self.noise_weighting == "none":
            return weight
        trace = scored.trace
        steps = self.window.within(len(trace.schedule) - 1)
        levels = trace.schedule[steps.start : steps.stop + 1]
        mean = self.step_std(levels[:-1], levels[1:], trace.schedule).mean()
        own = self.step_std(trace.time.flatten(), trace.time_next.flatten(), trace.schedule)
        return own.view_as(weight) / mean
