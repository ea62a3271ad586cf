"""Means that leave where they were: a two-sample test of the last updates against the first ones.

The test may be asked at any time. Updates differ by the prompts and samples that they happen to have, which the
standard errors of their means say; where they differ by more, as where data alternates, second differences of the means
say it, which a steady move leaves alone. After update t a difference counts as chance unless it is larger than one that
chance exceeds with probability ``false_alarms / (t (t + 1))``: these add up to ``false_alarms`` over a run.

Learning moves statistics: numbers that become legible have bolder strokes. So a statistic of which neither way is worse
is named only while the reward pays for the way that it goes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from burnish.alarms.record import Alarm, Row, amount, number
from burnish.options import AlarmOptions

FIRST, LAST = 2, 2  # updates that the start is the mean of, and those for which a statistic has to have moved
PROMPTS, MOST = (16, 8), (8, 4)  # prompts of each together: where they are fewer it takes more updates, up to these
LEAST, SHARE = 0.05, 0.02  # smaller is nothing: of the start, and of the largest value of a statistic that is at most 1
FAR = 2.0  # standard deviations of the first samples that a mean has to move by, unless the reward pays for it
FALSE_ALARMS = 0.001  # probability, at most, that a statistic raises one at any time though it doesn't change
ENOUGH = 4  # second differences that say something
MEDIAN = 0.6745 * math.sqrt(6)  # median of the absolute second difference of standard normal numbers

RECENT = 5  # updates that a correlation with the reward, and a share of it, is the mean of
SURE = 2.0  # standard errors of a correlation that it is above for certain
ALIKE = 0.3  # correlation, for certain, above which the reward pays for samples that are alike
DOMINANT = 0.9  # share of the reward's differences within prompts
WORSE = 0.5  # standard deviations of the first samples that another reward gets worse by


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
        self._spreads: list[float] = []  # of samples
        self._errors: list[float] = []  # squared standard errors that are known

    def read(self, update: int, row: Row, prefix: str) -> None:
        """Add the metrics of an update, if they are there."""
        mean, std = number(row, f"{prefix}/mean"), number(row, f"{prefix}/std")
        if mean is not None and std is not None:
            self.add(update, mean, std, number(row, f"{prefix}/error"))

    def add(self, update: int, mean: float, std: float, error: float | None) -> None:
        """Args: ``std`` of the samples; ``error`` is the standard error of the mean, None if it is unknown."""
        self.updates.append(update)
        self.means.append(mean)
        self._spreads.append(std)
        self._errors += [] if error is None else [error * error]

    def move(self, far: float) -> Move | None:
        """The move, if each of the last updates is at least ``far`` standard deviations away, and not by chance."""
        if len(self.means) < self.first + self.last:
            return None
        before, now = self._before, sum(self.means[-self.last :]) / self.last
        enough, way = self._enough(far), math.copysign(1.0, now - before)
        if any(way * (mean - before) < enough for mean in self.means[-self.last :]):
            return None
        if abs(now - before) <= self._chance():
            return None
        half = next((n for n in range(len(self.means), 0, -1) if way * (self.means[n - 1] - before) < enough / 2), 0)
        return Move(before, now, self._spread or self._enough(0), self.updates[half])

    def back(self, far: float) -> bool:
        """Whether the mean is less than half of ``far`` standard deviations from where it was, after a move."""
        return all(abs(mean - self._before) < self._enough(far) / 2 for mean in self.means[-self.last :])

    @property
    def _before(self) -> float:
        return sum(self.means[: self.first]) / self.first

    @property
    def _spread(self) -> float:
        return sum(self._spreads[: self.first]) / self.first

    def _enough(self, far: float) -> float:
        """The smallest move that is one, also where the spread of samples is small."""
        return max(far * self._spread, LEAST * abs(self._before), SHARE if 0 <= self._before <= 1 else 0.0)

    def _chance(self) -> float:
        """The largest difference that counts as chance now."""
        from scipy.special import stdtrit  # its quarter of a second is for runs that compare, not for commands

        updates, known = len(self.means), len(self._errors)
        variance = sum(self._errors) / known if known else 0.0
        bends = np.sort(np.abs(np.diff(self.means, n=2)))
        if len(bends) >= ENOUGH:
            variance = max(variance, (bends[(len(bends) - 1) // 2] / MEDIAN) ** 2)
        elif not known:
            return math.inf
        freedom = max((self.prompts - 1) * known, updates - 1)
        share = self.false_alarms / (updates * (updates + 1))
        return float(-stdtrit(freedom, share / 2) * math.sqrt(variance * (1 / self.first + 1 / self.last)))


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
        self._series = Series(prompts, FALSE_ALARMS)
        self._correlations: deque[float] = deque(maxlen=RECENT)
        self._freedom = max(prompts * (samples - 1), 1)
        self._far = FAR

    def add(self, update: int, row: Row) -> None:
        if number(row, f"{self.prefix}/mean") is None or number(row, f"{self.prefix}/std") is None:
            return
        self._series.read(update, row, self.prefix)
        if (correlation := number(row, f"{self.prefix}/reward_correlation")) is not None:
            self._correlations.append(correlation)
        if self.alarm is not None:
            self.alarm = None if self._series.back(self._far) else self.alarm
            return
        for way in self._ways:
            paid = self._paid(way)
            if self._needed is not None and self._correlations and paid <= self._needed:
                continue
            far = FAR * (1 - paid)
            move = self._series.move(far)
            if move is not None and math.copysign(1.0, move.spreads) == way:
                self._far, self.alarm = far, self._raised(move, row, paid)
                return

    def _paid(self, way: float) -> float:
        """How strongly the reward pays for going on: the correlation that it has with the statistic for certain."""
        if not self._correlations:
            return 0.0
        return max(way * self._correlation - SURE / math.sqrt(self._freedom * len(self._correlations)), 0.0)

    @property
    def _correlation(self) -> float:
        return sum(self._correlations) / len(self._correlations)

    def _raised(self, move: Move, row: Row, paid: float) -> Alarm:
        text = f"{self.name} {'rose' if move.spreads > 0 else 'fell'} {_moved(move)}"
        if paid:
            text += f"; the reward pays for it (correlation {self._correlation:+.2f} among samples of a prompt)"
        better, worse = number(row, f"{self.prefix}/better"), number(row, f"{self.prefix}/worse")
        if better is not None and worse is not None:
            text += f"; {amount(better)} where the reward is above its prompt's mean, {amount(worse)} below"
        return Alarm(self.name, "drift", move.since, text, f"{self.prefix}/mean", move.before, move.spread)


class RewardDominance:
    """Watches several rewards that count: one makes all the differences, while another one gets worse."""

    name = "reward_dominance"

    def __init__(self, weights: Mapping[str, float], options: AlarmOptions, *, prompts: int) -> None:
        """Args: ``weights`` of the rewards, whose signs say which way is better."""
        self.weights = dict(weights)
        self.alarm: Alarm | None = None
        self._shares: dict[str, deque[float]] = {name: deque(maxlen=RECENT) for name in weights}
        self._series = {name: Series(prompts, FALSE_ALARMS) for name in weights}

    def add(self, update: int, row: Row) -> None:
        for name, series in self._series.items():
            if (share := number(row, f"critic/{name}/reward_share")) is not None:
                self._shares[name].append(share)
            series.read(update, row, f"critic/{name}")
        shares = {name: sum(recent) / len(recent) for name, recent in self._shares.items() if recent}
        dominant = next((name for name, share in shares.items() if share >= DOMINANT), None)
        self.alarm = None if dominant is None else self._worse(dominant, shares[dominant])

    def _worse(self, dominant: str, share: float) -> Alarm | None:
        """The alarm, if another reward has become worse under this one."""
        for name, series in self._series.items():
            move = series.move(WORSE) if name != dominant else None
            if move is not None and move.spreads * math.copysign(1.0, self.weights[name]) < 0:
                text = (
                    f"{dominant} makes {100 * share:.0f} % of the reward's differences among samples of a prompt, and "
                    f"{name}, which counts too, got worse: {_moved(move)}"
                )
                return Alarm(self.name, "reward", move.since, text, f"critic/{name}/mean", move.before, move.spread)
        return None


def _moved(move: Move) -> str:
    return (
        f"from {amount(move.before)} to {amount(move.now)}, {abs(move.spreads):.1f} standard deviations of the first "
        f"samples, since update {move.since}"
    )
