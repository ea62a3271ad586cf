"""How far one policy has moved from another: estimates, what it costs and whom, and the coefficient of that cost.

PyTorch is imported when one is called: configurations are read without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from burnish.options import Count, Positive, Rules
from burnish.registry import ReadIf, known, lookup, names, options, register
from burnish.rl.algorithm import Metrics, call

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.rl.advantages import Rewards

K3_MAX = 10.0  # as in verl: e^20 of one token would drown all others
KL_KINDS = ("k1", "k2", "k3", "k1+", "k3+", "unbiased")


def kl_estimate(logprob: Tensor, reference: Tensor, mask: Tensor, kind: str, *, old: Tensor | None = None) -> Tensor:
    """KL(policy || reference) per sampled token (Schulman, "Approximating KL divergence").

    With d = log(policy / reference): ``k1`` is d, ``k2`` d^2/2, ``k3`` exp(-d) - 1 + d. As a penalty in the reward
    their values count: k1 and k3 are unbiased. As a loss their gradients count, and there only k2's is the KL's, on
    samples of the policy itself; k1's is zero on average and k3's that of KL(reference || policy).

    k3 grows exponentially where the policy leaves out what the reference writes, and counts no further than 10, as in
    verl; beyond that it has no gradient. ``k1+`` and ``k3+`` (verl's) have that value and k2's gradient.
    ``unbiased`` is k3 times policy / old (DeepSeek-V3.2): its value and its gradient are the KL's, on samples of
    whatever policy ``old`` is, so it is not bounded.

    Args:
        logprob, reference: [B, T].
        mask: [B, T] bool.
        kind: which estimate: one of ours, or the name of a registered one.
        old: [B, T] log-probs under the policy that sampled; needed by ``unbiased`` only.

    Returns:
        [B, T] float32, 0 where masked.
    """
    from burnish.rl.surrogates import log_ratio, masked

    if kind not in KL_KINDS:
        return masked(call(lookup("kl estimator", kind)(), logprob, reference, mask), mask)
    d = log_ratio(logprob, reference, mask)
    if kind == "k1":
        return d
    if kind == "k2":
        return d.square() / 2
    if kind == "k1+":
        return _value_of(d, d)
    k3 = (-d).exp() - 1 + d
    if kind == "unbiased":
        assert old is not None, "it corrects for the policy that sampled"
        return log_ratio(logprob, old, mask).exp() * k3
    bounded = k3.clamp(max=K3_MAX)
    return _value_of(bounded, d) if kind == "k3+" else bounded


def _value_of(estimate: Tensor, d: Tensor) -> Tensor:
    """That value with the gradient of k2."""
    k2 = d.square() / 2
    return estimate.detach() + k2 - k2.detach()


def gated_kl(kl: Tensor, factor: Sequence[float]) -> Tensor:
    """A KL of samples or terms [M, ...], each times its factor.

    Where all factors are 1 it stays as it is, so that nothing moves to the device.
    """
    import torch

    from burnish.types.batch import to_device

    if all(one == 1 for one in factor):
        return kl
    return kl * to_device(torch.tensor(factor), kl.device).view(-1, *[1] * (kl.ndim - 1))


WINDOW = 20  # updates that GARDO's share is compared over
STEP = 0.1  # by which it grows and falls


def win_rate(value: Tensor) -> Tensor:
    """Share of the values [B] that each is above (GARDO, arXiv:2512.24138, eq. 7): [B] float64; NaN stays NaN."""
    import torch

    known = value[~value.isnan()].double().sort().values
    below = torch.searchsorted(known, value.double().contiguous()).double()
    return (below / max(len(known), 1)).masked_fill(value.isnan(), math.nan)


@register("kl gate", "disagreement", reads="against")
def disagreement(
    rewards: Rewards,
    memory: dict[str, Any],
    *,
    against: Annotated[tuple[str, ...], Field(min_length=1)] = ("aesthetic", "imagereward"),
    share: Annotated[float, Field(gt=0, le=1)] = 0.1,
) -> Tensor:
    """GARDO: the KL holds the samples that the reward overestimates most, as other rewards see them.

    Args:
        rewards: of the samples of an update.
        memory: the share, and means of the last updates.
        against: Rewards that the reward is compared with, by their names in rewards; weight 0 is enough.
        share: Share of the overestimated samples that are held at first. It grows by a tenth where they are
            overestimated more than in each of the last 20 updates, and falls by a tenth where they are less.

    Returns:
        1 for those that are held, 0 for the others. A sample is overestimated by how far its win rate in the batch is
        above the mean of its win rates by the other rewards (He et al. 2025, arXiv:2512.24138, eq. 7 and A.1). As in
        the authors' code the quantile and the mean are over samples where that is at least 0, in the whole batch: over
        all samples the mean of win rates is a constant. Whom no other reward has a value for is held.
    """
    import torch

    own = win_rate(rewards.reward.masked_fill(rewards.missing, math.nan))
    others = torch.stack([win_rate(rewards.component(name)) for name in against]).nanmean(0)
    uncertainty = own - others
    over = uncertainty[uncertainty >= 0]
    share, means = memory.setdefault("share", share), memory.setdefault("means", [])
    if not len(over):
        return uncertainty.isnan().float()
    held = ~(uncertainty <= over.quantile(1 - share))  # true of what is unknown, too
    mean = float(over.mean())
    if len(means) == WINDOW and mean > max(means):
        memory["share"] = min(share * (1 + STEP), 1.0)
    elif len(means) == WINDOW and mean < min(means):
        memory["share"] = share * (1 - STEP)
    memory["means"] = [*means, mean][-WINDOW:]
    return held.float()


def gate(part: Any, scored: Any, memory: dict[str, Any]) -> tuple[Any, Metrics]:
    """Samples with the factors of their KL by a gate. Those that ``Hold`` holds keep theirs."""
    from burnish.rl.advantages import Rewards

    factors = call(part, Rewards.of(scored.scores, scored.group, 1), memory).tolist()
    pairs = zip(scored.scores.kl_factor, factors, strict=True)
    scores = replace(scored.scores, kl_factor=[factor if own == 1 else own for own, factor in pairs])
    return replace(scored, scores=scores), {"actor/kl_gate": sum(factors) / len(factors)}


class KlController:
    """The coefficient of a KL, which rises while the KL is above its target and falls below it (Ziegler et al. 2019,
    sec. 2.2); without a target it stays what it is.

    Args:
        coef: at the start.
        target: KL to keep, per token or per sequence as the KL that ``update`` is told.
        horizon: samples over which the coefficient can change by a fifth.
    """

    def __init__(self, coef: float, *, target: float | None = None, horizon: float = math.inf) -> None:
        self.coef, self.target, self.horizon = coef, target, horizon

    def update(self, current: float, samples: int) -> None:
        """Move the coefficient after ``samples`` samples whose KL was ``current``; a non-finite KL says nothing.

        Five horizons of samples, which no configuration allows, could make it negative.
        """
        if self.target is not None and math.isfinite(current):
            error = min(max(current / self.target - 1, -0.2), 0.2)
            self.coef *= 1 + error * samples / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        if self.target is not None:  # else it is that of the options
            self.coef = state["coef"]


def one_of(*more: str) -> BeforeValidator:
    """Accepts the name of an estimator, or one of some more."""

    def check(kind: Any, info: ValidationInfo) -> Any:
        ours = (*more, *KL_KINDS)
        if isinstance(kind, str) and kind not in ours and not known("kl estimator", kind):
            raise ValueError(
                f"{info.field_name} is {kind}; it must be one of {', '.join([*ours, *names('kl estimator')])}, or the "
                "name of a KL estimator that a plug-in registers"
            )
        return kind

    return BeforeValidator(check)


@options
class TokenKl:
    """What it costs the policy to leave the reference, which is the policy before training."""

    route: Literal["loss", "reward"] = "loss"
    """loss: a term of the loss, with a gradient. reward: taken off the reward of every token (InstructGPT)."""
    kind: Annotated[str, one_of()] | None = None
    """Estimate of the KL per token; null takes k1 in the reward and k3 in the loss. As a loss k1 has no gradient on
    average, k2 has that of the KL; k1+ and k3+ have their own value and k2's gradient; unbiased corrects k3 for the
    policy that sampled. Or the name of a registered KL estimator."""
    coef: Positive = 1e-3
    """Weight of the KL; with controller=adaptive the one at the start."""
    controller: Literal["fixed", "adaptive"] = "fixed"
    """adaptive raises the weight while the KL is above its target, and lowers it below."""
    target: Annotated[Positive | None, ReadIf("controller", "adaptive")] = None
    """KL that is kept by controller=adaptive, summed over the tokens of a response."""
    horizon: Annotated[Positive, ReadIf("controller", "adaptive")] = 10_000.0
    """Responses over which controller=adaptive can change the weight by a fifth."""
    refresh_every: Count | None = None
    """Policy updates after which the policy becomes the new reference, again and again; null keeps the first one."""

    def contradictions(self, run: Any) -> Rules:
        return [
            (
                self.route == "reward" and self.kind in ("k1+", "k3+", "unbiased"),
                f"kind is {self.kind} and route is reward: only its value counts there, which is that of "
                f"{self.value_kind}; choose k1, k2 or k3",
            ),
            (
                self.controller == "adaptive" and self.target is None,
                "controller is adaptive and target is null; give the KL per response that is to be kept",
            ),
        ]

    @property
    def early(self) -> bool:
        """Whether its value is needed before the policy learns."""
        return self.route == "reward" or self.controller == "adaptive"

    @property
    def value_kind(self) -> str:
        """The plain estimator that has the same value on samples of the policy itself."""
        chosen = self.kind or ("k1" if self.route == "reward" else "k3")
        return {"k1+": "k1", "k3+": "k3", "unbiased": "k3"}.get(chosen, chosen)

    def estimate(self, logprob: Tensor, reference: Tensor, mask: Tensor, *, old: Tensor) -> Tensor:
        """The KL of each action [B, K] with the gradient that was chosen; ``old`` are log-probs of the sampler."""
        return kl_estimate(logprob, reference, mask, self.kind or self.value_kind, old=old)

    def value(self, logprob: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        """The KL of each action [B, K], where its gradient is not read."""
        return kl_estimate(logprob, reference, mask, self.value_kind)

    def make_controller(self) -> KlController:
        """The coefficient, as it changes over a run."""
        return KlController(self.coef, target=self.target, horizon=self.horizon if self.target else math.inf)
