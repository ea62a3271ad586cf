"""What looks at the metrics of every update: thresholds, one two-sample test, and reward dominance.

The test of the last updates against the first ones may be asked at any time. Updates differ by the prompts and samples
that they happen to have, which the standard errors of their means say; where they differ by more, as where data
alternates, second differences of the means say it, which a steady move leaves alone. After update t a difference counts
as chance unless it is larger than one that chance exceeds with probability ``FALSE_ALARMS / (t (t + 1))``: these add up
to ``FALSE_ALARMS`` over a run.

Learning moves statistics: numbers that become legible have bolder strokes. So a statistic of which neither way is worse
is named only while the reward pays for the way that it goes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean as mean
from statistics import median
from typing import Literal

import numpy as np

from burnish.alarms.record import Alarm, Row, amount, number
from burnish.options import AlarmOptions, Level

FAR = 2.0  # standard deviations of the first samples that a mean has to move by, unless the reward pays for it
FALSE_ALARMS = 0.001  # probability, at most, that a statistic raises one at any time though it doesn't change
IN_A_ROW = 3  # updates for which a metric has to be beyond its limit
FIRST, LAST = 2, 2  # updates that the start is the mean of, and those for which a statistic has to have moved
PROMPTS, MOST = (16, 8), (8, 4)  # prompts of each together: where they are fewer it takes more updates, up to these
LEAST, SHARE = 0.05, 0.02  # smaller is nothing: of the start, and of the largest value of a statistic that is at most 1
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
        self.first = min(max(-(-PROMPTS[0] // prompts), FIRST), MOST[0])
        self.last = min(max(-(-PROMPTS[1] // prompts), LAST), MOST[1])
        self.updates: list[int] = []
        self.means: list[float] = []
        self._spreads: list[float] = []  # of samples
        self._errors: list[float] = []  # squared standard errors that are known

    def add(self, update: int, mean: float | None, std: float | None, error: float | None) -> bool:
        """Add an update, if its mean is known; whether it is.

        Args:
            update: its number.
            mean: of the samples.
            std: of the samples.
            error: standard error of the mean, None if it is unknown.
        """
        if mean is None or std is None:
            return False
        self.updates.append(update)
        self.means.append(mean)
        self._spreads.append(std)
        self._errors += [] if error is None else [error * error]
        return True

    def read(self, update: int, row: Row, prefix: str) -> bool:
        """Add the metrics of an update, the same."""
        return self.add(update, *(number(row, f"{prefix}/{name}") for name in ("mean", "std", "error")))

    def move(self, far: float) -> Move | None:
        """The move, if each of the last updates is at least ``far`` standard deviations away, and not by chance."""
        if len(self.means) < self.first + self.last:
            return None
        before, now = self._before, mean(self.means[-self.last :])
        enough, way = self._enough(far), math.copysign(1.0, now - before)
        if any(way * (mean - before) < enough for mean in self.means[-self.last :]):
            return None
        if abs(now - before) <= self._chance():
            return None
        half = next((n for n in range(len(self.means), 0, -1) if way * (self.means[n - 1] - before) < enough / 2), 0)
        return Move(before, now, mean(self._spreads[: self.first]) or self._enough(0), self.updates[half])

    def back(self, far: float) -> bool:
        """Whether the mean is less than half of ``far`` standard deviations from where it was, after a move."""
        return all(abs(mean - self._before) < self._enough(far) / 2 for mean in self.means[-self.last :])

    @property
    def _before(self) -> float:
        return mean(self.means[: self.first])

    def _enough(self, far: float) -> float:
        """The smallest move that is one, also where the spread of samples is small."""
        before, spread = self._before, mean(self._spreads[: self.first])
        return max(far * spread, LEAST * abs(before), SHARE if before >= 0 else 0.0)

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
        *,
        prompts: int,
        samples: int,
        worse: Literal["higher", "lower"] | None = None,
        alike: bool = False,
    ) -> None:
        """Watch a statistic.

        Args:
            prefix: of its metrics, as in critic/dark_share.
            prompts: of an update.
            samples: of a prompt.
            worse: the only way that is an alarm, whether the reward pays for it or not; None is either way, where the
                reward pays for it, or where nobody knows that.
            alike: whether it says how alike samples of a prompt are. Right ones are more alike than wrong ones, so
                that any reward pays for that a little.
        """
        self.prefix = prefix
        self.name = prefix.removeprefix("critic/").replace("/", "_")
        self.alarm: Alarm | None = None
        self._ways = {"higher": (1.0,), "lower": (-1.0,), None: (1.0, -1.0)}[worse]
        self._needed = ALIKE if alike else 0.0 if worse is None else None
        self._series = Series(prompts, FALSE_ALARMS)
        self._correlations: deque[float] = deque(maxlen=RECENT)
        self._freedom = max(prompts * (samples - 1), 1)
        self._far = FAR

    def add(self, update: int, row: Row) -> None:
        if not self._series.read(update, row, self.prefix):
            return
        if (correlation := number(row, f"{self.prefix}/reward_correlation")) is not None:
            self._correlations.append(correlation)
        if self.alarm is not None:
            self.alarm = None if self._series.back(self._far) else self.alarm
            return
        for way in self._ways:
            paid = self._paid(way)
            if self._needed is None or not self._correlations or paid > self._needed:
                far = FAR * (1 - paid)
                move = self._series.move(far)
                if move is not None and move.spreads * way > 0:
                    self._far, self.alarm = far, self._raised(move, row, paid)
                    return

    def _paid(self, way: float) -> float:
        """How strongly the reward pays for going on: the correlation that it has with the statistic for certain."""
        known = len(self._correlations)
        return max(way * mean(self._correlations) - SURE / math.sqrt(self._freedom * known), 0.0) if known else 0.0

    def _raised(self, move: Move, row: Row, paid: float) -> Alarm:
        text = f"{self.name} {'rose' if move.spreads > 0 else 'fell'} {_moved(move)}"
        if paid:
            text += f"; the reward pays for it (correlation {mean(self._correlations):+.2f} among samples of a prompt)"
        better, worse = number(row, f"{self.prefix}/better"), number(row, f"{self.prefix}/worse")
        if better is not None and worse is not None:
            text += f"; {amount(better)} where the reward is above its prompt's mean, {amount(worse)} below"
        return Alarm(self.name, "drift", move.since, text, f"{self.prefix}/mean", move.before, move.spread)


class RewardDominance:
    """Watches several rewards that count: one makes all the differences, while another one gets worse."""

    name = "reward_dominance"

    def __init__(self, weights: Mapping[str, float], *, prompts: int) -> None:
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
        self.alarm = None
        for dominant, share in ((name, mean(recent)) for name, recent in self._shares.items() if recent):
            for name, series in self._series.items() if share >= DOMINANT and self.alarm is None else ():
                move = series.move(WORSE) if name != dominant else None
                if move is not None and move.spreads * self.weights[name] < 0:
                    text = (
                        f"{dominant} makes {100 * share:.0f} % of the reward's differences among samples of a prompt, "
                        f"and {name}, which counts too, got worse: {_moved(move)}"
                    )
                    metric = f"critic/{name}/mean"
                    self.alarm = Alarm(self.name, "reward", move.since, text, metric, move.before, move.spread)
                    break


def _moved(move: Move) -> str:
    return (
        f"from {amount(move.before)} to {amount(move.now)}, {abs(move.spreads):.1f} standard deviations of the first "
        f"samples, since update {move.since}"
    )


ROUNDING = 5e-4  # of a log-prob: bfloat16 alone made up to 2e-4, and 1e-3 are ten clip ranges of a generator
USUAL = 20  # updates that the usual size of a metric is the median of


@dataclass(frozen=True)
class Limit:
    """What a metric is compared with, and what it means where it is outside."""

    metric: str
    limit: float
    side: Literal["above", "below"]
    what: str  # is {now}
    means: str
    against: Literal["nothing", "start", "recent"] = "nothing"  # "start": as a multiple of the first updates' mean
    value: Callable[[Row, str], float | None] = number


def _distance(row: Row, name: str, *, of: float = 0.0) -> float | None:
    value = number(row, name)
    return None if value is None else abs(value - of)


def _at_equal_weights(row: Row, name: str) -> float | None:
    """None where the samples are older than the weights that learn, which then differ by what was learned since.

    0 where log-probs agree to rounding in their own units, those of ratios: steps with hardly any noise make hundreds
    of nats of that.
    """
    if number(row, "pipeline/staleness/max"):
        return None
    apart = number(row, "rollout_corr/log_ppl_abs_diff")
    return 0.0 if apart is not None and apart < ROUNDING else _distance(row, name)


def _applied(row: Row, name: str) -> float | None:
    """Of the weights that are applied: those of whole denoising steps, before their bounds, share little by nature."""
    applied = number(row, name.replace("eff_sample_size", "applied_eff_sample_size"))
    return number(row, name) if applied is None else applied


def _range(row: Row, name: str) -> float | None:
    most, least = number(row, f"{name}/max"), number(row, f"{name}/min")
    return None if most is None or least is None else most - least


def _solved(row: Row, name: str) -> float | None:
    """None where all rewards are equal, which is another alarm."""
    return number(row, name) if _range(row, "critic/rewards") != 0 else None


LIMITS: dict[Level, Limit] = {
    "missing_rewards": Limit(
        "critic/missing_ratio", 0.05, "above", "the share of samples without a reward",
        "they are left out, and what is learned leans to those that could be scored; failures.jsonl says why",
    ),
    "constant_reward": Limit(
        "critic/rewards", 1e-6, "below", "the difference between the highest and the lowest reward",
        "nothing can be learned from equal rewards; look whether the scorer answers at all", value=_range,
    ),
    "saturation": Limit(
        "critic/rewards/solved_ratio", 0.98, "above",
        "the share of prompts all of whose samples have the highest reward",
        "nothing is left to learn here: harder prompts, or a reward that asks for more", value=_solved,
    ),
    "group_collapse": Limit(
        "critic/rewards/dead_ratio", 0.8, "above",
        "the share of prompts all of whose samples have the same reward, which is not the highest",
        "they teach nothing: more samples of a prompt (rollout.n), easier prompts, or a finer reward",
    ),
    "ratio": Limit(
        "actor/ratio_mean", 0.1, "above", "the distance of the mean probability ratio from 1",
        "what is trained is not what sampled: lower optimizer.lr, or take fewer steps per update",
        value=partial(_distance, of=1.0),
    ),
    "mismatch": Limit(
        "rollout_corr/kl", 0.1, "above", "the KL between sampler and trainer in nats",
        "they disagree about the same weights: see precision and importance correction", value=_at_equal_weights,
    ),
    "clip_fraction": Limit(
        "actor/pg_clipfrac", 0.8, "above", "the clip fraction",
        "most samples teach nothing: lower optimizer.lr, take fewer steps per update, or widen algorithm.clip",
    ),
    "kl": Limit(
        "actor/ppo_kl", 0.2, "above", "the KL of an update in nats",
        "steps are too large: lower optimizer.lr, or take fewer per update", value=_distance,
    ),
    "stale_samples": Limit(
        "rollout_corr/rollout_is_eff_sample_size", 0.3, "below", "the effective sample size as a fraction",
        "samples are too old for these weights: lower async_rollout.max_staleness", value=_applied,
    ),
    "velocity": Limit(
        "actor/velocity_norm_ratio", 0.5, "above",
        "the distance from 1 of the norm of predictions over the reference's",
        "predictions grow or shrink before images fall apart: lower optimizer.lr, raise algorithm.kl_coef",
        value=partial(_distance, of=1.0),
    ),
    "forecast": Limit(
        "rollout/forecast_error", 0.5, "above", "the relative error of steps that are forecast",
        "samples are not those of the policy any more: lower rollout.cache_interval",
    ),
    "fp8": Limit(
        "rollout/fp8_error", 0.2, "above", "the relative error of predictions in fp8",
        "samples are not those of the policy any more: remove rollout.fp8",
    ),
    "entropy_collapse": Limit(
        "actor/entropy", 0.05, "below", "the policy's entropy, as a multiple of what it was,",
        "nothing is tried any more: raise rollout.temperature or algorithm.entropy_coef", against="start",
    ),
    "entropy_growth": Limit(
        "actor/entropy", 3.0, "above", "the policy's entropy, as a multiple of what it was,",
        "it comes apart: lower optimizer.lr or algorithm.entropy_coef", against="start",
    ),
    "variety_collapse": Limit(
        "critic/diversity", 0.2, "below", "the variety within a prompt, as a multiple of what it was,",
        "samples of a prompt are nearly the same: raise algorithm.kl_coef, or stop earlier", against="start",
    ),
    "gradient": Limit(
        "actor/grad_norm", 10.0, "above", f"the gradient norm, as a multiple of the median of {USUAL} updates before,",
        "lower optimizer.lr, or optimizer.max_grad_norm", against="recent",
    ),
    "unfamiliar_form": Limit(
        "response/unfamiliar_form", 0.5, "above", "the share of responses whose form hardly any of the first ones had",
        "look whether that is the form you ask for",
    ),
}  # fmt: skip


class Threshold:
    """Watches one metric."""

    def __init__(self, name: Level, options: AlarmOptions, *, of: str | None = None) -> None:
        """Args: ``of`` is a reward whose mean is watched by this rule, in place of the rule's own metric."""
        self.name: str = name if of is None else f"{of}_collapse"
        self.alarm: Alarm | None = None
        self.rule = LIMITS[name]
        if of is not None:
            self.rule = replace(self.rule, metric=f"critic/{of}/mean")
        self.limit = options.limits.get(name, self.rule.limit)
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=USUAL)
        self._outside: list[int] = []  # the last updates that were outside the band

    def add(self, update: int, row: Row) -> None:
        value = self.rule.value(row, self.rule.metric)
        if value is None:
            return
        compared = self._compared(value)
        if len(self._first) < FIRST:
            self._first.append(value)
        if compared is None or not (compared > self.limit if self.rule.side == "above" else compared < self.limit):
            self._outside, self.alarm = [], None
            self._recent.append(value)  # what is outside would become usual
            return
        self._outside.append(update)
        if self.alarm is None and len(self._outside) >= IN_A_ROW:
            self.alarm = self._raised(value, compared)

    def _compared(self, value: float) -> float | None:
        """The value as it is compared with the limit; None as long as it can't be."""
        match self.rule.against:
            case "start":
                start = sum(self._first) / FIRST
                return value / start if len(self._first) == FIRST and start > 0 else None
            case "recent":
                usual = median(self._recent) if len(self._recent) == USUAL else 0.0
                return value / usual if usual > 0 else None
        return value

    def _raised(self, value: float, compared: float) -> Alarm:
        rule, since = self.rule, self._outside[0]
        text = (
            f"{rule.what} is {amount(compared)} ({rule.side} {self.limit:g} for {len(self._outside)} updates in a row, "
            f"since update {since})"
        )
        before = sum(self._first) / len(self._first)
        if since > FIRST:
            text += f"; in the first updates {rule.metric} was {amount(before)}, now {amount(value)}"
        return Alarm(self.name, "level", since, f"{text}; {rule.means}", rule.metric, before)
