"""From the verdicts of several rewards to one number per picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from burnish.rewards.base import Reward, Verdict

if TYPE_CHECKING:
    from burnish.types import Scores


def mix(rewards: Mapping[str, Reward], verdicts: Mapping[str, Sequence[Verdict]]) -> Scores:
    """Sum of weight x value. A picture that lacks a value with a weight is missing as a whole.

    Args:
        rewards: by label, in the order of the columns.
        verdicts: one sequence per label, all of length B.

    Returns:
        Scores with a column per reward and per extra of it, named label and label_extra; NaN where there is none.
    """
    import torch

    from burnish.types import Scores

    count = len(next(iter(verdicts.values())))
    total = torch.zeros(count, dtype=torch.float64)
    missing = torch.zeros(count, dtype=torch.bool)
    names: list[str] = []
    columns: list[list[float]] = []
    for label, reward in rewards.items():
        values = [verdict.value for verdict in verdicts[label]]
        names.append(label)
        columns.append([float("nan") if value is None else value for value in values])
        for i, extra in enumerate(reward.extras):
            names.append(f"{label}_{extra}")
            columns.append([v.extras[i] if i < len(v.extras) else float("nan") for v in verdicts[label]])
        if reward.weight:
            missing |= torch.tensor([value is None for value in values])
            total += reward.weight * torch.tensor([value or 0.0 for value in values], dtype=torch.float64)
    return Scores(
        reward=total.float(),
        missing=missing,
        components=torch.tensor(columns).T.contiguous(),
        names=tuple(names),
        notes=[_note(verdicts, i) for i in range(count)],
    )


def _note(verdicts: Mapping[str, Sequence[Verdict]], i: int) -> str:
    said = {label: each[i].note for label, each in verdicts.items() if each[i].note}
    if len(said) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{label}: {note}" for label, note in said.items())
