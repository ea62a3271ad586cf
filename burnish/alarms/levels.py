"""Metrics that are outside their band for several updates in a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from burnish.alarms.drift import FIRST
from burnish.alarms.record import Alarm, Row, amount, number
from burnish.options import AlarmOptions, Level

ROUNDING = 5e-4  # of a log-prob: bfloat16 alone made up to 2e-4, and 1e-3 are ten clip ranges of a generator
IN_A_ROW = 3  # updates for which a metric has to be beyond its limit
RECENT = 20  # updates that the usual size of a metric is the median of


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


def _from_one(row: Row, name: str) -> float | None:
    value = number(row, name)
    return None if value is None else abs(value - 1)


def _size(row: Row, name: str) -> float | None:
    value = number(row, name)
    return None if value is None else abs(value)


def _at_equal_weights(row: Row, name: str) -> float | None:
    """None where the samples are older than the weights that learn, which then differ by what was learned since.

    0 where log-probs agree to rounding in their own units, those of ratios: steps with hardly any noise make hundreds
    of nats of that.
    """
    if number(row, "pipeline/staleness/max"):
        return None
    apart = number(row, "rollout_corr/log_ppl_abs_diff")
    return 0.0 if apart is not None and apart < ROUNDING else _size(row, name)


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
        "what is trained is not what sampled: lower optimizer.lr, or take fewer steps per update", value=_from_one,
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
        "steps are too large: lower optimizer.lr, or take fewer per update", value=_size,
    ),
    "stale_samples": Limit(
        "rollout_corr/rollout_is_eff_sample_size", 0.3, "below", "the effective sample size as a fraction",
        "samples are too old for these weights: lower async_rollout.max_staleness", value=_applied,
    ),
    "velocity": Limit(
        "actor/velocity_norm_ratio", 0.5, "above",
        "the distance from 1 of the norm of predictions over the reference's",
        "predictions grow or shrink before pictures fall apart: lower optimizer.lr, raise algorithm.kl_coef",
        value=_from_one,
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
        "actor/grad_norm", 10.0, "above", f"the gradient norm, as a multiple of the median of {RECENT} updates before,",
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
        self.rule, self.updates = LIMITS[name], IN_A_ROW
        if of is not None:
            self.rule = replace(self.rule, metric=f"critic/{of}/mean")
        self.limit = options.limits.get(name, self.rule.limit)
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
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
        if self.alarm is None and len(self._outside) >= self.updates:
            self.alarm = self._raised(value, compared)

    def _compared(self, value: float) -> float | None:
        """The value as it is compared with the limit; None as long as it can't be."""
        match self.rule.against:
            case "start":
                start = sum(self._first) / FIRST
                return value / start if len(self._first) == FIRST and start > 0 else None
            case "recent":
                usual = median(self._recent) if len(self._recent) == RECENT else 0.0
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
