"""BranchGRPO: the samples of a prompt form a tree, and every edge is credited by its leaves (arXiv:2509.06040)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from burnish.algorithms.flow.base import Needs, Recording
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.options import Count, Positive, Several, Whole
from burnish.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.rollout import Scored

Splits = Annotated[list[Whole], Field(min_length=1)]


@register("flow algorithm", "branch_grpo")
class BranchGRPO(FlowGRPO):
    """All samples of a prompt start as one and part at chosen steps; what they share is computed and trained once."""

    splits: Splits = Field(default_factory=lambda: [0, 3, 6])
    """Denoising steps at which every path parts; rollout.n must be branching ** (number of splits)."""
    branching: Several = 2
    """Into how many."""
    shared_noise: bool = True
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
    """Depths of the tree that are not trained at, a run of them that moves towards the leaves and starts again."""
    skip_every: Count = 1
    """Policy updates before that run moves by one depth."""

    @model_validator(mode="after")
    def _is_a_tree(self) -> Self:
        if sorted(set(self.splits)) != self.splits:
            raise ValueError(f"splits is {self.splits}; they must be strictly increasing")
        if not self.shared_noise:
            raise ValueError("shared_noise is false, but a tree has one root; leave it out, or use algorithm=flow_grpo")
        if self.window.kind not in ("all", "fixed"):
            raise ValueError(
                f"window.kind is {self.window.kind}, but splits are fixed steps and need noise at every update; "
                "choose all or fixed"
            )
        if self.advantage is not None:
            raise ValueError("advantage is never read: a node of the tree is compared with those of its depth")
        own = self.part("advantage")
        if own.advantage_std != "group" or not self.advantage_unbiased or own.advantage_aggregation != "sum":
            raise ValueError(
                "advantage_std, advantage_unbiased and advantage_aggregation are never read: a node is compared with "
                "those of its depth, by their unbiased std; leave them out"
            )
        if self.best_of is not None:
            raise ValueError("best_of cuts paths that others share; prune with leaf_pruning=extreme and keep_leaves")
        if (self.leaf_pruning == "extreme") != (self.keep_leaves is not None):
            raise ValueError(
                f"leaf_pruning is {self.leaf_pruning} and keep_leaves is {self.keep_leaves}: extreme needs a number "
                "of leaves, and the others never read it"
            )
        if self.skip_depths >= len(self.splits):
            raise ValueError(
                f"skip_depths is {self.skip_depths}, but the tree has {len(self.splits)} depths to train at; "
                "leave one at least"
            )
        if self.skip_depths == 0 and self.skip_every != 1:
            raise ValueError("skip_every is never read when skip_depths is 0; leave it out")
        return self

    def needs(self) -> Needs:
        return replace(super().needs(), tree=self.branching ** len(self.splits))

    def recording(self) -> Recording:
        return replace(super().recording(), splits=tuple(self.splits), branching=self.branching)

    def step_advantages(self, scored: Scored) -> tuple[Tensor, Tensor]:
        from burnish.advantages.groups import depthwise_advantages

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
            first = (scored.update - 1) // self.skip_every % (len(self.splits) - self.skip_depths + 1) + 1
            trained &= (depth < first) | (depth >= first + self.skip_depths)
        return trained

    def _kept_leaves(self, scored: Scored) -> Tensor:
        """[B] bool."""
        import torch

        from burnish.advantages.selection import select_best_worst

        scores, keep = scored.scores, torch.zeros(len(scored), dtype=torch.bool)
        if self.keep_leaves is not None:
            keep[select_best_worst(scores.reward, scored.group, scores.missing, self.keep_leaves)] = True
            return keep
        parents: dict[tuple[int, int], list[int]] = {}
        for row in (~scores.missing).nonzero().flatten().tolist():
            parent = (int(scored.group[row]), int(scored.sample[row]) // self.branching)
            parents.setdefault(parent, []).append(row)
        for rows in parents.values():
            keep[rows[int(scores.reward[rows].argmax())]] = True
        return keep
