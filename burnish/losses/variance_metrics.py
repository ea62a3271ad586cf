"""How much of a gradient is signal, by verl's names."""

from __future__ import annotations

from torch import Tensor


def variance_proxies(advantage: Tensor, score_power: Tensor) -> dict[str, Tensor]:
    """Of terms with a known score, verl's proxies of the variance of the gradient, before its norm is known.

    Args:
        advantage: [M].
        score_power: [M] squared norm of the gradient of the log-prob.

    Returns:
        One value per term, [M] each.
    """
    return {
        "variance_proxy/proxy2_total_power": advantage.square() * score_power,
        "variance_proxy/expected_a_squared": advantage.square(),
        "variance_proxy/expected_w": score_power,
    }


def signal_and_noise(power: float, norm: float, terms: float) -> dict[str, float]:
    """verl's proxies of how much of the gradient is signal.

    Args:
        power: mean over the terms of the squared norms of their gradients.
        norm: of the mean of those gradients.
        terms: how many, whose mean has a variance of (power - norm^2) / (terms - 1).
    """
    noise = max(power - norm**2, 0.0) / (terms - 1) if terms > 1 else 0.0
    return {"variance_proxy/proxy1_signal_strength": norm**2, "variance_proxy/proxy3_pure_noise": noise}
