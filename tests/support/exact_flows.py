"""Flows whose velocity is known in closed form."""


def gaussian_velocity(mean: float, std: float):
    """The exact velocity of a flow from N(0, 1) at t = 1 to N(mean, std^2) at t = 0."""

    def velocity(x, t):
        variance = (1 - t) ** 2 * std**2 + t**2
        centred = x - (1 - t) * mean
        expected_noise = t * centred / variance
        expected_clean = mean + (1 - t) * std**2 * centred / variance
        return expected_noise - expected_clean

    return velocity
