"""One of several rewards that makes all the differences, while another one that counts gets worse."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from burnish.alarms.base import Alarm, Row, amount, number
from burnish.alarms.rule import Series
from burnish.options.alarms import AlarmOptions

RECENT = 5  # updates that a share is the mean of
RULES = 0.9  # share of the differences within prompts
FAR = 0.5  # standard deviations of the first samples that another reward gets worse by


class Ruling:
    """Watches the rewards that count, of which there are several."""

    name = "one_reward_rules"

    def __init__(self, weights: Mapping[str, float], options: AlarmOptions, *, prompts: int) -> None:
        """Args: ``weights`` of the rewards, whose signs say which way is better."""
        self.weights = dict(weights)
        self.alarm: Alarm | None = None
        self._shares: dict[str, deque[float]] = {name: deque(maxlen=RECENT) for name in weights}
        self._series = {name: Series(prompts, options.false_alarms) for name in weights}

    def add(self, update: int, row: Row) -> None:
        for name, series in self._series.items():
            share = number(row, f"critic/{name}/reward_share")
            mean, std = number(row, f"critic/{name}/mean"), number(row, f"critic/{name}/std")
            if share is not None:
                self._shares[name].append(share)
            if mean is not None and std is not None:
                series.add(update, mean, std, number(row, f"critic/{name}/error"))
        ruler = next((name for name, some in self._shares.items() if some and sum(some) / len(some) >= RULES), None)
        self.alarm = None if ruler is None else self._worse(ruler)

    def _worse(self, ruler: str) -> Alarm | None:
        """The alarm, if another reward has become worse under this one."""
        for name, series in self._series.items():
            move = series.move(FAR) if name != ruler else None
            if move is not None and move.spreads * math.copysign(1.0, self.weights[name]) < 0:
                share = sum(self._shares[ruler]) / len(self._shares[ruler])
                text = (
                    f"{ruler} makes {100 * share:.0f} % of the reward's differences among samples of a prompt, and "
                    f"{name}, which counts too, got worse: from {amount(move.before)} to {amount(move.now)}, "
                    f"{abs(move.spreads):.1f} standard deviations of the first samples, since update {move.since}"
                )
                return Alarm(self.name, "reward", move.since, text, f"critic/{name}/mean", move.before, move.spread)
        return None
