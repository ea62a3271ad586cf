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
