"""Metrics of an optimizer step, from sums over its mini-batch on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from burnish.training.ranks import shares

EXTREMES: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "min": min,
}  # of what a step reports; over the steps of an update, too


def step_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a mini-batch: ``sum NAME`` by ``count NAME``, and ``report NAME`` as it is."""
    named = [name.removeprefix("sum ") for name in sums if name.startswith("sum ")]
    metrics = {name: sums[f"sum {name}"] / sums[f"count {name}"] for name in named if sums[f"count {name}"]}
    for name in [name for name in metrics if name.startswith("actor/ratio_square")]:
        variance = metrics.pop(name) - metrics[name.replace("square", "mean")] ** 2
        metrics[name.replace("square", "std")] = max(variance, 0.0) ** 0.5
    for name, value in sums.items():
        if name.startswith("extreme ") and math.isfinite(value):  # of a rank that had terms
            metric = name.split(" ", 2)[2]
            metrics[metric] = extreme_of(metric)([value, metrics.get(metric, value)])
    return metrics | {name.removeprefix("report "): value for name, value in sums.items() if name.startswith("report ")}


def extreme_of(name: str) -> Callable[[Sequence[float]], float]:
    """What several values of a metric become: of ratio_max and the like the extreme, else the mean."""
    kind = name.rpartition("_")[2]
    return EXTREMES[kind] if kind in EXTREMES and "/" in name else _mean


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def length_metrics(tokens: Sequence[int], ranks: int) -> dict[str, float]:
    """verl's metrics of how the tokens of a mini-batch are shared out among ranks.

    Args:
        tokens: [B] of each sample, prompt and response.
        ranks: that learn from it.
    """
    size = -(-len(tokens) // ranks)
    given = [sum(tokens[start : start + size]) for start in range(0, size * ranks, size)]
    balanced = [sum(tokens[rows]) for rows in shares(tokens, ranks)]
    return {
        "global_seqlen/min": float(min(given)),
        "global_seqlen/max": float(max(given)),
        "global_seqlen/minmax_diff": float(max(given) - min(given)),
        "global_seqlen/balanced_min": float(min(balanced)),
        "global_seqlen/balanced_max": float(max(balanced)),
        "global_seqlen/mean": sum(given) / ranks,
    }


def signal_metrics(sums: Mapping[str, float], norm: float | None) -> dict[str, float]:
    """verl's proxies of how much of the gradient is signal, where the power of the terms' gradients is known.

    Args:
        sums: of the mini-batch; of the squared norms of its terms' gradients, where somebody measured them.
        norm: of the mean of those gradients; None where the actor does not learn. The mean of N gradients with a mean
            squared norm P has a variance of (P - norm^2) / (N - 1).
    """
    terms = sums.get("count variance_proxy/proxy2_total_power")
    if not terms or norm is None:
        return {}
    power = sums["sum variance_proxy/proxy2_total_power"] / terms
    noise = max(power - norm**2, 0.0) / (terms - 1) if terms > 1 else 0.0
    return {"variance_proxy/proxy1_signal_strength": norm**2, "variance_proxy/proxy3_pure_noise": noise}
