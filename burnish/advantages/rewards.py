"""What samples earned, as rules of advantages read it, and what such a rule returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.advantages.shaping import place_reward
from burnish.losses.policy import masked
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
