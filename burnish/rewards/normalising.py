"""Running normalisation: rewards by their mean and standard deviation over the run so far, before they are mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from burnish.rewards.base import AnyReward
from burnish.rewards.mixing import MixingOptions, combined
from burnish.rl.advantages import Moments, moments
from burnish.types.rollout import Scores


class Normaliser:
    """Statistics of all samples of a run. It is where all samples of an update come together, so there is one."""

    def __init__(self, rewards: Mapping[str, AnyReward], mixing: MixingOptions) -> None:
        assert mixing.normalise is not None, "nothing is normalised"
        self.labels, self.mixing, self.floor = list(rewards), mixing, mixing.normalise.floor
        self.known: dict[str, Moments] = {}  # of what was trained on
        self.first: dict[str, Moments] = {}  # of the first validation, in whose units all others count

    def learned(self, rollouts: Any) -> Any:
        """The rollouts of an update, with rewards by statistics that take these in."""
        scores: Scores = rollouts.scores
        for label, new in self._moments(scores).items():
            self.known[label] = self.known.get(label, Moments()).merge(new)
        running = {
            f"critic/{label}/running_{name}": value
            for label, moments in self.known.items()
            for name, value in (("mean", moments.mean), ("std", moments.std(unbiased=True)))
        }
        return replace(rollouts, scores=self._mixed(scores, self.known), metrics=rollouts.metrics | running)

    def validated(self, scores: Scores) -> Scores:
        """The scores of a validation, which moves no statistics: in units of the run's first one."""
        if not self.first:
            self.first = {label: own for label, own in self._moments(scores).items() if own.count}
        return self._mixed(scores, self.first)

    def _moments(self, scores: Scores) -> dict[str, Moments]:
        """Of each reward's values in samples that have a reward."""
        used = (scores.applied != 0) & ~scores.counted.isnan() & ~scores.missing[:, None]
        columns = {name: i for i, name in enumerate(scores.names) if name in self.labels}
        return {label: moments(scores.counted[:, i], used[:, i]) for label, i in columns.items()}

    def _mixed(self, scores: Scores, known: Mapping[str, Moments]) -> Scores:
        values = scores.counted.clone()
        for i, label in enumerate(scores.names):
            if label in known:
                scale = max(known[label].std(unbiased=True), self.floor)
                values[:, i] = (values[:, i] - known[label].mean) / scale
        reward = combined(values, scores.applied, self.mixing)
        return replace(scores, reward=reward.float(), missing=scores.missing | reward.isnan(), counted=values)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on with."""
        return {name: {label: vars(moments).copy() for label, moments in statistics.items()}
                for name, statistics in (("known", self.known), ("first", self.first))}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.known, self.first = ({label: Moments(**moments) for label, moments in state[name].items()}
                                  for name in ("known", "first"))  # fmt: skip


def restore(state: Mapping[str, Any], normaliser: Normaliser | None) -> None:
    """Give the statistics of a checkpoint to a normaliser, if there is one."""
    if normaliser is not None and "normaliser" in state:
        normaliser.load_state_dict(state["normaliser"])


def saved(normaliser: Normaliser | None) -> dict[str, Any]:
    """The statistics as a part of a source's state."""
    return {} if normaliser is None else {"normaliser": normaliser.state_dict()}


def with_first(source: dict[str, Any], normaliser: Normaliser | None) -> dict[str, Any]:
    """A driver's state of a source with what only those know who validate."""
    if normaliser is None:
        return source
    return source | {"normaliser": source["normaliser"] | {"first": normaliser.state_dict()["first"]}}
