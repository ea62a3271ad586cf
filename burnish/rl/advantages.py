"""Rewards of a batch, and their advantages: within groups, over the batch, and along the actions of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.rl.surrogates import masked
from burnish.types.rollout import Scores


@dataclass(frozen=True)
class Rewards:
    """Rewards of B samples with K actions each: denoising steps or tokens. A missing reward gives and gets nothing."""

    reward: Tensor  # [B] all that a sample earned, after shaping; of no meaning where missing
    components: Tensor  # [B, R] single rewards as they count (capped, gated), NaN where one is missing
    weights: tuple[float, ...]  # R, of each in the sum, where nothing else is said of a sample
    actions: Tensor  # [B, K] ``reward`` where it counts: at the last action, and a KL at each
    by_turn: Tensor  # [B, K] the same, with what an environment gave for single turns at the ends of these
    greedy: Tensor  # [B] what the greedy response to the prompt earned; NaN where nobody asks
    group: Tensor  # [B] long: equal for samples of one prompt
    missing: Tensor  # [B] bool
    mask: Tensor  # [B, K] bool: actions that count, of samples that have a reward
    value: Tensor  # [B, K] predictions of the value network; [B, 0] without one
    steps: Tensor  # [B, K] what of the reward belongs to a step that ends with the action; NaN where none does
    applied: Tensor  # [B, R] float64: weights of each for each sample; 0 where one doesn't apply
    names: tuple[str, ...]  # R, of single rewards

    def component(self, name: str) -> Tensor:
        """The values of a single reward [B], which needs no weight; NaN where one is missing."""
        return self.components[:, self.names.index(name)]

    @classmethod
    def of(cls, scores: Scores, group: Tensor, actions: int) -> Rewards:
        """Of samples with N actions, all of which count, and whose reward is that of the last."""
        missing = scores.missing
        mask = (~missing)[:, None].expand(len(missing), actions)
        earned = place_reward(torch.where(missing, 0.0, scores.reward), mask)
        return cls(
            reward=scores.reward,
            components=scores.counted.to(scores.components),
            weights=scores.weights,
            applied=scores.applied,
            names=scores.names,
            actions=earned,
            by_turn=earned,
            greedy=torch.full_like(scores.reward, torch.nan),
            group=group,
            missing=missing,
            mask=mask,
            value=mask.new_zeros(len(missing), 0, dtype=torch.float32),
            steps=torch.full_like(earned, torch.nan),
        )


@dataclass(frozen=True)
class Advantages:
    """What a rule makes of rewards, 0 where masked."""

    advantage: Tensor  # [B, K]
    returns: Tensor  # [B, K] what is reported, and what a value network learns

    @classmethod
    def of(cls, advantage: Tensor, mask: Tensor) -> Advantages:
        """Of an advantage for each sample [B] or for each action [B, K].

        Raises:
            ValueError: it has another shape.
        """
        if getattr(advantage, "shape", None) not in (mask.shape, mask.shape[:1]):
            found = f"a tensor {list(advantage.shape)}" if isinstance(advantage, Tensor) else f"{advantage!r:.200}"
            raise ValueError(
                f"an advantage is {found}; it must be a tensor {list(mask.shape[:1])}, a number per sample, "
                f"or {list(mask.shape)}, a number per action"
            )
        each = masked(advantage[:, None].expand(mask.shape) if advantage.dim() == 1 else advantage, mask)
        return cls(each, each)


def place_reward(reward: Tensor, mask: Tensor) -> Tensor:
    """A reward per sample, on the last token that the policy chose.

    Args:
        reward: [B].
        mask: [B, T] bool; a sample without a chosen token has nowhere to put its reward.

    Returns:
        [B, T], 0 elsewhere.
    """
    after = mask.flip(-1).cumsum(-1).flip(-1)
    return masked(reward[:, None].expand_as(after), mask & (after == 1))


def place_step_rewards(reward: Tensor, step: Tensor, mask: Tensor) -> Tensor:
    """A reward per step (a turn, a line of reasoning), each on the last chosen token of its step.

    Args:
        reward: [B, S].
        step: [B, T] long, number of the step that a token belongs to; read where ``mask`` only.
        mask: [B, T] bool; a step without a chosen token has nowhere to put its reward.

    Returns:
        [B, T], 0 elsewhere.
    """
    out = torch.zeros_like(masked(step, mask))
    for number in range(reward.shape[1]):
        out = out + place_reward(reward[:, number], mask & (step == number))
    return out


def clip_values(values: Tensor, lowest: float, highest: float, mask: Tensor) -> tuple[Tensor, float]:
    """Values within a range, and the fraction of them that was outside it before.

    Args:
        values: of any shape.
        lowest, highest: the range, ends included.
        mask: bool of that shape, which values are counted and kept; others become 0.

    Returns:
        The clipped values, and the fraction in [0, 1], 0 if there are none.
    """
    values = masked(values, mask)
    outside = ((values < lowest) | (values > highest)) & mask
    return masked(values.clamp(lowest, highest), mask), float(outside.sum() / mask.sum().clamp_min(1))


def turn_numbers(mask: Tensor) -> Tensor:
    """Turns are stretches of tokens that the policy chose, with tokens of somebody else between them.

    Args:
        mask: [B, T] bool.

    Returns:
        [B, T] long, from 0; of no meaning where masked.
    """
    begins = mask & ~F.pad(mask[:, :-1], (1, 0))
    return torch.where(mask, begins.cumsum(1) - 1, 0)


def overlong_penalty(length: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """DAPO's soft punishment (arXiv 2503.14476): 0 up to ``max_length - buffer`` tokens, then falling in a line.

    Args:
        length: [B] chosen tokens.
        max_length: where the penalty has reached -factor.
        buffer: tokens over which it falls; at least 1, below ``max_length``.
        factor: the largest penalty.

    Returns:
        [B] float32, to be added to the reward before anything compares samples.
    """
    over = (length.float() - (max_length - buffer)) / buffer
    return -factor * over.clamp_min(0)


Scale = Literal["group", "global", "none"]


@dataclass(frozen=True)
class Groups:
    """What the rewards of each group look like; G groups with at least one reward."""

    label: Tensor  # [B] long, 0..G-1
    count: Tensor  # [G] rewards that are present
    mean: Tensor  # [G]
    std: Tensor  # [G] 0 exactly where all rewards are equal
    constant: Tensor  # [G] bool: largest equals smallest, compared exactly


def group_statistics(reward: Tensor, group: Tensor, missing: Tensor, *, unbiased: bool = False) -> Groups:
    """Statistics per group in float64 over the rewards that are present.

    Equality of rewards is tested as max == min: a standard deviation of equal floats is not reliably zero.

    Args:
        reward: [B].
        group: [B] long ids.
        missing: [B] bool.
        unbiased: divide by n - 1 instead of n; a group of one has std 0.
    """
    _, label = torch.unique(group, return_inverse=True)
    size = int(label.max()) + 1 if len(label) else 0
    present = ~missing
    where, value = label[present], reward[present].double()
    count = torch.zeros(size, dtype=torch.float64).index_add(0, where, torch.ones_like(value))
    mean = torch.zeros(size, dtype=torch.float64).index_add(0, where, value) / count.clamp_min(1)
    square = torch.zeros(size, dtype=torch.float64).index_add(0, where, (value - mean[where]).square())
    highest = torch.full((size,), -torch.inf, dtype=torch.float64).scatter_reduce(0, where, value, "amax")
    lowest = torch.full((size,), torch.inf, dtype=torch.float64).scatter_reduce(0, where, value, "amin")
    constant = highest <= lowest
    std = (square / (count - int(unbiased)).clamp_min(1)).sqrt()
    return Groups(label, count, mean, std.masked_fill(constant, 0.0), constant)


def deviations(value: Tensor, group: Tensor, missing: Tensor) -> Tensor:
    """Deviations [B] from the means of groups in float64, 0 where missing or where all of a group are alike."""
    clean = value.double().masked_fill(missing, 0.0)
    groups = group_statistics(clean, group, missing)
    return (clean - groups.mean[groups.label]).masked_fill(groups.constant[groups.label] | missing, 0.0)


def group_advantages(
    reward: Tensor,
    group: Tensor,
    missing: Tensor,
    *,
    scale: Scale = "group",
    eps: float = 1e-4,
    unbiased: bool = False,
    trimmed_ratio: float = 0.0,
) -> Tensor:
    """Reward minus the mean of its group, over a standard deviation (GRPO; Flow-GRPO eq. 4).

    A group whose rewards are all equal, a group of one, and a missing reward give exactly 0.

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; left out of every statistic.
        scale: divide by the std of the group, by that of the whole batch, or by nothing (Dr.GRPO).
        eps: added to the std.
        unbiased: whether the std divides by n - 1.
        trimmed_ratio: share of a group, its lowest rewards, that its mean and std leave out, rounded down (MixGRPO).
            Where all others are equal, the std is that of the whole group.

    Returns:
        [B] float32.
    """
    groups = group_statistics(reward, group, missing, unbiased=unbiased)
    low = _lowest(reward, missing, groups, trimmed_ratio)
    rest = group_statistics(reward, group, missing | low, unbiased=unbiased)
    centred = reward.double() - rest.mean[groups.label]
    if scale == "group":
        std = torch.where(rest.constant, groups.std, rest.std)
        centred = centred / (std[groups.label] + eps)
    elif scale == "global":
        present = reward[~missing].double()
        std = present.std(correction=int(unbiased)) if len(present) > 1 else torch.tensor(0.0)
        centred = centred / (std + eps)
    nothing = missing | groups.constant[groups.label]
    return centred.masked_fill(nothing, 0.0).float()


def _lowest(reward: Tensor, missing: Tensor, groups: Groups, ratio: float) -> Tensor:
    """Which samples are among the lowest ``ratio`` of their group, [B] bool; of equal ones the first."""
    order = torch.argsort(reward.double().masked_fill(missing, torch.inf), stable=True)
    order = order[torch.argsort(groups.label[order], stable=True)]
    size = groups.label.bincount(minlength=len(groups.count))
    start = (size.cumsum(0) - size)[groups.label[order]]
    rank = torch.empty_like(order).scatter(0, order, torch.arange(len(order)) - start)
    return rank < (groups.count * ratio).floor()[groups.label]


def amplified(advantage: Tensor, distance: Tensor, group: Tensor, missing: Tensor) -> Tensor:
    """Positive advantages times how far their samples are from the others of their group (arXiv:2512.24138, eq. 8).

    The distance counts over the mean of its group, as in the code of GARDO; the equation leaves the mean out.

    Args:
        advantage: [B].
        distance: [B] of each sample to its nearest neighbour within the group; NaN where it is unknown, which amplifies
            nothing.
        group: [B] ids.
        missing: [B] bool; left out of the means.

    Returns:
        [B] float32. Where all samples of a group are alike, nothing is amplified.
    """
    unknown = missing | distance.isnan()
    groups = group_statistics(distance, group, unknown)
    mean = groups.mean[groups.label]
    factor = torch.where(unknown | (mean <= 0), 1.0, distance.double() / mean)
    return torch.where(advantage > 0, advantage * factor, advantage).float()


def normalise_each(
    components: Tensor,
    weights: Sequence[float] | Tensor,
    group: Tensor,
    missing: Tensor,
    *,
    scale: Scale = "group",
    eps: float = 1e-4,
    unbiased: bool = False,
    trimmed_ratio: float = 0.0,
    whiten: bool = False,
) -> Tensor:
    """Advantages of each reward by itself, then their weighted sum (GDPO, arXiv:2601.05242).

    Summing rewards first lets the one with the largest std rule, and different rewards with equal sums look alike.

    Args:
        components: [B, N] rewards, NaN where one is missing: it adds nothing.
        weights: N factors, or those of each sample [B, N].
        group: [B] ids.
        missing: [B] bool; samples that are left out altogether.
        scale, eps, unbiased, trimmed_ratio: of each reward, see ``group_advantages``.
        whiten: bring the sum to mean 0 and std 1 over the batch, so that its size does not grow with N.

    Returns:
        [B] float32.
    """
    total = torch.zeros(len(components), dtype=torch.float64)
    each = torch.as_tensor(weights, dtype=torch.float64, device=components.device).expand(components.shape)
    for weight, reward in zip(each.unbind(1), components.unbind(1), strict=True):
        absent = missing | reward.isnan() | (weight == 0)
        one = group_advantages(
            reward, group, absent, scale=scale, eps=eps, unbiased=unbiased, trimmed_ratio=trimmed_ratio
        )
        total += weight * one.double()
    present = total[~missing]
    if whiten and len(present) > 1:
        total = (total - present.mean()) / (present.std(correction=int(unbiased)) + eps)
    return total.masked_fill(missing, 0.0).float()


def depthwise_advantages(reward: Tensor, node: Tensor, group: Tensor, missing: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Advantages in trees of samples that share their first denoising steps (BranchGRPO, arXiv:2509.06040).

    A node is worth the mean reward of its leaves, and is compared with the nodes of the same depth in its tree; a
    depth with one node gives 0. So a step is credited with what became of all that went on from it.

    Args:
        reward: [B] of the leaves.
        node: [B, D] ids: rows of a tree with equal numbers at a depth are one node there.
        group: [B] ids of the trees.
        missing: [B] bool; left out of every mean.
        eps: added to the std, which divides by n - 1.

    Returns:
        [B, D] float32; 0 in rows that are missing.
    """
    columns = []
    for ids in node.unbind(1):
        _, label = torch.unique(torch.stack([group, ids]), dim=1, return_inverse=True)
        nodes = group_statistics(reward, label, missing)
        tree = torch.zeros_like(nodes.count, dtype=group.dtype).scatter(0, label, group)
        advantage = group_advantages(nodes.mean, tree, nodes.count == 0, unbiased=True, eps=eps)
        columns.append(advantage[label].masked_fill(missing, 0.0))
    return torch.stack(columns, 1)


def optimality(
    advantage: Tensor, clip: float, mode: Literal["continuous", "positive_only", "negative_only", "binary", "one_only"]
) -> Tensor:
    """DiffusionNFT's probability that a sample is optimal: advantage / (2 clip) + 1/2, in [0, 1] (paper, eq. 13).

    Args:
        advantage: [B].
        clip: advantages beyond +-clip count as +-clip.
        mode: which part of the advantage counts: all; only the positive or the negative part; its sign (+-1); or 1
            for every positive one and 0 for the rest.
    """
    advantage = advantage.clamp(-clip, clip)
    if mode == "positive_only":
        advantage = advantage.clamp_min(0)
    elif mode == "negative_only":
        advantage = advantage.clamp_max(0)
    elif mode == "binary":
        advantage = advantage.sign()
    elif mode == "one_only":
        advantage = (advantage > 0).float()
    return (advantage / (2 * clip) + 0.5).clamp(0, 1)


EPS = 1e-8  # added to a std that is divided by
SAME = 1e-6  # a std this small against the values themselves is rounding, not a difference to magnify


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of some values; those of a union come from those of its parts."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def merge(self, other: Moments) -> Moments:
        """Of both together (Chan et al. 1979)."""
        count = self.count + other.count
        if not count:
            return self
        shift = other.mean - self.mean
        return Moments(
            count,
            self.mean + shift * other.count / count,
            self.squares + other.squares + shift * shift * self.count * other.count / count,
        )

    def std(self, *, unbiased: bool) -> float:
        """Standard deviation, dividing by n - 1 if ``unbiased``; 0 where it has no meaning or is only rounding."""
        count = self.count - unbiased
        if count <= 0:
            return 0.0
        std = (self.squares / count) ** 0.5
        return std if std > SAME * abs(self.mean) else 0.0


def moments(values: Tensor, mask: Tensor) -> Moments:
    """Of the values where ``mask``, in float64; both of any one shape."""
    kept = values[mask].double()
    if not len(kept):
        return Moments()
    return Moments(float(len(kept)), float(kept.mean()), float((kept - kept.mean()).square().sum()))


def whitened(values: Tensor, mask: Tensor, std: Literal["unbiased", "biased", "none"]) -> Tensor:
    """Masked values minus their mean, over their standard deviation.

    Values that are all equal become exactly 0.

    Args:
        values: [B, T].
        mask: [B, T] bool; masked values are in no statistic, and come out 0.
        std: divides by n - 1 (``unbiased``) or by n (``biased``); with ``none`` only the mean is taken off.

    Returns:
        [B, T].
    """
    known, clean = moments(values, mask), masked(values, mask)
    centred = clean.double() - known.mean
    scale = known.std(unbiased=std != "biased")
    if std != "none":
        centred = centred / (scale + EPS) if scale else torch.zeros_like(centred)
    return masked(centred.to(clean.dtype), mask)


class RunningMoments:
    """Moments of every reward of a run so far, to bring rewards to one scale."""

    def __init__(self) -> None:
        self.known = Moments()

    def update(self, values: Tensor, present: Tensor) -> Moments:
        """Take in a batch [B], those ``present`` [B] only; returns the batch's own moments."""
        batch = moments(values, present & values.isfinite())
        self.known = self.known.merge(batch)
        return batch

    def normalise(self, values: Tensor) -> Tensor:
        """Minus the running mean, over the running std; while all rewards so far were equal, only centred."""
        scale = self.known.std(unbiased=True)
        centred = values.double() - self.known.mean
        return (centred / (scale + EPS) if scale else centred).float()

    def state_dict(self) -> dict[str, float]:
        return {"count": self.known.count, "mean": self.known.mean, "squares": self.known.squares}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.known = Moments(**state)


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); the value after the last token is 0.

    Args:
        rewards, values: [B, T]; what stands at tokens that were not chosen is not read.
        mask: [B, T] bool.
        gamma: discount per token.
        lam: 1 takes rewards as they came, 0 the critic's word for all but the next one.

    Returns:
        Advantages, and returns (advantage + value: what the critic learns), both [B, T], 0 where masked.
    """
    advantage = torch.zeros_like(rewards)
    following = running = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        surprise = rewards[:, t] + gamma * following - values[:, t]
        running = torch.where(mask[:, t], surprise + gamma * lam * running, running)
        following = torch.where(mask[:, t], values[:, t], following)
        advantage[:, t] = running
    return masked(advantage, mask), masked(advantage + values, mask)


def returns(rewards: Tensor, mask: Tensor, *, gamma: float) -> Tensor:
    """Discounted sums of the rewards from each token on (REINFORCE): GAE without a critic.

    Args:
        rewards: [B, T].
        mask: [B, T] bool.
        gamma: discount per token.

    Returns:
        [B, T], 0 where masked.
    """
    return gae(rewards, torch.zeros_like(rewards), mask, gamma=gamma, lam=1.0)[0]
