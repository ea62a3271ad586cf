"""How the values of several rewards become one: their weighted sum or product, or what a function of the user says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from burnish.options.mixing import Gate, MixingOptions
from burnish.rewards.base import AnyReward, Verdict
from burnish.rewards.calls import LARGEST, failed, missing
from burnish.types.prompt import Prompts
from burnish.utils.errors import UserError
from burnish.utils.user_code import load_object

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.prompt import Prompt
    from burnish.types.rollout import Scores

SUM = MixingOptions()


def component_names(rewards: Mapping[str, AnyReward]) -> tuple[str, ...]:
    """The columns of Scores.components: each reward's label, followed by its extras as label_extra.

    Raises:
        UserError: two columns would have the same name.
    """
    names = [name for label, reward in rewards.items() for name in (label, *(f"{label}_{e}" for e in reward.extras))]
    for name in names:
        if names.count(name) > 1:
            raise _twice(name)
    return tuple(names)


def mix(
    rewards: Mapping[str, AnyReward],
    verdicts: Mapping[str, Sequence[Verdict]],
    prompts: Sequence[Prompt],
    mixing: MixingOptions = SUM,
    update: int = 0,
) -> Scores:
    """The reward of every sample. It is missing if a reward with a weight has no value for the sample.

    Rewards that don't apply to a sample add nothing; a sample to which none with a weight applies is missing.

    Args:
        rewards: by label, in the order of the columns.
        verdicts: by label, each of length B.
        prompts: [B].
        mixing: the rule.
        update: the policy update, which weights may depend on; 0 is a validation.

    Returns:
        Scores with a column per reward and per extra, named label and label_extra; NaN where missing.
    """
    import torch

    from burnish.types.rollout import Scores

    names = component_names(rewards)
    columns = [one for label in rewards for one in _columns(label, rewards[label], verdicts, prompts, update)]
    values, counted, applied = zip(*columns, strict=True)
    value, weight = (torch.tensor(some, dtype=torch.float64).T.contiguous() for some in (counted, applied))
    rows = [{label: verdicts[label][i] for label in rewards} for i in range(len(prompts))]
    further = [_further(row, names) for row in rows]
    total, reasons = combined(value, weight, mixing), _reasons(value, weight, names, mixing)
    if mixing.path is not None:
        known = [dict(zip(names, row, strict=True)) | more for row, more in zip(value.tolist(), further, strict=True)]
        used = [dict(zip(names, row, strict=True)) for row in weight.tolist()]
        total, reasons = _by_function(mixing.path, known, used, prompts)
    noted = [row | ({"mixing": why} if why.note else {}) for row, why in zip(rows, reasons, strict=True)]
    shares = [_shares(row, rewards, dict(zip(names, own, strict=True)), mixing)
              for row, own in zip(rows, weight.tolist(), strict=True)]  # fmt: skip
    return Scores(
        reward=total.float(),
        missing=total.isnan(),
        components=torch.tensor(values, dtype=torch.float32).T.contiguous(),
        counted=value,
        applied=weight,
        names=names,
        weights=tuple(w for reward in rewards.values() for w in (reward.weight, *[0.0] * len(reward.extras))),
        further=further,
        answers=[{label: one.answer for label, one in row.items() if one.answer is not None} for row in rows],
        notes=[_note({label: verdict.note for label, verdict in row.items()}) for row in noted],
        faults=[_fault(row) for row in noted],
        steps=[_steps(row, share) for row, share in zip(rows, shares, strict=True)],
        tokens=[_tokens(row, share) for row, share in zip(rows, shares, strict=True)],
    )


def _columns(
    label: str,
    reward: AnyReward,
    verdicts: Mapping[str, Sequence[Verdict]],
    prompts: Sequence[Prompt],
    update: int,
) -> Iterator[tuple[list[float], list[float], list[float]]]:
    """Of a reward, then of each of its extras: the values, what a cap and a gate leave of them, and the weights."""
    own = verdicts[label]
    values = [nan if verdict.value is None else verdict.value for verdict in own]
    weights = [
        reward.weight_for(prompt, update) if verdict.asked else 0.0
        for verdict, prompt in zip(own, prompts, strict=True)
    ]
    yield values, _counted(values, reward, verdicts), weights
    for number in range(len(reward.extras)):
        extra = [nan if verdict.value is None else verdict.extras[number] for verdict in own]
        yield extra, extra, [0.0] * len(own)


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
    if any(reward.weight_by for reward in rewards.values()):
        for prompt in prompts:
            if not any(reward.judges(prompt) and reward.weight_for(prompt, 0) for reward in rewards.values()):
                raise UserError(
                    f"no reward has a weight other than 0 for {prompt.name} with label {prompt.label!r} and data "
                    f"source {prompt.source!r}; give one in its weight_by"
                )
    if mixing.path is not None:
        _check_function(mixing.path)


def _check_function(path: str) -> None:
    import inspect

    function = load_object(path, "mixing function")
    try:
        inspect.signature(function).bind({}, {}, None)
    except TypeError as error:
        raise UserError(
            f"mixing.path is {path}, which is called as function(values, weights, prompt): {error}; change its "
            "parameters"
        ) from None
    except ValueError:  # written in C: only a call can tell
        return


def _counted(values: Sequence[float], reward: AnyReward, verdicts: Mapping[str, Sequence[Verdict]]) -> list[float]:
    """What a reward's values count as."""
    cap, gate = reward.cap, reward.gate
    capped = list(values) if cap is None else [value if value != value else min(value, cap) for value in values]
    if gate is None:
        return capped
    return [
        nan if _unknown(one) else value if _is_open(gate, one) else gate.otherwise
        for value, one in zip(capped, verdicts[gate.by], strict=True)
    ]


def _unknown(deciding: Verdict) -> bool:
    return deciding.asked and deciding.value is None


def _is_open(gate: Gate, deciding: Verdict) -> bool:
    """Whether a gate is open; one whose reward doesn't apply to the prompt stands open."""
    return not deciding.asked or (deciding.value is not None and deciding.value >= gate.least)


def _reasons(counted: Tensor, applied: Tensor, names: Sequence[str], mixing: MixingOptions) -> list[Verdict]:
    """Why the rule itself has no value for a sample, as the note of a verdict; "" for all others."""
    if mixing.rule != "product":
        return [missing("")] * len(counted)
    below = ((counted < 0) & (applied != 0)).tolist()
    first = [next((name for name, negative in zip(names, row, strict=True) if negative), "") for row in below]
    return [missing(name and f"{name} is below 0, which a product can't count") for name in first]


def _by_function(
    path: str,
    known: Sequence[Mapping[str, float]],
    weights: Sequence[Mapping[str, float]],
    prompts: Sequence[Prompt],
) -> tuple[Tensor, list[Verdict]]:
    """What the user's function makes of each sample's values, and where it has none, why."""
    import torch

    function: Callable[..., Any] = load_object(path, "mixing function")
    found, whys = [], []
    for values, own, prompt in zip(known, weights, prompts, strict=True):
        number, why = nan, missing("")
        try:
            given = function({name: None if v != v else v for name, v in values.items()}, dict(own), prompt)
            number = nan if given is None else float(given)
            if not math.isfinite(number) or abs(number) > LARGEST:
                number, why = nan, missing(f"{path} gave {given}")
        except (Exception, SystemExit) as error:
            why = failed(error)
        found.append(number)
        whys.append(why)
    return torch.tensor(found, dtype=torch.float64), whys


def _further(verdicts: Mapping[str, Verdict], names: Sequence[str]) -> dict[str, float]:
    """A sample's further values, as label_name."""
    found = {f"{label}_{name}": value for label, one in verdicts.items() for name, value in one.named.items()}
    for name in found:
        if name in names:
            raise _twice(name)
    return found


def _twice(name: str) -> UserError:
    return UserError(f"two rewards report {name!r}; rename one of them under rewards")


def _shares(
    verdicts: Mapping[str, Verdict],
    rewards: Mapping[str, AnyReward],
    weights: Mapping[str, float],
    mixing: MixingOptions,
) -> dict[str, float]:
    """The weights of the rewards that give values of steps or tokens, where these are parts of the sum."""
    found = {}
    for label, verdict in verdicts.items():
        gate = rewards[label].gate
        shut = gate is not None and not _is_open(gate, verdicts[gate.by])
        if (verdict.steps or verdict.tokens) and mixing.sums and weights[label] and not shut:
            found[label] = weights[label]
    return found


def _steps(verdicts: Mapping[str, Verdict], shares: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """What of a sum belongs to steps of a response, by the character where each ends."""
    found: dict[int, float] = {}
    for label, weight in shares.items():
        for end, value in verdicts[label].steps:
            found[end] = found.get(end, 0.0) + weight * value
    return tuple(sorted(found.items()))


def _tokens(verdicts: Mapping[str, Verdict], shares: Mapping[str, float]) -> tuple[float, ...]:
    """What of a sum belongs to the tokens of a response; () if nothing does."""
    found: list[float] = []
    for label, weight in shares.items():
        each = [weight * value for value in verdicts[label].tokens]
        found = [one + more for one, more in zip(found, each, strict=True)] if found and each else found or each
    return tuple(found)


def _note(notes: Mapping[str, str]) -> str:
    given = {label: note for label, note in notes.items() if note}
    if len(given) == 1:
        return next(iter(given.values()))
    return "; ".join(f"{label}: {note}" for label, note in given.items())


def _fault(verdicts: Mapping[str, Verdict]) -> str:
    """Label and reason of the first reward that failed, followed by the traceback if it raised."""
    for label, verdict in verdicts.items():
        if verdict.fault:
            trace = f"\n{verdict.fault}" if "\n" in verdict.fault else ""
            return f"{label}: {' '.join(verdict.note.split())}{trace}"
    return ""
