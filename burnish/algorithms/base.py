"""What an algorithm is: its options as fields, and what it does with a batch as six methods at most."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

from pydantic import model_validator

from burnish.options import Positive
from burnish.registry import Named, options

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from burnish.algorithms.flow.teaching import Teacher
    from burnish.flow.multistep import Solver
    from burnish.flow.transitions import Density, Kind
    from burnish.flow.windows import Window
    from burnish.types.batch import Batch, Gathered
    from burnish.types.rollout import Conditioning, Loss, Prompt, Scored, Steps

Metrics = dict[str, float]
Name = Literal["policy", "reference", "old"]
T = TypeVar("T")
P = TypeVar("P")


@dataclass(frozen=True)
class Recording:
    """Which denoising steps are recorded to learn from, and how they are sampled."""

    kind: Kind
    noise: float
    window: Window
    density: Density = "gaussian"
    shared_noise: bool = False  # all samples of a prompt start from the same noise
    splits: tuple[int, ...] = ()  # steps at which every path of a prompt's tree of samples parts; needs shared noise
    branching: int = 2  # into how many
    solver: Solver = "euler"  # of the steps that are not recorded
    steps_after: float = 1.0  # share of the steps after the window that are taken; below 1 a job has one window

    def check(self, steps: int) -> None:
        """Refuse what does not fit into ``steps`` denoising steps.

        Raises:
            ValueError: the window or a split lies outside.
        """
        within = self.window.within(steps, stochastic=self.kind != "ode")
        for split in self.splits:
            if split not in within:
                raise ValueError(
                    f"splits has step {split}, but stochastic are only {within.start} to {within.stop - 1}, "
                    "and samples part by noise alone"
                )


@dataclass(frozen=True)
class Needs:
    """What the rest of the system provides for an algorithm, and nothing else."""

    data: Literal["prompts", "pictures", "pairs"] = "prompts"  # what the training files hold
    sampler: Literal["policy", "old"] = "policy"
    recording: Recording | None = None  # None: deterministic sampling, only final latents are kept
    reference: bool = False
    old: bool = False
    schedule_times: int = 0  # noise levels per sample drawn from the sampling schedule, without repetition
    schedule_range: tuple[float, float] = (0.0, 1.0)  # the part of it that they come from: clean is 0, noise 1
    atom: Literal["sample", "pair", "group"] = "sample"  # what a loss compares, which nothing may cut
    groups: bool = True  # compares samples of one prompt, so a prompt needs two at least
    tree: int = 0  # leaves of the tree that the samples of a prompt form: exactly so many; 0 is no tree
    best_of: int = 0  # samples of a prompt that are learned from, fewer than there are; 0 is all
    teachers: tuple[Teacher, ...] = ()  # frozen networks to learn from
    reward_gradients: bool = False  # rewards are followed uphill, so each that counts must be differentiable


class Role(Protocol):
    """A network with a job: predicts a velocity, with the guidance of the run."""

    def __call__(
        self,
        x: Tensor,
        time: Tensor,
        conditioning: Gathered[Conditioning],
        unconditional: Gathered[Conditioning],
        *,
        guidance: float | None = None,
    ) -> Tensor:
        """Latents [M, ...] at times [M] to velocities [M, ...]; guidance None takes the run's."""
        ...


class Roles(Protocol):
    """The networks of a worker. Only ``policy`` has gradients."""

    @property
    def policy(self) -> Role:
        """The network that learns."""

    @property
    def reference(self) -> Role:
        """The network before training."""

    @property
    def old(self) -> Role:
        """The network that an algorithm keeps beside the policy, by ``blend_old``."""

    @property
    def teachers(self) -> Sequence[Role]:
        """The teachers that the algorithm needs, each with its own guidance."""

    def reward(self, latents: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The weighted sum of the run's rewards for finished latents [B, ...], with gradients to them: [B]."""

    on_policy: bool  # the whole update is one optimizer step on samples of these very weights
    moved: bool  # the policy differs from the one that sampled: it has been stepped, or was newer from the start
    fresh: bool  # the policy is still the one that annotated this batch
    old_is_policy: bool  # the old policy has the same weights
    micro_batch_size: int
    optimizer_steps: int  # of the run so far

    device: torch.device  # where the networks compute

    def blend_old(self, decay: float) -> None:
        """old = decay * old + (1 - decay) * policy."""

    def distribute(self, function: Callable[[P], T], parts: Iterable[P]) -> list[T]:
        """What ``function`` makes of every part, in order, shared out among the ranks; its tensors are on the CPU
        where there are several."""


@options
class Algorithm(Named, ABC):
    """Base of all algorithms; a subclass is one file named after its paper, registered under the paper's name."""

    @abstractmethod
    def needs(self) -> Any:
        """What has to be there for this algorithm with these options."""

    def annotate(self, scored: Any, roles: Any) -> Any:
        """Add what needs a forward pass without gradients; the default needs none."""
        return scored

    @abstractmethod
    def credit(self, annotated: Any) -> tuple[Batch, Metrics]:
        """Turn rewards into a training signal: tensors only, no network. Samples without reward are dropped."""

    @abstractmethod
    def micro_batches(self, batch: Any, size: int) -> Iterator[Batch]:
        """Cut an optimizer batch into parts of at most ``size`` network rows."""

    @abstractmethod
    def loss(self, part: Any, roles: Any) -> Loss:
        """The sum of the loss over the terms of one micro-batch."""

    @abstractmethod
    def size(self, batch: Any) -> int:
        """Terms in an optimizer batch: what the sum of its losses is divided by."""

    def after_update(self, roles: Any, update: int) -> Metrics:
        """What happens once all optimizer steps of a policy update are done; ``update`` counts from 1."""
        return {}


def clip_range(name: str, low: float | None, high: float | None) -> tuple[float, float]:
    """The range of an option ``name`` and its ``name_low``: symmetric if low is None, open where nothing bounds it.

    Raises:
        ValueError: it is empty.
    """
    if low is None:
        low = -math.inf if high is None else -high
    elif high is not None and low >= high:
        raise ValueError(f"{name}_low is {low:g} and {name} is {high:g}: nothing lies between; lower {name}_low")
    return low, math.inf if high is None else high


@options
class GroupRelative(Algorithm):
    """Base of algorithms that judge a sample by the others of its prompt."""

    advantage_std: Literal["group", "global", "none"] = "group"
    """Divide advantages by the std of the group, of the whole batch, or not at all (Dr.GRPO)."""
    advantage_eps: Positive = 1e-4
    """Added to that std."""
    advantage_unbiased: bool = False
    """Whether that std divides by n - 1, as DanceGRPO and verl do, or by n, as the papers' own code does."""
    advantage_aggregation: Literal["sum", "each", "gdpo"] = "sum"
    """Several rewards: sum: weighted sum first, one advantage of it; each: an advantage of each reward by itself, then
    their weighted sum, so that the reward with the widest spread does not rule; gdpo: that sum brought to mean 0 and
    std 1 over the batch as well."""

    @model_validator(mode="after")
    def _advantage_options_are_read(self) -> Self:
        if self.advantage_std == "none" and (self.advantage_eps != 1e-4 or self.advantage_unbiased):
            raise ValueError("advantage_eps and advantage_unbiased are never read when advantage_std is none")
        return self

    def advantages(self, scored: Scored) -> Tensor:
        """Rewards relative to the group, by these options: [B], exactly 0 where a reward is missing."""
        from burnish.advantages import group_advantages, normalise_each

        scores, how = scored.scores, self.advantage_aggregation
        scaling: dict[str, Any] = {
            "scale": self.advantage_std,
            "eps": self.advantage_eps,
            "unbiased": self.advantage_unbiased,
        }
        if how == "sum":
            return group_advantages(scores.reward, scored.group, scores.missing, **scaling)
        return normalise_each(
            scores.components, scores.weights, scored.group, scores.missing, whiten=how == "gdpo", **scaling
        )


def in_parts(function: Callable[[Steps], Tensor], steps: Steps, roles: Roles) -> Tensor:
    """``function`` over micro-batches, without gradients, joined again; all ranks get all of it."""
    import torch

    home = steps.state.device  # that of the networks, or the CPU where a batch has come from elsewhere

    with torch.no_grad():
        parts = steps.split(roles.micro_batch_size)
        return torch.cat(roles.distribute(lambda part: function(part.to(roles.device)).to(home), parts))


def advantage_metrics(reward: Tensor, advantage: Tensor) -> Metrics:
    """verl's ``critic/*`` metrics of a batch: what was earned, and what credit made of it."""
    return spread_metrics(rewards=reward, advantages=advantage, returns=advantage)


def spread_metrics(**values: Tensor) -> Metrics:
    """Mean and range of each, as ``critic/NAME/*``; nothing of what is empty."""
    return {
        f"critic/{name}/{how}": float(getattr(value, how)())
        for name, value in values.items()
        if len(value)
        for how in ("mean", "max", "min")
    }
