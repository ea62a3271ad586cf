"""What options of alarms contradict."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from burnish.options.alarms import Level
from burnish.rewards.images.similarity import ImageVariety
from burnish.types.response_stats import WATCHED

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

NOTHING = (
    "trackers.tensorboard is true, trackers.samples is 0 and alarms is null: nothing would be written; leave one of "
    "them out"
)
OTHERS = ("reward_dominance", "mode_collapse")
ELSEWHERE: dict[str, frozenset[Level]] = {  # alarms of metrics that the other task alone has
    "text-to-image": frozenset(["entropy_collapse", "entropy_growth", "unfamiliar_form"]),
    "image-text-to-text": frozenset(["velocity", "variety_collapse"]),
}


def alarm_complaints(config: RunConfig) -> list[str]:
    """What is wrong with them."""
    if config.alarms is None:
        shown = config.trackers
        return [NOTHING] if shown.tensorboard and not shown.samples else []
    found = []
    levels = {*get_args(Level)} - ELSEWHERE[config.task]
    responses = {f"response_{name}" for name in WATCHED} if config.task == "image-text-to-text" else set()
    known = levels | responses | {*OTHERS, *config.rewards}
    known |= {f"{name}_collapse" for name, one in config.rewards.items() if isinstance(one, ImageVariety)}
    for level in config.alarms.limits:
        if level not in levels:
            names = ", ".join(sorted(levels))
            found.append(f"alarms.limits has {level}, which no alarm of this run is called; there are {names}")
    for name in config.alarms.off:
        if name not in known:
            names = ", ".join(sorted(known))
            found.append(f"alarms.off has {name}, which no alarm of this run is called; there are {names}")
    return found
