"""Watched statistics that leave where they were, because the reward pays for it or to where they are worse.

Learning moves statistics: numbers that become legible have bolder strokes. So a statistic of which neither way is worse
is named only while the reward pays for the way that it goes.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from burnish.alarms.base import Alarm, Row, amount, number
from burnish.alarms.rule import Move, Series
from burnish.options.alarms import AlarmOptions

RECENT = 5  # updates that a correlation with the reward is the mean of
SURE = 2.0  # standard errors of a correlation that it is above for certain
ALIKE = 0.3  # correlation, for certain, above which the reward pays for samples that are alike


class Drift:
    """Watches the mean of a statistic of samples."""

    def __init__(
        self,
        prefix: str,
        options: AlarmOptions,
        *,
        prompts: int,
        samples: int,
        worse: Literal["higher", "lower"] | None = None,
        alike: bool = False,
    ) -> None:
        """Watch a statistic.

        Args:
            prefix: of its metrics, as in critic/dark_share.
            options: of the run.
            prompts: of an update.
            samples: of a prompt.
            worse: the only way that is an alarm, whether the reward pays for it or not; None is either way, where the
                reward pays for it, or where nobody knows that.
            alike: whether it says how alike samples of a prompt are. Right ones are more alike than wrong ones, so
                that any reward pays for that a little.
        """
        self.prefix, self.options = prefix, options
        self.name = prefix.removeprefix("critic/").replace("/", "_")
        self.alarm: Alarm | None = None
        self._ways = {"higher": (1.0,), "lower": (-1.0,), None: (1.0, -1.0)}[worse]
        self._needed = ALIKE if alike else 0.0 if worse is None else None
        self._series = Series(prompts, options.false_alarms)
        self._correlations: deque[float] = deque(maxlen=RECENT)
        self._freedom = max(prompts * (samples - 1), 1)
        self._far = options.shift

    def add(self, update: int, row: Row) -> None:
        mean, std = number(row, f"{self.prefix}/mean"), number(row, f"{self.prefix}/std")
        if mean is None or std is None:
            return
        self._series.add(update, mean, std, number(row, f"{self.prefix}/error"))
        correlation = number(row, f"{self.prefix}/reward_correlation")
        if correlation is not None:
            self._correlations.append(correlation)
        if self.alarm is not None:
            if self._series.back(self._far):
                self.alarm = None
            return
        for way in self._ways:
            paid = self._paid(way)
            if self._needed is not None and self._correlations and paid <= self._needed:
                continue
            far = self.options.shift * (1 - paid)
            move = self._series.move(far)
            if move is not None and math.copysign(1.0, move.spreads) == way:
                self._far, self.alarm = far, self._raised(move, row, way)
                return

    def _paid(self, way: float) -> float:
        """How strongly the reward pays for going on: the correlation that it has with the statistic for certain."""
        if not self._correlations:
            return 0.0
        return max(way * self._correlation - SURE / math.sqrt(self._freedom * len(self._correlations)), 0.0)

    @property
    def _correlation(self) -> float:
        return sum(self._correlations) / len(self._correlations)

    def _raised(self, move: Move, row: Row, sign: float) -> Alarm:
        way = "rose" if move.spreads > 0 else "fell"
        text = (
            f"{self.name} {way} from {amount(move.before)} to {amount(move.now)}, {abs(move.spreads):.1f} standard "
            f"deviations of the first samples, since update {move.since}"
        )
        if self._paid(sign):
            text += f"; the reward pays for it (correlation {self._correlation:+.2f} among samples of a prompt)"
        better, worse = number(row, f"{self.prefix}/better"), number(row, f"{self.prefix}/worse")
        if better is not None and worse is not None:
            text += f"; {amount(better)} where the reward is above its prompt's mean, {amount(worse)} below"
        return Alarm(self.name, "drift", move.since, text, f"{self.prefix}/mean", move.before, move.spread)
