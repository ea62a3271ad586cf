"""Names of metrics for those who know another project's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

Names = Literal["verl", "lightrft"]

# our name, as a pattern, and LightRFT's; several of ours under one name are averaged, as those of data sources are
LIGHTRFT: list[tuple[str, str]] = [
    (r"actor/(pg_loss|policy_loss)", "train/policy_loss"),
    (r"actor/kl_loss", "train/kl"),
    (r"actor/lr", "train/actor_lr"),
    (r"actor/ptx_loss", "train/ptx_loss"),
    (r"actor/entropy", "train/entropy"),
    (r"critic/vf_loss", "train/critic_loss"),
    (r"critic/vpred_mean", "train/values"),
    (r"critic/lr", "train/critic_lr"),
    (r"critic/rewards/(mean|max|min)", r"train/step_reward_\1"),
    (r"critic/format/mean", "train/format_reward_mean"),
    (r"critic/(exact|numeric|accuracy)/mean", "train/accuracy_reward_mean"),
    (r"critic/advantages/(mean|max|min)", r"train/advantages_\1"),
    (r"critic/returns/mean", "train/returns_mean"),
    (r"response_length/mean", "train/response_length_mean"),
    (r"response/reflections/mean", "trajectory/reflection_pattern_score_mean"),
    (r"val-core/[^/]+/reward/mean@\d+", "eval/reward_mean"),
    (r"val-aux/[^/]+/reward/std@\d+", "eval/reward_std"),
    (r"val-aux/[^/]+/format/mean@\d+", "eval/format_reward"),
    (r"val-aux/[^/]+/(exact|numeric|accuracy)/mean@\d+", "eval/accuracy_reward"),
    (r"val-aux/response_length/mean", "eval/response_length"),
    (r"val-aux/num_samples", "eval/num_samples"),
]


def renamed(step: int, values: Mapping[str, float], names: Names) -> dict[str, float]:
    """Metrics of an update under other names; those without a counterpart keep theirs."""
    if names == "verl":
        return dict(values)
    grouped: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in values.items():
        grouped[_lightrft(name)].append(value)
    means = {name: sum(group) / len(group) for name, group in grouped.items()}
    means["train/global_step"] = float(step)
    if any(name.startswith("eval/") for name in means):
        means["eval/global_step"] = float(step)
    return means


def _lightrft(name: str) -> str:
    for pattern, other in LIGHTRFT:
        if (match := re.fullmatch(pattern, name)) is not None:
            return match.expand(other)
    return name
