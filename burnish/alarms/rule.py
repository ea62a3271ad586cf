"""Whether the mean of a statistic has left where it was in the first updates: a test that may be asked at any time.

The mean of the last updates is compared with that of the first ones. Updates differ by the prompts and samples that
they happen to have, which the standard errors of their means say; where they differ by more, as where data alternates,
second differences of the means say it, which a steady move leaves alone. After update t a difference counts as chance
unless it is larger than one that chance exceeds with probability ``false_alarms / (t (t + 1))``: these add up to
``false_alarms`` over all updates of a run, however long it is.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass

FIRST, LAST = 2, 2  # updates that the start is the mean of, and those for which a statistic has to have moved
PROMPTS, MOST = (16, 8), (8, 4)  # prompts of each together: where they are fewer it takes more updates, up to these
LEAST, SHARE = 0.05, 0.02  # smaller is nothing: of the start, and of the largest value of a statistic that is at most 1
ENOUGH = 4  # second differences that say something
MEDIAN = 0.6745 * math.sqrt(6)  # median of the absolute second difference of standard normal numbers


@dataclass(frozen=True)
class Move:
    """How far the mean of a statistic is from where it was."""

    before: float  # mean of the first updates
    now: float  # of the last ones
    spread: float  # standard deviation of the first samples
    since: int  # the update from which on it has been more than half as far

    @property
    def spreads(self) -> float:
        """The move in standard deviations of the first samples, with its sign."""
        return (self.now - self.before) / self.spread


class Series:
    """The means of a statistic over the updates."""

    def __init__(self, prompts: int, false_alarms: float) -> None:
        """Args: ``prompts`` of an update; ``false_alarms`` is the probability of one over all updates of a run."""
        self.prompts, self.false_alarms = prompts, false_alarms
        self.first, self.last = (
            min(max(-(-least // prompts), usual), most)
            for least, usual, most in zip(PROMPTS, (FIRST, LAST), MOST, strict=True)
        )
        self.updates: list[int] = []
        self.means: list[float] = []
        self._spreads: list[float] = []  # of the first updates
        self._errors = self._known = 0.0  # sum of the squared standard errors, and how many are known
        self._bends: list[float] = []  # absolute second differences of the means, in order of size

    def add(self, update: int, mean: float, std: float, error: float | None) -> None:
        """Args: ``std`` of the samples; ``error`` is the standard error of the mean, None if it is unknown."""
        if len(self.means) > 1:
            insort(self._bends, abs(mean - 2 * self.means[-1] + self.means[-2]))
        if len(self._spreads) < self.first:
            self._spreads.append(std)
        if error is not None:
            self._errors += error * error
            self._known += 1
        self.updates.append(update)
        self.means.append(mean)

    def move(self, far: float) -> Move | None:
        """The move, if each of the last updates is at least ``far`` standard deviations away, and not by chance."""
        if len(self.means) < self.first + self.last:
            return None
        before, now = sum(self.means[: self.first]) / self.first, sum(self.means[-self.last :]) / self.last
        least = _least(before)
        spread = sum(self._spreads) / self.first
        enough = max(far * spread, least)
        way = math.copysign(1.0, now - before)
        if any(way * (mean - before) < enough for mean in self.means[-self.last :]):
            return None
        if abs(now - before) <= self._chance():
            return None
        half = next((n for n in range(len(self.means), 0, -1) if way * (self.means[n - 1] - before) < enough / 2), 0)
        return Move(before, now, spread or least, self.updates[half])

    def back(self, far: float) -> bool:
        """Whether the mean is less than half of ``far`` standard deviations from where it was, after a move."""
        before = sum(self.means[: self.first]) / self.first
        least = _least(before)
        enough = max(far * sum(self._spreads) / self.first, least)
        return all(abs(mean - before) < enough / 2 for mean in self.means[-self.last :])

    def _chance(self) -> float:
        """The largest difference that counts as chance now."""
        updates = len(self.means)
        freedom = max((self.prompts - 1) * self._known, updates - 1)
        variance = self._errors / self._known if self._known else 0.0
        if len(self._bends) >= ENOUGH:
            variance = max(variance, (self._bends[(len(self._bends) - 1) // 2] / MEDIAN) ** 2)
        elif not self._known:
            return math.inf
        share = self.false_alarms / (updates * (updates + 1))
        return student(share, freedom) * math.sqrt(variance * (1 / self.first + 1 / self.last))


def _least(before: float) -> float:
    """The smallest move that is one, whatever the spread of samples is."""
    return max(LEAST * abs(before), SHARE if 0 <= before <= 1 else 0.0)


def student(share: float, freedom: float) -> float:
    """What the absolute value of a Student's t exceeds with probability ``share``."""
    from scipy.special import stdtrit  # its quarter of a second is for runs that compare, not for commands

    return float(-stdtrit(freedom, share / 2))
