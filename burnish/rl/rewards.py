"""The rewards of a batch: shaped, chosen among, measured."""

from __future__ import annotations

from dataclasses import dataclass

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
    applied: Tensor = None  # type: ignore[assignment]  # [B, R] weights of each for each sample; not given: ``weights``

    def __post_init__(self) -> None:
        if self.applied is None:
            each = torch.tensor(self.weights, dtype=torch.float64).expand(len(self.reward), -1)
            object.__setattr__(self, "applied", each)

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
        if advantage.shape not in (mask.shape, mask.shape[:1]):
            raise ValueError(
                f"an advantage has shape {list(advantage.shape)}; it must be {list(mask.shape[:1])}, a number per "
                f"sample, or {list(mask.shape)}, a number per action"
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


def clip_values(values: Tensor, lowest: float, highest: float, mask: Tensor | None = None) -> tuple[Tensor, float]:
    """Values within a range, and the fraction of them that was outside it before.

    Args:
        values: of any shape.
        lowest, highest: the range, ends included.
        mask: bool of that shape, which values are counted and kept, others become 0; None takes all.

    Returns:
        The clipped values, and the fraction in [0, 1], 0 if there are none.
    """
    mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask
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


def pairs(reward: Tensor, group: Tensor, missing: Tensor, *, margin: float = 0.0) -> tuple[Tensor, Tensor]:
    """The best and the worst sample of each group, for losses on preferences.

    Of equal ones the first is the best and the last is the worst. A group of one makes no pair, and neither does one
    whose rewards are all equal: there is nothing to prefer.

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; these are in no pair.
        margin: the best must be better than the worst by more than this.

    Returns:
        Rows of winners [P] and of losers [P], long, groups in the order in which they first occur.
    """
    chosen = []
    for rows in _groups(group, missing):
        value = reward[rows]
        best, worst = int(value.argmax()), len(rows) - 1 - int(value.flip(0).argmin())
        if value[best] - value[worst] > margin:
            chosen.append((rows[best], rows[worst]))
    found = torch.tensor(chosen, dtype=torch.long, device=reward.device).view(-1, 2)
    return found[:, 0], found[:, 1]


def select_best(reward: Tensor, group: Tensor, missing: Tensor, keep: int) -> Tensor:
    """The best samples of each group; of equal ones the first.

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; never kept.
        keep: samples per group; smaller groups are kept whole.

    Returns:
        Rows [M], rising.
    """
    return _select(reward, group, missing, keep, 0)


def select_best_worst(reward: Tensor, group: Tensor, missing: Tensor, keep: int) -> Tensor:
    """The best and the worst samples of each group, which carry most of its signal (DanceGRPO, arXiv:2505.07818).

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; never kept.
        keep: samples per group, the larger half of them the best; smaller groups are kept whole.

    Returns:
        Rows [M], rising.
    """
    return _select(reward, group, missing, keep - keep // 2, keep // 2)


def _select(reward: Tensor, group: Tensor, missing: Tensor, best: int, worst: int) -> Tensor:
    kept: list[int] = []
    for rows in _groups(group, missing):
        order = reward[rows].argsort(descending=True, stable=True).tolist()
        kept += [rows[i] for place, i in enumerate(order) if place < best or place >= len(rows) - worst]
    return torch.tensor(sorted(kept), dtype=torch.long, device=reward.device)


def _groups(group: Tensor, missing: Tensor) -> list[list[int]]:
    """Rows that are present by group, in the order in which groups first occur."""
    members: dict[int, list[int]] = {}
    for row, (number, absent) in enumerate(zip(group.tolist(), missing.tolist(), strict=True)):
        rows = members.setdefault(number, [])
        if not absent:
            rows.append(row)
    return [rows for rows in members.values() if rows]
