"""Metrics of an optimizer step, from sums over its mini-batch on all ranks."""

from __future__ import annotations

from collections.abc import Mapping


def step_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a mini-batch: ``sum NAME`` by ``count NAME``, and ``report NAME`` as it is."""
    named = [name.removeprefix("sum ") for name in sums if name.startswith("sum ")]
    metrics = {name: sums[f"sum {name}"] / sums[f"count {name}"] for name in named if sums[f"count {name}"]}
    for name in [name for name in metrics if name.startswith("actor/ratio_square")]:
        variance = metrics.pop(name) - metrics[name.replace("square", "mean")] ** 2
        metrics[name.replace("square", "std")] = max(variance, 0.0) ** 0.5
    return metrics | {name.removeprefix("report "): value for name, value in sums.items() if name.startswith("report ")}


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
