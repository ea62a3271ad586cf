"""Flow-GRPO: policy gradient over denoising steps (Liu et al. 2025, arXiv:2505.05470)."""

from __future__ import annotations

from burnish.algorithms.flow.policy_gradient import Clipped
from burnish.registry import options, register


@register("flow algorithm", "flow_grpo")
@options
class FlowGRPO(Clipped):
    """Clipped policy gradient over stochastic denoising steps, with advantages relative to the group."""
