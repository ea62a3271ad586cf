"""What a response has earned: its reward, scaled and clipped, minus what its length and its KL cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from burnish.options import Count, Positive, clip_range
from burnish.registry import options
from burnish.rl.algorithm import Memory, Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.algorithms.language.base import LanguageNeeds
    from burnish.batches.tokens import AnnotatedTokens
    from burnish.rl.choices import TokenKl
    from burnish.rl.rewards import Rewards


@options
class Overlong:
    """DAPO's soft penalty of responses that come near the limit."""

    buffer: Count
    """Tokens before rollout.max_new_tokens over which the penalty grows in a line."""
    factor: Positive = 1.0
    """The penalty at the limit."""


class Shaping(Protocol):
    """Options of an algorithm that decide what its rewards are worth before they are compared."""

    overlong: Overlong | None
    reward_norm: bool
    reward_clip: float | None
    reward_clip_low: float | None
    kl: TokenKl | None

    def needs(self) -> LanguageNeeds:
        """Among them, whether a greedy response is scored beside the others."""


def complaints(algorithm: Shaping, samples: int, longest: int) -> Iterator[str]:
    """What its options of shaping can't be used with: N responses per update, of at most ``longest`` tokens."""
    overlong, kl = algorithm.overlong, algorithm.kl
    if overlong is not None and overlong.buffer >= longest:
        yield (
            f"algorithm.overlong.buffer is {overlong.buffer}, but rollout.max_new_tokens is {longest}: every "
            "response would be punished; make it smaller"
        )
    if kl is not None and kl.target is not None and samples >= 5 * kl.horizon:
        yield (
            f"algorithm.kl.horizon is {kl.horizon:g} with {samples} responses per update: one step could "
            f"make the coefficient negative; set it above {samples // 5}"
        )


def memory_of(algorithm: Shaping) -> Memory:
    """What shaping remembers from update to update: statistics of rewards, and the KL's coefficient."""
    from burnish.rl.advantages import RunningMoments

    parts: dict[str, Any] = {"rewards": RunningMoments()} if algorithm.reward_norm else {}
    return Memory(parts | ({"kl": algorithm.kl.make_controller()} if algorithm.kl else {}))


def shape(algorithm: Shaping, annotated: AnnotatedTokens) -> tuple[Rewards, float, Metrics]:
    """What responses earned, the coefficient of a KL in the loss, and what there is to report.

    The memory takes in this batch: what it knew before decides the KL's weight, and what it knows then how
    rewards are scaled.
    """
    import torch

    from burnish.rl.rewards import Rewards, place_reward, place_step_rewards, turn_numbers

    scored = annotated.scored
    missing = scored.scores.missing
    if algorithm.needs().greedy:
        missing = missing | scored.greedy.isnan()
    mask = scored.trace.mask & ~missing[:, None]
    reward, greedy, metrics = _scaled(algorithm, annotated, missing)
    penalty, coef, measured = _penalty(algorithm, annotated, mask)
    earned, turns = torch.where(missing, 0.0, reward), scored.turn_rewards
    steps = scored.step_rewards.masked_fill(~mask, torch.nan)
    by_step = steps.nan_to_num(0.0)
    rest = earned - by_step.sum(1)
    by_turn = place_reward(rest - turns.sum(1), mask) + place_step_rewards(turns, turn_numbers(mask), mask) + by_step
    rewards = Rewards(
        reward=reward - penalty.sum(1),
        components=scored.scores.counted.to(scored.scores.components),
        weights=scored.scores.weights,
        applied=scored.scores.applied,
        actions=place_reward(rest, mask) + by_step - penalty,
        by_turn=by_turn - penalty,
        greedy=greedy,
        group=scored.group,
        missing=missing,
        mask=mask,
        value=annotated.value,
        steps=steps,
    )
    return rewards, coef, metrics | measured


def _scaled(algorithm: Shaping, annotated: AnnotatedTokens, missing: Tensor) -> tuple[Tensor, Tensor, Metrics]:
    """Rewards of the responses and of the greedy ones, [B] each, by the options of scale."""
    from burnish.rl.rewards import clip_values, overlong_penalty

    scored, metrics = annotated.scored, {}
    reward, greedy = scored.scores.reward.float(), scored.greedy.float()
    if algorithm.overlong is not None:
        length = scored.trace.mask.sum(1)
        penalty = overlong_penalty(
            length, max_length=scored.limit, buffer=algorithm.overlong.buffer, factor=algorithm.overlong.factor
        )
        reward = reward + penalty
        metrics["critic/overlong_penalty/mean"] = float(penalty.mean())
        metrics["critic/overlong_penalty/ratio"] = float((penalty < 0).float().mean())
    if algorithm.reward_norm:
        statistics = annotated.memory["rewards"]
        statistics.update(reward, ~missing)
        reward, greedy = statistics.normalise(reward), statistics.normalise(greedy)
        metrics["critic/reward_norm/mean"] = statistics.known.mean
        metrics["critic/reward_norm/std"] = statistics.known.std(unbiased=True)
    if algorithm.reward_clip is not None or algorithm.reward_clip_low is not None:
        low, high = clip_range("reward_clip", algorithm.reward_clip_low, algorithm.reward_clip)
        reward, share = clip_values(reward, low, high, ~missing)
        greedy = greedy.clamp(low, high)
        metrics["critic/rewards/clip_ratio"] = share
    return reward.masked_fill(missing, 0.0), greedy, metrics


def _penalty(algorithm: Shaping, annotated: AnnotatedTokens, mask: Tensor) -> tuple[Tensor, float, Metrics]:
    """What the KL takes off each token [B, T], its coefficient in the loss, and the controller's step."""
    import torch

    nothing = torch.zeros(mask.shape)
    if algorithm.kl is None:
        return nothing, 0.0, {}
    controller = annotated.memory["kl"]
    coef = controller.coef
    metrics = {"actor/kl_coef": coef}
    if not annotated.kl_is_known:
        return nothing, coef, metrics
    estimate = algorithm.kl.value(annotated.compared, annotated.reference, mask)
    rows, in_reward = mask.any(1), algorithm.kl.route == "reward"
    if bool(rows.any()):
        metrics["actor/kl_per_response"] = current = float(estimate.sum(1)[rows].mean())
        controller.update(current, len(mask))
        if in_reward:
            metrics["actor/reward_kl_penalty"] = float(estimate.sum() / mask.sum())
    return (coef * estimate, 0.0, metrics) if in_reward else (nothing, coef, metrics)
