"""Reward models: a language model with a scalar head per dimension, which learns what people prefer or how they score.

Preferences are learned by Bradley and Terry's model, with ties by Rao and Kupper (1967) as VideoReward has them (Liu et
al. 2025, arXiv:2501.13918) or by Davidson (1970).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from burnish.language.algorithms.base import LanguageNeeds, RowsOfResponses
from burnish.options import NonNegative, Rules
from burnish.registry import options, register
from burnish.rl.algorithm import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.config import LanguageConfig
    from burnish.language.roles import LanguageRoles
    from burnish.types.rollout import Loss, OfflineJudgements

Head = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]


@options
class RewardTraining(RowsOfResponses):
    """Base of what trains a reward model: scalar heads on the last hidden state of a response."""

    heads: list[Head] = Field(default_factory=lambda: ["reward"], min_length=1)
    """Names of the dimensions, each of which gets a scalar head. Records of several name them in their labels."""

    def contradictions(self, run: LanguageConfig) -> Rules:
        twice = f"heads is {', '.join(self.heads)}, and names one twice; leave one of them out"
        return [(len(set(self.heads)) < len(self.heads), twice)]

    def compute_advantages(self, annotated: OfflineJudgements) -> tuple[OfflineJudgements, Metrics]:
        known = ~annotated.target.isnan()
        return annotated, {"train/labels": float(known.sum())}

    def size(self, batch: OfflineJudgements) -> int:
        return int((~batch.target.isnan()).sum())

    @abstractmethod
    def losses(self, values: Tensor, part: OfflineJudgements) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss [B, S, H] of each label, and what is reported of it; values are [B * M, S, H]."""

    @abstractmethod
    def outcome(self, values: Tensor, part: OfflineJudgements) -> dict[str, Tensor]:
        """What validation reports of labels [B, S, H], the first being what counts; not read where there is none."""

    def loss(self, part: OfflineJudgements, roles: LanguageRoles) -> Loss:
        from burnish.types.batch import to_device
        from burnish.types.rollout import Loss

        values = part.at_labels(roles.judgements(part.answers.trace))
        known = to_device(~part.target.isnan(), values.device)
        loss, reported = self.losses(values, part)
        count, each = known.sum(), ({"actor/reward_loss": loss} | reported).items()
        return Loss(loss.sum(), {name: (one.detach().masked_fill(~known, 0.0).sum(), count) for name, one in each})


@options
class AboutImages(RewardTraining):
    """Base of what may learn to judge images in place of responses."""

    question: Annotated[str, Field(min_length=1)] | None = None
    """Judge images that were drawn for a prompt, in place of responses: what is asked about each, its prompt in place
    of {prompt}, as in "How well does the image show this? {prompt}". null judges responses."""


@register("language algorithm", "bradley_terry")
class BradleyTerry(AboutImages):
    """Score the preferred response, or image, higher than the other one."""

    ties: Literal["rao_kupper", "davidson"] | None = None
    """Model of ties: rao_kupper (VideoReward's BTT) or davidson; null knows no ties and refuses records with one."""
    margins: bool = True
    """Ask the preferred one to be ahead by the record's margin, where it has one (Llama 2); false ignores margins."""
    center_coef: NonNegative = 0.0
    """Weight of the squared sum of the two scores, which keeps scores around 0."""

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(
            data="comparisons", groups=False, atom="pair", heads=tuple(self.heads), ties=self.ties is not None,
            question=self.question or "",
        )  # fmt: skip

    def losses(self, values: Tensor, part: OfflineJudgements) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.language.losses import comparison
        from burnish.types.batch import to_device

        first, second = values[::2], values[1::2]
        target, margin = to_device(part.target, values.device), to_device(part.margin, values.device)
        loss = comparison(
            first, second, target, margin if self.margins else margin * 0,
            ties=self.ties, center=self.center_coef,
        )  # fmt: skip
        return loss, {
            "rewards/accuracies": self._right(first - second, target),
            "rewards/margins": (first - second) * target.nan_to_num(0.0),
            "rewards/mean": (first + second) / 2,
        }

    def outcome(self, values: Tensor, part: OfflineJudgements) -> dict[str, Tensor]:
        from burnish.language.losses import comparison

        first, second = values[::2], values[1::2]
        return {
            "accuracy": self._right(first - second, part.target),
            "margin": (first - second) * part.target,
            "nll": comparison(first, second, part.target, part.margin * 0, ties=self.ties),
        }

    def _right(self, ahead: Tensor, target: Tensor) -> Tensor:
        """1 where the likeliest outcome is the one that people gave; equal scores without ties are half right."""
        import torch

        from burnish.language.losses import log_outcomes

        won, tie, lost = log_outcomes(ahead, ties=self.ties)
        given = torch.where(target > 0, won, torch.where(target < 0, lost, tie))
        best = torch.stack([won, tie, lost]).amax(0)
        shared = (torch.stack([won, tie, lost]) == best).sum(0)
        return (given == best).float() / shared


@options
class Regression(RewardTraining):
    """Base of what predicts numbers that people gave."""

    kind: Literal["mse", "bce"] = "mse"
    """mse: squared error of the score; bce: binary cross-entropy of sigmoid(score), for scores from 0 to 1."""

    @property
    def squashed(self) -> bool:
        """Whether a value is sigmoid(score), a number in [0, 1]."""
        return self.kind == "bce"

    def losses(self, values: Tensor, part: OfflineJudgements) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.language.losses import regression
        from burnish.types.batch import to_device

        target = to_device(part.target, values.device)
        return regression(values, target, kind=self.kind), {
            "rewards/error": (self._value(values) - target.nan_to_num(0.0)).abs(),
            "rewards/mean": self._value(values),
        }

    def outcome(self, values: Tensor, part: OfflineJudgements) -> dict[str, Tensor]:
        value = self._value(values)
        return {"closeness": -(value - part.target).abs(), "predicted": value, "given": part.target}

    def _value(self, values: Tensor) -> Tensor:
        return values.sigmoid() if self.squashed else values


@register("language algorithm", "score_regression")
class ScoreRegression(AboutImages, Regression):
    """Predict the scores that people gave to single responses, or images."""

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(
            data="scores", groups=False, heads=tuple(self.heads), shares=self.squashed, question=self.question or ""
        )


@register("language algorithm", "process_reward")
class ProcessReward(Regression):
    """Judge every step of a response where it ends (Lightman et al. 2023, arXiv:2305.20050; Wang et al. 2024,
    arXiv:2312.08935)."""

    kind: Literal["mse", "bce"] = "bce"
    """bce: binary cross-entropy of sigmoid(score), for labels that are true, false or shares from 0 to 1; mse: squared
    error of the score."""
    separator: Annotated[str, Field(min_length=1)] = "\n"
    """Text between two steps; a step is judged at its end, the separator included."""

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(
            data="steps", groups=False, heads=tuple(self.heads), shares=self.squashed, separator=self.separator
        )

    def outcome(self, values: Tensor, part: OfflineJudgements) -> dict[str, Tensor]:
        reported = super().outcome(values, part)
        if not self.squashed:
            return reported
        right = ((reported["predicted"] > 0.5) == (part.target > 0.5)).float()
        return {"accuracy": right, "predicted": reported["predicted"], "given": part.target}
