"""Published variants of Flow-GRPO: presets of its options, and those with a surrogate or a tree of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from burnish.diffusion.algorithms.base import LagWithin, Needs, Recording
from burnish.diffusion.algorithms.policy_gradient import FlowGRPO, Moving, Share, StepPolicyGradient, Window
from burnish.options import NonNegative, Positive, Rules, Several, Whole
from burnish.registry import ReadIf, lookup, register
from burnish.rl.algorithm import KlGate, weighted

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.batches import StepTerms
    from burnish.diffusion.config import FlowConfig
    from burnish.diffusion.steps import Transition
    from burnish.types.rollout import Scored


@register("flow algorithm", "flow_grpo_fast")
class FlowGRPOFast(FlowGRPO):
    """Flow-GRPO with one or a few stochastic steps; what lies before them is computed once per prompt
    (arXiv:2505.05470)."""

    window: Window = Field(default_factory=lambda: Window(kind="random", size=2))
    """The few stochastic and trained steps; a prompt's samples always share them."""
    shared_noise: bool = True
    """Start all samples of a prompt from the same noise, so that they share their path up to the window."""


@register("flow algorithm", "dance_grpo")
class DanceGRPO(FlowGRPO, advantage="dance_group"):
    """The samples of a prompt start from one noise; each is trained at some of its steps, or only the extremes are
    (arXiv:2505.07818)."""

    transition: Literal["sde", "cps", "dance", "ddim"] = "dance"
    """What a stochastic step is: DanceGRPO's SDE, Flow-GRPO's, Flow-CPS, or DDIM's."""
    noise_level: Positive = 0.3
    """Strength of the noise of a stochastic step, in the units of its transition; ddim: its eta, 1 at most."""
    timestep_fraction: Share = 0.6
    """Share of its stochastic steps that each sample is trained at, drawn anew for every sample and update."""
    shared_noise: bool = True
    """Start all samples of a prompt from the same noise; their common steps are computed once."""


@register("flow algorithm", "mix_grpo")
class MixGRPO(FlowGRPO):
    """Flow-GRPO in a window that moves from noise to image; MixGRPO-Flash takes fewer steps after it (Li et al. 2025,
    arXiv:2507.21802)."""

    window: Window = Field(default_factory=lambda: Window(kind="progressive", size=4, stride=1))
    """The window of stochastic and trained steps, and how it moves."""
    steps_after: Share = 1.0
    """Share of the steps after the window that are taken, rounded up (MixGRPO-Flash); the others are skipped."""

    def contradictions(self, run: FlowConfig) -> Rules:
        return [
            *super().contradictions(run),
            (
                self.window.kind == "all",
                "window.kind is all, so there are no deterministic steps to mix with; "
                "choose progressive, random or fixed, or algorithm=flow_grpo",
            ),
            (
                self.steps_after < 1 and self.window.kind == "random" and self.window.shared_by == "group",
                f"steps_after is {self.steps_after}, which thins the schedule of a whole update, but every prompt "
                "has a window of its own; set window.shared_by=update, or steps_after=1",
            ),
        ]

    def recording(self) -> Recording:
        return replace(super().recording(), steps_after=self.steps_after)


@register("flow algorithm", "grpo_guard")
class GRPOGuard(FlowGRPO):
    """Flow-GRPO whose clip works on both sides: plain ratios lie below 1 and spread unevenly, so it hardly does."""

    reads_old_mean = True
    logprob: Literal["gaussian"] = "gaussian"
    """Log-density of a step: the exact one, which the correction of ratios is made for."""
    clip: Positive = 2e-6
    """Clip range of the corrected ratio, which moves as the standard deviation of a step does."""
    balance: bool = True
    """Divide the loss of a step by its length, so that every noise level has its say."""

    def step_objective(
        self, part: StepTerms, step: Transition, logprob: Tensor, old: Tensor, old_mean: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.rl.surrogates import guard_log_ratio

        corrected = guard_log_ratio(logprob, old, step.mean, old_mean, step.std, step.share)
        loss, values = super().step_objective(part, step, corrected, old.new_zeros(()).expand_as(old), old_mean)
        # the mean of a step moves with the velocity times its length, so long steps would rule the sum
        return loss * (1 / step.step) if self.balance else loss, values


@register("flow algorithm", "flow_dppo")
class FlowDPPO(StepPolicyGradient, advantage="flow_group"):
    """Policy gradient that leaves out the steps whose distribution has moved too far and would move further."""

    reads_old_mean = True
    kl_threshold: Positive = 1e-5
    """Largest KL between a step under the old policy and under the new one, averaged over the latent's elements."""
    kl_measure: Literal["gaussian", "means"] = "gaussian"
    """The exact KL of two Gaussians, or half the squared distance of their means, without the variance."""

    @property
    def tolerance(self) -> float:
        return self.kl_threshold / 10

    def step_objective(
        self, part: StepTerms, step: Transition, logprob: Tensor, old: Tensor, old_mean: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        import torch

        from burnish.rl.surrogates import gaussian_kl, kl_trust_region, squared_distance

        mean = step.mean.detach()
        if self.kl_measure == "gaussian":
            kl = gaussian_kl(mean, old_mean, step.std, step.share)
        else:
            kl = squared_distance(mean, old_mean, step.share) / 2
        every = torch.ones_like(kl, dtype=torch.bool)
        return weighted(
            kl_trust_region(logprob, old, part.advantage, every, kl, threshold=self.kl_threshold), part.weight
        )


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


@register("flow algorithm", "gardo")
class GARDO(FlowGRPO, advantage="diverse_group"):
    """Flow-GRPO against reward hacking (He et al. 2025, arXiv:2512.24138): the KL holds only samples whose reward other
    rewards doubt, the reference is moved to the policy now and then, and good samples unlike the others count more."""

    shared_noise: bool = True
    """Start all samples of a prompt from the same noise; their common steps are computed once."""
    kl_coef: NonNegative = 0.04
    """Weight of the KL to the reference; 0 needs no reference."""
    kl_gate: KlGate = Field(default_factory=lambda: lookup("kl gate", "disagreement")())
    """Which samples the KL to the reference holds, and how strongly: the name of a registered gate, or {name: NAME}
    with its options; null holds all alike."""
    lagged: Annotated[Moving, ReadIf("kl_coef")] = Field(
        default_factory=lambda: Moving({"reference": LagWithin(update_interval=50, kl_limit=1e-4)})
    )
    """How the reference follows the policy, with the options of old: {reference: {update_interval: 50}}; {} keeps the
    network before training."""


@register("flow algorithm", "branch_grpo")
class BranchGRPO(FlowGRPO):
    """All samples of a prompt start as one and part at chosen steps; what they share is computed and trained once."""

    by_stream = False
    splits: Annotated[list[Whole], Field(min_length=1)] = Field(default_factory=lambda: [0, 3, 6])
    """Denoising steps at which every path parts; rollout.n must be branching ** (number of splits)."""
    branching: Several = 2
    """Into how many."""
    shared_noise: Literal[True] = True
    """A tree has one root, so this is always true."""
    advantage_eps: Positive = 1e-8
    """Added to the std of the nodes of one depth, which advantages are divided by."""
    advantage_unbiased: bool = True
    """That std divides by n - 1."""
    leaf_pruning: Literal["none", "extreme", "parent_best"] = "none"
    """Which paths are trained after the last split: all; those to the best and worst leaves; or the best of each
    parent."""
    keep_leaves: Several | None = None
    """extreme: how many leaves of a prompt are kept, the best half and the worst."""
    skip_depths: Whole = 0
    """Depths of the tree that are not trained at, a run of them that moves by one towards the leaves with every update
    and starts again."""

    def contradictions(self, run: FlowConfig) -> Rules:
        chosen, own, leaves = self.advantage is not None, self.part("advantage"), self.keep_leaves
        shaped = not chosen and (own.advantage_std, own.advantage_aggregation) != ("group", "sum")
        return [
            *super().contradictions(run),
            (
                sorted(set(self.splits)) != self.splits,
                f"splits is {self.splits}; they must be strictly increasing",
            ),
            (
                self.window.kind not in ("all", "fixed"),
                f"window.kind is {self.window.kind}, but splits are fixed steps and need noise at every update; "
                "choose all or fixed",
            ),
            (
                chosen,
                f"advantage is {own.name}, but a node of the tree is compared with those of its depth; remove it",
            ),
            (
                shaped or not self.advantage_unbiased,
                "advantage_std, advantage_unbiased and advantage_aggregation are never read: a node is compared with "
                "those of its depth, by their unbiased std; remove them",
            ),
            (
                self.best_of is not None,
                "best_of cuts paths that others share; remove it, and prune with algorithm.leaf_pruning=extreme and "
                "algorithm.keep_leaves",
            ),
            (
                (self.leaf_pruning == "extreme") != (leaves is not None),
                f"leaf_pruning is {self.leaf_pruning} and keep_leaves is {leaves or 'null'}: extreme needs a number of "
                "leaves, and the others never read it; "
                + ("remove keep_leaves" if leaves else "set algorithm.keep_leaves=4"),
            ),
            (
                self.skip_depths >= len(self.splits),
                f"skip_depths is {self.skip_depths}, but the tree has {len(self.splits)} depths to train at; "
                "leave one at least",
            ),
        ]

    def needs(self) -> Needs:
        return replace(super().needs(), tree=self.branching ** len(self.splits))

    def recording(self) -> Recording:
        return replace(super().recording(), splits=tuple(self.splits), branching=self.branching)

    def step_advantages(self, scored: Scored) -> tuple[Tensor, Tensor]:
        from burnish.rl.advantages import depthwise_advantages

        scores = scored.scores
        found = depthwise_advantages(
            scores.reward, scored.trace.node, scored.group, scores.missing, eps=self.advantage_eps
        )
        return found, (~scores.missing)[:, None].expand_as(found)

    def trained_steps(self, scored: Scored) -> Tensor:
        import torch

        trained, trace = super().trained_steps(scored), scored.trace
        time = trace.time.to(trained.device)  # the trace may be on a GPU; what is trained is not
        started = torch.stack([time <= float(trace.schedule[split]) for split in self.splits])
        depth = started.sum(0)  # [B, K] 0 before the first split, len(splits) on the way to the leaves
        if self.leaf_pruning != "none":
            trained &= (depth < len(self.splits)) | self._kept_leaves(scored)[:, None]
        if self.skip_depths:
            first = (scored.update - 1) % (len(self.splits) - self.skip_depths + 1) + 1
            trained &= (depth < first) | (depth >= first + self.skip_depths)
        return trained

    def _kept_leaves(self, scored: Scored) -> Tensor:
        """[B] bool."""
        import torch

        from burnish.rl.preference import select_best

        scores, keep = scored.scores, torch.zeros(len(scored), dtype=torch.bool)
        if self.keep_leaves is not None:
            rows = select_best(scores.reward, scored.group, scores.missing, self.keep_leaves, worst=True)
        else:
            parent = scored.group * (int(scored.sample.max()) + 1) + scored.sample // self.branching
            rows = select_best(scores.reward, parent, scores.missing, 1)
        return keep.index_fill(0, rows, True)
