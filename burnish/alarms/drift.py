"""Watched statistics that leave where they were: what nobody optimises should stay, or have a reason."""

from __future__ import annotations

import math
from collections import deque

from burnish.alarms.base import Alarm, Row, amount, number
from burnish.alarms.rule import Move, Series
from burnish.options.alarms import AlarmOptions

RECENT = 5  # updates that a correlation with the reward is the mean of
SURE = 2.0  # standard errors of a correlation that it is above for certain
PAID = 0.3  # correlation, for certain, from which on the reward pays


class Drift:
    """Watches the mean of a statistic of samples."""

    def __init__(
        self,
        prefix: str,
        options: AlarmOptions,
        *,
        prompts: int,
        samples: int,
        rises: bool = True,
        falls: bool = True,
        only_paid: bool = False,
    ) -> None:
        """Watch a statistic.

        Args:
            prefix: of its metrics, as in critic/dark_share.
            options: of the run.
            prompts: of an update.
            samples: of a prompt.
            rises, falls: whether that is an alarm.
            only_paid: whether it is one only where the reward pays for it.
        """
        self.prefix, self.options = prefix, options
        self.name = prefix.removeprefix("critic/").replace("/", "_")
        self.alarm: Alarm | None = None
        self._ways = [way for way, counts in ((1.0, rises), (-1.0, falls)) if counts]
        self._only_paid = only_paid
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
            far = self.options.shift * (1 - paid)
            move = self._series.move(far) if paid >= PAID or not self._only_paid else None
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
        if self._paid(sign) >= PAID:
            text += f"; the reward pays for it (correlation {self._correlation:+.2f} among samples of a prompt)"
        better, worse = number(row, f"{self.prefix}/better"), number(row, f"{self.prefix}/worse")
        if better is not None and worse is not None:
            text += f"; {amount(better)} where the reward is above its prompt's mean, {amount(worse)} below"
        return Alarm(self.name, "drift", move.since, text, f"{self.prefix}/mean", move.before, move.spread)
