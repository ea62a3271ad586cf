"""Samples of a data set with their scores, taken as if they had just been made: those of a prompt are a group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.data.records import Record
from burnish.data.values import listed, number_of
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError


@dataclass(frozen=True)
class ScoredGroup:
    """Samples of one prompt, each with its scores."""

    members: tuple[Any, ...]  # records that have a ``prompt`` and ``scores``
    first: int = 0  # number of the first of them among the samples of the prompt in an update

    @property
    def prompt(self) -> Prompt:
        return self.members[0].prompt  # type: ignore[no-any-return]

    @property
    def where(self) -> str:
        return self.prompt.where

    @property
    def uid(self) -> str:
        return self.prompt.uid


def scores_in(record: Record, weights: Mapping[str, float]) -> tuple[float, ...]:
    """The scores of a record, one for each key; NaN where it is null.

    Args:
        record: that has them beside its sample, or under ``components``, as runs keep them.
        weights: keys of data.scores.

    Raises:
        ValueError: it lacks one, or has no number there.
    """
    within = record.values.get("components")
    values = {**(within if isinstance(within, Mapping) else {}), **record.values}
    if absent := [key for key in weights if key not in values]:
        raise ValueError(f"has no {absent[0]}, which data.scores names; {listed(values)}")
    return tuple(math.nan if values[key] is None else number_of(values[key], key) for key in weights)


def scored_groups(records: Sequence[Any], weights: Mapping[str, float]) -> list[ScoredGroup]:
    """Samples by their prompts, in order, but for those that lack a score with a weight."""
    members: dict[str, list[Any]] = {}
    for record in records:
        counting = (score for score, weight in zip(record.scores, weights.values(), strict=True) if weight)
        if not any(map(math.isnan, counting)):
            members.setdefault(record.prompt.uid, []).append(record)
    return [ScoredGroup(tuple(some)) for some in members.values()]


def draw_members(groups: Sequence[ScoredGroup], n: int, *, update: int, seed: int) -> list[ScoredGroup]:
    """The samples of prompts that an update learns from: drawn where there are more than N."""
    from burnish.utils import random

    found, uids = [], [group.uid for group in groups]
    for row, group in enumerate(groups):  # a prompt that comes again has samples with other numbers and noise
        first, members = n * uids[:row].count(group.uid), group.members
        if len(members) > n:
            order = random.permutation(len(members), seed, "scored pictures", update, group.uid, first)
            members = tuple(members[i] for i in sorted(order[:n]))
        found.append(ScoredGroup(members, first))
    return found


def check_groups(groups: Sequence[ScoredGroup], config: Any) -> None:
    """Refuse samples that leave nothing to compare, or fewer of a prompt than the run takes.

    Raises:
        UserError: it names the files, or the option that asks for more.
    """
    files, keys = config.data.train_files, ", ".join(key for key, weight in config.data.scores.items() if weight)
    most = max((len(group.members) for group in groups), default=0)
    if not most:
        raise UserError(f"data.train_files is {files}, where no sample has all of {keys}: they are null; score some")
    if most < 2 and config.algorithm.needs().groups:
        raise UserError(
            f"data.train_files is {files}, where no prompt has two samples with {keys}, and {config.algorithm.name} "
            "compares those of a prompt; give several of each, or compare with the whole batch: "
            "algorithm.advantage=returns rollout.n=1"
        )
    if most < config.rollout.n:
        raise UserError(
            f"rollout.n is {config.rollout.n}, but no prompt in data.train_files has more than {most} samples with "
            f"{keys}; set rollout.n={most}"
        )
