"""How the values of several rewards become one: their weighted sum or product, or what a function of the user says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import field_validator, model_validator

from burnish.options import SAMPLED, Positive, Rules
from burnish.registry import options
from burnish.rewards.base import AnyReward, Gate, Score
from burnish.rewards.calls import LARGEST, failed
from burnish.types.prompt import Prompts
from burnish.utils.errors import UserError
from burnish.utils.user_code import load_object, names_code

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.config.run import RunConfig
    from burnish.types.prompt import Prompt
    from burnish.types.rollout import Scores


RULES = ("sum", "product")


@options
class NormaliseOptions:
    """Running normalisation: each reward minus its mean over the run so far, over its standard deviation."""

    floor: Positive = 1e-3
    """Least standard deviation that a reward is divided by, so that one which is nearly always the same stays small."""


@options
class MixingOptions:
    """How the values of several rewards become the one that is optimised."""

    rule: str = "sum"
    """sum: of weight x value. product: of value to the power of weight, for values of at least 0, so that a sample has
    to be good at everything. Or a function of yours, package.module:function or path/to/file.py:function: called for
    each sample with values and weights (dicts by label) and its prompt, it returns the reward, or None where there is
    none."""
    normalise: Annotated[NormaliseOptions | None, SAMPLED] = None
    """Normalise each reward before the rule; null takes values as they are. The statistics are those of all samples of
    all ranks, saved in checkpoints, and never moved by validation, which counts in units of the run's first one."""

    @field_validator("rule")
    @classmethod
    def _is_a_rule(cls, value: str) -> str:
        if value not in RULES and not names_code(value):
            raise ValueError(f"rule is {value}; it must be sum, product, or a function: file.py:NAME")
        return value

    @model_validator(mode="after")
    def _sums_alone_are_normalised(self) -> Self:
        if self.normalise is not None and self.rule != "sum":
            raise ValueError(
                f"normalise makes half of all values negative, and is for sums alone; leave rule {self.rule} out"
            )
        return self

    @property
    def path(self) -> str | None:
        """Where the user's function is, if that is the rule."""
        return None if self.rule in RULES else self.rule

    @property
    def sums(self) -> bool:
        """Whether the reward is the weighted sum of values as they are, of which parts can be told apart."""
        return self.rule == "sum" and self.normalise is None

    def _of_reward(self, run: RunConfig, label: str, reward: Any) -> Rules:
        """What is wrong with how one reward counts."""
        others = [name for name in run.rewards if name != label]
        option, gate = f"rewards.{label}", reward.gate
        modifiers = {name: vars(reward).get(name) for name in ("schedule", "cap", "gate", "stream")}
        stream = modifiers["stream"]
        weighs = {"kl_coef": "set algorithm.kl_coef=0.01", "kl": "set algorithm.kl.coef=0.001"}
        known = [weighs[name] for name in weighs if name in vars(run.algorithm) and run.algorithm.gates_kl]
        return [
            (
                gate is not None and gate.by not in others,
                f"{option}.gate.by is {gate and gate.by}; it must be the label of another reward: "
                f"{', '.join(others) or 'there is none'}",
            ),
            *(
                (
                    value is not None and not reward.counts and self.path is None,
                    f"{option}.{name} is given, but its weight is 0, so that it never counts; remove it",
                )
                for name, value in modifiers.items()
            ),
            (
                stream is not None and not getattr(run.algorithm, "by_stream", False),
                f"{option}.stream is {stream}, but {run.algorithm.name} has one advantage for all streams; choose "
                "flow_grpo or diffusion_nft, or leave stream out",
            ),
            (
                stream is not None and (not self.sums or getattr(run.algorithm, "bypasses", False)),
                f"{option}.stream is {stream}: each stream has a sum of rewards and a ratio of its own; leave out "
                "mixing.rule, mixing.normalise and algorithm.rollout_correction.mode=bypass, or stream",
            ),
            (
                reward.hold is not None and not (run.algorithm.gates_kl and run.algorithm.kl_option),
                f"{option}.hold is given, but {run.algorithm.name} has no KL to the reference that could count more "
                f"for single samples; {[*known, 'choose another algorithm'][0]}, or remove it",
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
        modified = any(one.weight_by or one.schedule or one.cap is not None or one.gate for one in counting.values())
        plain = self.sums and not modified
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
                f"mixing.rule is product, but {', '.join(counting)} is the only reward with a weight; remove it",
            ),
            (
                getattr(run.algorithm, "advantage_aggregation", "sum") != "sum" and not self.sums,
                f"{'mixing.normalise' if normalise else 'mixing.rule'} is given, but "
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


SUM = MixingOptions()


def component_names(rewards: Mapping[str, AnyReward]) -> tuple[str, ...]:
    """The columns of Scores.components: each reward's label, followed by its further numbers as label_name.

    Raises:
        UserError: two columns would have the same name.
    """
    names = [
        name for label, reward in rewards.items() for name in (label, *(f"{label}_{name}" for name in reward.numbers))
    ]
    if twice := [name for name in names if names.count(name) > 1]:
        raise _twice(twice[0])
    return tuple(names)


def mix(
    rewards: Mapping[str, AnyReward],
    scores: Mapping[str, Sequence[Score]],
    prompts: Sequence[Prompt],
    mixing: MixingOptions = SUM,
    update: int = 0,
) -> Scores:
    """The reward of every sample. It is missing if a reward with a weight has no value for the sample.

    Rewards that don't apply to a sample add nothing; a sample to which none with a weight applies is missing.

    Args:
        rewards: by label, in the order of the columns.
        scores: by label, each of length B.
        prompts: [B].
        mixing: the rule.
        update: the policy update, which weights may depend on; 0 is a validation.

    Returns:
        Scores with a column per reward and per number that it declares, named label and label_name; NaN where missing.
    """
    import torch

    from burnish.types.rollout import Scores

    names = component_names(rewards)
    columns: list[tuple[list[float], list[float], list[float]]] = []  # values, what counts of them, and weights
    streams = [vars(reward).get("stream") for reward in rewards.values() for _ in ("", *reward.numbers)]
    kl_factor = [1.0] * len(prompts)
    for label, reward in rewards.items():
        values = [nan if score.value is None else score.value for score in scores[label]]
        weights = [reward.weight_for(prompt, update) if score.applicable else 0.0
                   for score, prompt in zip(scores[label], prompts, strict=True)]  # fmt: skip
        columns.append((values, _counted(values, reward, scores), weights))
        for name in reward.numbers:
            further = [nan if score.value is None else score.numbers[name] for score in scores[label]]
            columns.append((further, further, [0.0] * len(further)))
        if reward.hold is not None:
            kl_factor = [max(pair) for pair in zip(kl_factor, map(reward.hold.of, values), strict=True)]
    components, counted, applied = zip(*columns, strict=True)
    value, weight = (torch.tensor(column, dtype=torch.float64).T.contiguous() for column in (counted, applied))
    rows = [dict(zip(rewards, row, strict=True)) for row in zip(*(scores[label] for label in rewards), strict=True)]
    more = [_further(row, rewards, names) for row in rows]
    weighted = [dict(zip(names, row, strict=True)) for row in zip(*applied, strict=True)]
    total = combined(value, weight, mixing)
    whys: dict[int, Score] = {}  # why the rule itself has no value for a sample
    if mixing.path is not None:
        known = [dict(zip(names, row, strict=True)) | one
                 for row, one in zip(zip(*counted, strict=True), more, strict=True)]  # fmt: skip
        total, whys = _by_function(mixing.path, known, weighted, prompts)
    elif mixing.rule == "product":
        for row, column in ((value < 0) & (weight != 0)).nonzero().tolist():
            whys.setdefault(row, Score(None, f"{names[column]} is below 0, which a product can't count"))
    beyond = total.abs() > LARGEST
    for row in beyond.nonzero().flatten().tolist():
        whys[row] = Score(None, f"the reward is {float(total[row]):g}, which is not a finite number in float32")
    total = total.masked_fill(beyond, nan)
    noted = [row | ({"mixing": whys[number]} if number in whys else {}) for number, row in enumerate(rows)]
    parts = [_parts(row, rewards, own, mixing) for row, own in zip(rows, weighted, strict=True)]
    return Scores(
        reward=total.float(),
        missing=total.isnan(),
        components=torch.tensor(components, dtype=torch.float32).T.contiguous(),
        counted=value,
        applied=weight,
        names=names,
        weights=tuple(w for reward in rewards.values() for w in (reward.weight, *[0.0] * len(reward.numbers))),
        streams=tuple(streams) if any(streams) else (),
        further=more,
        answers=[{label: score.answer for label, score in row.items() if score.answer is not None} for row in rows],
        notes=list(map(_note, noted)),
        faults=list(map(_fault, noted)),
        steps=[steps for steps, _ in parts],
        tokens=[tokens for _, tokens in parts],
        kl_factor=kl_factor,
    )


def combined(counted: Tensor, applied: Tensor, mixing: MixingOptions) -> Tensor:
    """The sum or product of values [B, R] by their weights [B, R], both float64: [B], NaN where it is missing."""
    import torch

    used = applied != 0
    product = mixing.rule == "product"
    total = torch.full(counted.shape[:1], float(product), dtype=torch.float64)
    for value, weight, own in zip(counted.unbind(1), applied.unbind(1), used.unbind(1), strict=True):
        # NaN stays NaN
        if product:
            total = total * torch.where(own, value.masked_fill(value < 0, nan) ** weight, 1.0)
        else:
            total += torch.where(own, weight * value, 0.0)
    total[~used.any(1)] = nan
    return total


def check_mixing(rewards: Mapping[str, AnyReward], mixing: MixingOptions, prompts: Prompts) -> None:
    """Refuse weights for what no prompt is, prompts that nothing counts for, and a function that can't be called.

    Raises:
        UserError: with the option, or with the first such prompt.
    """
    known = sorted({name for prompt in prompts.kinds for name in (prompt.source, prompt.label) if name is not None})
    for label, reward in rewards.items():
        for name in reward.weight_by:
            if name not in known:
                raise UserError(
                    f"rewards.{label}.weight_by names {name!r}, but no prompt has that label or data source; they have "
                    f"{', '.join(known)}"
                )
    counting = [reward for reward in rewards.values() if reward.counts]
    labels = sorted({label for reward in counting for label in vars(reward).get("labels", ())})
    for prompt in prompts.kinds if labels or any(reward.weight_by for reward in counting) else ():
        weights = [reward.weight_for(prompt, 0) if reward.weight_by else 1.0
                   for reward in counting if reward.applies_to(prompt)]  # fmt: skip
        if not any(weights):
            raise UserError(
                f"no reward has a weight other than 0 for {prompt.name} with label {prompt.label!r} and data source "
                f"{prompt.source!r}; give one in its weight_by, or add a reward without labels or with this one "
                f"(labels of rewards: {', '.join(labels) or 'none'})"
            )
    if mixing.path is None:
        return
    function = load_object(mixing.path, "mixing function")
    try:
        inspect.signature(function).bind({}, {}, None)
    except (TypeError, ValueError) as error:  # the latter of one written in C
        raise UserError(
            f"mixing.rule is {mixing.path}, which is called as function(values, weights, prompt): {error}; change its "
            "parameters"
        ) from None


def _counted(values: list[float], reward: AnyReward, scores: Mapping[str, Sequence[Score]]) -> list[float]:
    """What a cap and a gate leave of a reward's values."""
    cap, gate = reward.cap, reward.gate
    if cap is not None:
        values = [min(value, cap) for value in values]  # NaN stays NaN
    if gate is None:
        return values
    return [
        nan if score.applicable and score.value is None else value if _is_open(gate, score) else gate.otherwise
        for value, score in zip(values, scores[gate.by], strict=True)
    ]


def _is_open(gate: Gate, deciding: Score) -> bool:
    """Whether a gate is open; one whose reward doesn't apply to the prompt stands open."""
    return not deciding.applicable or (deciding.value is not None and deciding.value >= gate.least)


def _by_function(
    path: str,
    known: Sequence[Mapping[str, float]],
    weights: Sequence[Mapping[str, float]],
    prompts: Sequence[Prompt],
) -> tuple[Tensor, dict[int, Score]]:
    """What the user's function makes of each sample's values, and where it fails, why."""
    import torch

    function: Callable[..., Any] = load_object(path, "mixing function")
    rewards, whys = [], {}
    for row, (values, own, prompt) in enumerate(zip(known, weights, prompts, strict=True)):
        number = nan
        try:
            given = function({name: None if v != v else v for name, v in values.items()}, dict(own), prompt)
            number = nan if given is None else float(given)
            if given is not None and not abs(number) <= LARGEST:
                number, whys[row] = nan, Score(None, f"{path} gave {given}")
        except (Exception, SystemExit) as error:
            whys[row] = failed(error)
        rewards.append(number)
    return torch.tensor(rewards, dtype=torch.float64), whys


def _further(scores: Mapping[str, Score], rewards: Mapping[str, AnyReward], names: Sequence[str]) -> dict[str, float]:
    """A sample's numbers that its rewards don't declare, as label_name."""
    further = {
        f"{label}_{name}": value
        for label, score in scores.items()
        for name, value in score.numbers.items()
        if name not in rewards[label].numbers
    }
    for name in further:
        if name in names:
            raise _twice(name)
    return further


def _twice(name: str) -> UserError:
    return UserError(f"two rewards report {name!r}; rename one of them under rewards")


def _parts(
    scores: Mapping[str, Score],
    rewards: Mapping[str, AnyReward],
    weights: Mapping[str, float],
    mixing: MixingOptions,
) -> tuple[tuple[tuple[int, float], ...], tuple[float, ...]]:
    """What of a sum belongs to steps of a response, by the character where each ends, and what to its tokens."""
    steps: dict[int, float] = {}
    tokens: list[float] = []
    for label, score in scores.items() if mixing.sums else ():
        weight, gate = weights[label], rewards[label].gate
        if not weight or (gate is not None and not _is_open(gate, scores[gate.by])):
            continue
        for end, value in score.steps:
            steps[end] = steps.get(end, 0.0) + weight * value
        each = [weight * value for value in score.tokens]
        tokens = [value + more for value, more in zip(tokens, each, strict=True)] if tokens and each else tokens or each
    return tuple(sorted(steps.items())), tuple(tokens)


def _note(scores: Mapping[str, Score]) -> str:
    notes = [(label, score.note) for label, score in scores.items() if score.note]
    return notes[0][1] if len(notes) == 1 else "; ".join(f"{label}: {note}" for label, note in notes)


def _fault(scores: Mapping[str, Score]) -> str:
    """Label and reason of the first reward that failed, followed by the traceback if it raised."""
    for label, score in scores.items():
        if score.fault:
            trace = f"\n{score.fault}" if "\n" in score.fault else ""
            return f"{label}: {' '.join(score.note.split())}{trace}"
    return ""
