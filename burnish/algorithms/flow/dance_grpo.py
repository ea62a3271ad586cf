"""DanceGRPO: policy gradient over a random part of the steps of a constant-noise SDE (arXiv:2505.07818)."""

from __future__ import annotations

from typing import Literal

from burnish.algorithms.flow.policy_gradient import Clipped, Share
from burnish.options import Positive
from burnish.registry import options, register


@register("flow algorithm", "dance_grpo")
@options
class DanceGRPO(Clipped):
    """The samples of a prompt start from one noise; each is trained at some of its steps, or only the extremes are."""

    transition: Literal["sde", "cps", "dance"] = "dance"
    """What a stochastic step is: DanceGRPO's SDE, Flow-GRPO's, or Flow-CPS."""
    noise_level: Positive = 0.3
    """Strength of the noise of a stochastic step, in the units of its transition."""
    timestep_fraction: Share = 0.6
    """Share of its stochastic steps that each sample is trained at, drawn anew for every sample and update."""
    shared_noise: bool = True
    """Start all samples of a prompt from the same noise; their common steps are computed once."""
    advantage_eps: Positive = 1e-8
    """Added to the std that advantages are divided by."""
    advantage_unbiased: bool = True
    """Whether that std divides by n - 1, as the paper's code does, or by n."""
