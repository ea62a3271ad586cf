"""Comparisons within a prompt: which samples are the best and the worst, and losses on pairs and groups.

A flow model has no log-prob at hand; the matching error of an image, noised with the same noise for all that is
compared, stands in for it: log pi - log pi_ref is -(error - reference error) / 2 up to a factor.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from burnish.rl.surrogates import ratio_of
from burnish.types.batch import to_device

Kind = Literal["sigmoid", "ipo"]


def pairs(reward: Tensor, group: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """The best and the worst sample of each group, for losses on preferences.

    Of equal ones the first is the best and the last is the worst. A group of one makes no pair, and neither does one
    whose rewards are all equal: there is nothing to prefer.

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; these are in no pair.

    Returns:
        Rows of winners [P] and of losers [P], long, groups in the order in which they first occur.
    """
    chosen = []
    for rows in _groups(group, missing):
        value = reward[rows]
        best, worst = int(value.argmax()), len(rows) - 1 - int(value.flip(0).argmin())
        if value[best] > value[worst]:
            chosen.append((rows[best], rows[worst]))
    found = torch.tensor(chosen, dtype=torch.long, device=reward.device).view(-1, 2)
    return found[:, 0], found[:, 1]


def select_best(reward: Tensor, group: Tensor, missing: Tensor, keep: int, *, worst: bool = False) -> Tensor:
    """The best samples of each group; of equal ones the first.

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; never kept.
        keep: samples per group; smaller groups are kept whole.
        worst: keep the worst samples for the smaller half of them: both carry most of a group's signal (DanceGRPO,
            arXiv:2505.07818).

    Returns:
        Rows [M], rising.
    """
    kept: list[int] = []
    low = keep // 2 if worst else 0
    for rows in _groups(group, missing):
        order = reward[rows].argsort(descending=True, stable=True).tolist()
        kept += [rows[i] for place, i in enumerate(order) if place < keep - low or place >= len(rows) - low]
    return torch.tensor(sorted(kept), dtype=torch.long, device=reward.device)


def another_success(reward: Tensor, group: Tensor, missing: Tensor, least: float) -> Tensor:
    """What a sample can learn its group's success from: the first other sample with at least this reward (SDPO).

    Args:
        reward: [B].
        group: [B] ids.
        missing: [B] bool; never a success.
        least: reward of a success.

    Returns:
        Its row, [B] long; -1 where there is none.
    """
    found = torch.full_like(group, -1)
    for rows in _groups(group, missing):
        good = [row for row in rows if reward[row] >= least]
        for row in rows:
            found[row] = next((other for other in good if other != row), -1)
    return found


def _groups(group: Tensor, missing: Tensor) -> list[list[int]]:
    """Rows that are present by group, in the order in which groups first occur."""
    members: dict[int, list[int]] = {}
    for row, (number, absent) in enumerate(zip(group.tolist(), missing.tolist(), strict=True)):
        rows = members.setdefault(number, [])
        if not absent:
            rows.append(row)
    return [rows for rows in members.values() if rows]


def preference_loss(margin: Tensor, *, beta: float, label_smoothing: float = 0.0, kind: Kind = "sigmoid") -> Tensor:
    """DPO's loss of how much more the policy prefers the winner than the reference does.

    ``sigmoid`` is Bradley and Terry's (arXiv:2305.18290), whose labels may be smoothed (conservative DPO); ``ipo``
    pulls the margin to 1 / (2 beta) (arXiv:2310.12036).

    Args:
        margin: [P] (log pi - log pi_ref) of the winner minus that of the loser.
        beta: strength of the pull to the reference.
        label_smoothing: probability that winner and loser were mixed up; read by ``sigmoid`` alone.
        kind: see above.

    Returns:
        [P].
    """
    if kind == "ipo":
        return (margin - 1 / (2 * beta)).square()
    right, wrong = functional.logsigmoid(beta * margin), functional.logsigmoid(-beta * margin)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


def diffusion_dpo(
    error_w: Tensor,
    error_l: Tensor,
    ref_error_w: Tensor,
    ref_error_l: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
    kind: Kind = "sigmoid",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Diffusion-DPO on matching errors (Wallace et al. 2023, arXiv:2311.12908, eq. 14).

    Args:
        error_w, error_l: [P] mean squared errors of the policy at winner and loser: same noise, same time.
        ref_error_w, ref_error_l: [P] those of the reference, without gradient.
        beta: 2000 to 5000 is usual for errors that are averaged over the latent axes.
        label_smoothing, kind: see ``preference_loss``.

    Returns:
        Loss [P], and per pair [P]: ``actor/implicit_acc`` (the policy prefers the winner), ``rewards/chosen``,
        ``rewards/rejected`` and ``rewards/margins`` (implicit rewards).
    """
    chosen, rejected = -0.5 * (error_w - ref_error_w), -0.5 * (error_l - ref_error_l)
    margin = chosen - rejected
    loss = preference_loss(margin, beta=beta, label_smoothing=label_smoothing, kind=kind)
    with torch.no_grad():
        metrics = {
            "actor/implicit_acc": (margin > 0).float(),
            "rewards/chosen": beta * chosen,
            "rewards/rejected": beta * rejected,
            "rewards/margins": beta * margin,
        }
    return loss, metrics


def group_preference(
    error: Tensor, ref_error: Tensor, advantage: Tensor, group: Tensor, *, beta: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """DGPO: the good half of a group is preferred to the bad half, each sample by its advantage (arXiv:2510.08425).

    Advantages that sum to 0 within a group make the unknown normaliser of the implicit reward drop out. The loss is
    divided by beta, as the authors' gradient is, so that beta says when a group is ordered far enough, and changes
    neither how hard others are pushed nor what a coefficient of a KL is worth beside it.

    Args:
        error, ref_error: [M] matching errors of policy and reference, at the same noise and time within a group.
        advantage: [M].
        group: [M] ids; whole groups only.
        beta: strength of the pull to the reference.

    Returns:
        Loss per group [G], -log sigmoid(beta margin) / beta, in rising order of ids, and per group [G]:
        ``actor/implicit_acc``, ``rewards/margins`` (beta times the margin).
    """
    groups, label = _numbered(group, error)
    count = error.new_zeros(groups).index_add(0, label, torch.ones_like(error))
    preferred = -advantage * (error - ref_error)
    margin = torch.zeros_like(count).index_add(0, label, preferred) / count
    with torch.no_grad():
        metrics = {"actor/implicit_acc": (margin > 0).to(error.dtype), "rewards/margins": beta * margin}
    return -functional.logsigmoid(beta * margin) / beta, metrics


def hold_clipped(error: Tensor, old_error: Tensor, advantage: Tensor, *, clip: float) -> tuple[Tensor, Tensor]:
    """DGPO's clipping: no gradient through the error of a sample that has moved as far as it should.

    Args:
        error: [M] matching errors of the policy.
        old_error: [M] those of the old policy, without gradient.
        advantage: [M].
        clip: with ratio exp(old_error - error), a good sample is held above 1 + clip, any other below 1 - clip.

    Returns:
        The errors [M], some without gradient, and which these are [M] bool.
    """
    with torch.no_grad():
        ratio = ratio_of(old_error - error)
        held = torch.where(advantage > 0, ratio > 1 + clip, ratio < 1 - clip)
    return torch.where(held, error.detach(), error), held


def centred_distillation(
    implicit: Tensor,
    target: Tensor,
    group: Tensor,
    *,
    beta: float = 1.0,
    temperature: float | None = None,
    kind: Literal["bce", "mse"] = "bce",
) -> Tensor:
    """Centred Reward Distillation: the policy's implicit reward follows the given one (arXiv:2603.14128).

    Both are compared with their average within the group, so the unknown normaliser drops out. The average is plain,
    or with a temperature T taken twice, with weights softmax(target / T) and softmax(-target / T), whose losses are
    averaged. Averages carry no gradient.

    Args:
        implicit: [M] -(error - error of the old policy).
        target: [M] advantages mapped to [0, 1].
        group: [M] ids; whole groups only.
        beta: factor of the implicit reward.
        temperature: see above; None weighs all samples of a group alike.
        kind: cross-entropy of the logit beta * implicit against sigmoid(target), both centred, or their squared
            difference.

    Returns:
        [M].
    """
    logits = [torch.zeros_like(target)] if temperature is None else [target / temperature, -target / temperature]
    losses, groups = [], _numbered(group, target)
    for logit in logits:
        weight = _softmax_within(logit, *groups)
        ours = beta * (implicit - _average_within(implicit.detach(), weight, *groups))
        theirs = target - _average_within(target, weight, *groups)
        if kind == "bce":
            loss = functional.binary_cross_entropy_with_logits(ours, theirs.sigmoid(), reduction="none")
        else:
            loss = (ours - theirs).square()
        losses.append(loss)
    return torch.stack(losses).mean(0)


def likelihood_weights(reward: Tensor, group: Tensor, temperature: float) -> Tensor:
    """Weights of reward-weighted regression (Peters and Schaal 2007, doi:10.1145/1273496.1273590; for diffusion models
    Black et al. 2023, arXiv:2305.13301, section 4.1): exp(reward / T), divided by its mean within the group.

    Samples of p that are weighted so stand for p(x) exp(r(x) / T) / Z, the policy that is optimal under a KL to p with
    coefficient T.

    Args:
        reward: [M].
        group: [M] ids.
        temperature: T.

    Returns:
        [M].
    """
    return _softmax_within(reward / temperature, *_numbered(group, reward)) * (group[:, None] == group).sum(1)


def _numbered(group: Tensor, like: Tensor) -> tuple[int, Tensor]:
    """How many groups there are, and the number of each term's [M], beside a tensor; nothing waits for ids on a CPU."""
    ids, label = torch.unique(group, return_inverse=True)
    return len(ids), to_device(label, like.device)


def _softmax_within(logit: Tensor, groups: int, label: Tensor) -> Tensor:
    highest = logit.new_full((groups,), -torch.inf).scatter_reduce(0, label, logit, "amax")
    weight = (logit - highest[label]).exp()
    return weight / weight.new_zeros(groups).index_add(0, label, weight)[label]


def _average_within(value: Tensor, weight: Tensor, groups: int, label: Tensor) -> Tensor:
    return value.new_zeros(groups).index_add(0, label, weight * value)[label]
