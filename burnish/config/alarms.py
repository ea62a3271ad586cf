"""What options of alarms contradict."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from burnish.options.alarms import Level
from burnish.types.said import WATCHED

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

OTHERS = ("one_reward_rules", "narrowing")


def alarm_complaints(config: RunConfig) -> list[str]:
    """What is wrong with them."""
    if config.alarms is None:
        return []
    found = []
    known = {*get_args(Level), *OTHERS, *(f"response_{name}" for name in WATCHED), *config.rewards}
    for name in config.alarms.off:
        if name not in known:
            names = ", ".join(sorted(known))
            found.append(f"alarms.off has {name}, which no alarm of this run is called; there are {names}")
    return found
