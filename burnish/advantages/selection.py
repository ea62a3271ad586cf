"""Which samples of a prompt are compared with each other, or learned from at all."""

from __future__ import annotations

import torch
from torch import Tensor


def pairs(reward: Tensor, group: Tensor, missing: Tensor, *, margin: float = 0.0) -> tuple[Tensor, Tensor]:
    """The best and the worst sample of each group, for losses on preferences.

    Of equal ones the first is the best and the last is the worst. A group of one makes no pair, and neither does one
    whose rewards are all equal: there is nothing to prefer.

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; these are in no pair.
        margin: the best must be better than the worst by more than this.

    Returns:
        Rows of winners [P] and of losers [P], long, groups in the order in which they first occur.
    """
    chosen = []
    for rows in _groups(group, missing):
        value = reward[rows]
        best, worst = int(value.argmax()), len(rows) - 1 - int(value.flip(0).argmin())
        if value[best] - value[worst] > margin:
            chosen.append((rows[best], rows[worst]))
    found = torch.tensor(chosen, dtype=torch.long, device=reward.device).view(-1, 2)
    return found[:, 0], found[:, 1]


def select_best(reward: Tensor, group: Tensor, missing: Tensor, keep: int) -> Tensor:
    """The best samples of each group; of equal ones the first.

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; never kept.
        keep: samples per group; smaller groups are kept whole.

    Returns:
        Rows [M], rising.
    """
    kept: list[int] = []
    for rows in _groups(group, missing):
        order = reward[rows].argsort(descending=True, stable=True).tolist()
        kept += [rows[i] for i in order[:keep]]
    return torch.tensor(sorted(kept), dtype=torch.long, device=reward.device)


def select_best_worst(reward: Tensor, group: Tensor, missing: Tensor, keep: int) -> Tensor:
    """The best and the worst samples of each group, which carry most of its signal (DanceGRPO, arXiv:2505.07818).

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; never kept.
        keep: samples per group, the larger half of them the best; smaller groups are kept whole.

    Returns:
        Rows [M], rising.

    Raises:
        ValueError: fewer than two are to be kept.
    """
    if keep < 2:
        raise ValueError(f"keep is {keep}; the best and the worst of a group are two samples, so it must be >= 2")
    kept: list[int] = []
    for rows in _groups(group, missing):
        order = reward[rows].argsort(descending=True, stable=True).tolist()
        if len(rows) > keep:
            order = order[: keep - keep // 2] + order[-(keep // 2) :]
        kept += [rows[i] for i in order]
    return torch.tensor(sorted(kept), dtype=torch.long, device=reward.device)


def _groups(group: Tensor, missing: Tensor) -> list[list[int]]:
    """Rows that are present by group, in the order in which groups first occur."""
    members: dict[int, list[int]] = {}
    for row, (number, absent) in enumerate(zip(group.tolist(), missing.tolist(), strict=True)):
        rows = members.setdefault(number, [])
        if not absent:
            rows.append(row)
    return [rows for rows in members.values() if rows]
