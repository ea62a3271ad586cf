"""How several rewards become one: options of a single reward, and the section of them all."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.options import SAMPLED, Count, Finite, NonNegative, Positive, Rules
from burnish.registry import options

if TYPE_CHECKING:
    from burnish.config.run import RunConfig


@options
class Schedule:
    """A factor on a reward's weight that changes over the policy updates."""

    points: Annotated[list[tuple[Count, NonNegative]], Field(min_length=1)]
    """Updates with the factor at each: [[1, 0.0], [200, 1.0]] fades a reward in. Before the first and after the last
    one it stays the same. Validation always counts with the last one, so that validations can be compared."""
    between: Literal["linear", "hold"] = "linear"
    """Between two updates: linear moves from one factor to the next; hold keeps one until the next."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if any(one >= other for (one, _), (other, _) in pairwise(self.points)):
            raise ValueError(f"points is {self.points}; updates must rise from one to the next")
        if not any(factor for _, factor in self.points):
            raise ValueError("points has no factor above 0: the reward would never count; set weight to 0 instead")
        return self

    def factor(self, update: int) -> float:
        """At a policy update; 0 is a validation."""
        last, value = self.points[-1]
        if update == 0 or update >= last:
            return value
        if update <= self.points[0][0]:
            return self.points[0][1]
        (start, before), (end, after) = next(pair for pair in pairwise(self.points) if pair[1][0] > update)
        return before if self.between == "hold" else before + (after - before) * (update - start) / (end - start)


@options
class Gate:
    """A reward that counts only where another one is high enough."""

    by: str
    """Which other reward decides, by its label: format."""
    least: Finite = 1.0
    """From which of its values on the gate is open."""
    otherwise: Finite = 0.0
    """What the reward counts as where the gate is closed, whether it has a value or not."""


@options
class NormaliseOptions:
    """Running normalisation: each reward minus its mean over the run so far, over its standard deviation."""

    floor: Positive = 1e-3
    """Least standard deviation that a reward is divided by, so that one which is nearly always the same stays small."""


@options
class MixingOptions:
    """How the values of several rewards become the one that is optimised."""

    rule: Literal["sum", "product"] = "sum"
    """sum: of weight x value. product: of value to the power of weight, for values of at least 0, so that a sample has
    to be good at everything."""
    path: str | None = None
    """A function of yours in place of the rule, package.module:function or path/to/file.py:function: called for each
    sample with values and weights (dicts by label) and its prompt, it returns the reward, or None where there is
    none."""
    normalise: Annotated[NormaliseOptions | None, SAMPLED] = None
    """Normalise each reward before the rule; null takes values as they are. The statistics are those of all samples of
    all ranks, saved in checkpoints, and never moved by validation, which counts in units of the run's first one."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.path is not None and self.rule != "sum":
            raise ValueError(f"rule is {self.rule}, and path names a function in place of the rule; give one of them")
        if self.normalise is not None and not (self.rule == "sum" and self.path is None):
            what = "path" if self.path is not None else f"rule {self.rule}"
            raise ValueError(f"normalise makes half of all values negative, and is for sums alone; leave {what} out")
        return self

    @property
    def sums(self) -> bool:
        """Whether the reward is the weighted sum of values as they are, of which parts can be told apart."""
        return self.rule == "sum" and self.path is None and self.normalise is None

    def _of_reward(self, run: RunConfig, label: str, reward: Any) -> Rules:
        """What is wrong with how one reward counts."""
        others = [name for name in run.rewards if name != label]
        option, gate = f"rewards.{label}", reward.gate
        modifiers = {name: getattr(reward, name) for name in ("schedule", "cap", "gate")}
        return [
            (
                gate is not None and gate.by not in others,
                f"{option}.gate.by is {gate and gate.by}; it must be the label of another reward: "
                f"{', '.join(others) or 'there is none'}",
            ),
            *(
                (
                    value is not None and not reward.counts and self.path is None,
                    f"{option}.{name} is given, but its weight is 0, so that it never counts; leave it out",
                )
                for name, value in modifiers.items()
            ),
            (
                reward.schedule is not None and not run.online,
                f"{option}.schedule is given, but {run.algorithm.name} samples nothing to score in its updates; leave "
                "it out",
            ),
        ]

    def contradictions(self, run: RunConfig) -> Rules:
        needs, normalise, rule = run.algorithm.needs(), self.normalise is not None, self.rule
        counting = {label: reward for label, reward in run.rewards.items() if reward.counts}
        plain = self.sums and all(reward.is_plain for reward in counting.values())
        negative = [
            label for label, reward in run.rewards.items() if min([reward.weight, *reward.weight_by.values()]) < 0
        ]
        chooses = [section for section in run.grouped_sections if getattr(run.rollout, section) is not None]
        name, modifiers = run.algorithm.name, "weight_by, schedule, cap or gate of a reward"
        return [
            *(one for label, reward in run.rewards.items() for one in self._of_reward(run, label, reward)),
            (
                rule == "product" and negative,
                f"mixing.rule is product and rewards.{', rewards.'.join(negative)} has a negative weight: 0 to that "
                "power is infinite; use a reward that is higher for what is better, or mixing.rule=sum",
            ),
            (
                rule == "product" and len(counting) == 1,
                f"mixing.rule is product, but {', '.join(counting)} is the only reward with a weight; leave it out",
            ),
            (
                getattr(run.algorithm, "advantage_aggregation", "sum") != "sum" and not self.sums,
                f"{'mixing.normalise' if normalise else 'mixing.rule or mixing.path'} is given, but "
                "algorithm.advantage_aggregation normalises each reward within its group and sums them itself; leave "
                "one of the two out",
            ),
            (
                normalise and chooses,
                f"mixing.normalise is given and rollout.{', rollout.'.join(chooses)}, too, which chooses samples by "
                "their rewards before the statistics of the batch are known; leave one of them out",
            ),
            (
                normalise and getattr(needs, "greedy", False),
                f"mixing.normalise is given, but {name} compares with greedy responses, which are not part of the "
                "statistics; use algorithm.reward_norm=true",
            ),
            (
                normalise and getattr(needs, "step_rewards", False),
                "mixing.normalise is given, but algorithm.advantage compares rewards of steps; leave one of them out",
            ),
            (
                getattr(needs, "reward_gradients", False) and not plain,
                f"{name} follows gradients of the weighted sum of rewards; it reads neither mixing nor {modifiers}; "
                "leave these out",
            ),
            (
                getattr(needs, "turn_rewards", False) and not plain,
                "algorithm.turn_rewards is true, which takes the environment's rewards out of a plain sum; leave "
                f"mixing and {modifiers} out",
            ),
        ]
