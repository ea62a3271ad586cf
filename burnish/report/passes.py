"""Whether a policy can do more than before, or does more often what it could: the best of a prompt's samples."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from burnish.report.samples import Score, Scores, chance
from burnish.report.validated import by_source, over_sources


@dataclass(frozen=True)
class Passes:
    """Mean and best of a prompt's samples: before, after, two standard errors of the change."""

    n: int
    mean: tuple[float, float, float]
    best: tuple[float, float, float]

    @property
    def kind(self) -> str:
        """learning, sharpening, narrowing, or "" where the mean did not clearly rise."""
        if self._way(self.mean) != 1:
            return ""
        return {1: "learning", 0: "sharpening", -1: "narrowing"}[self._way(self.best)]

    @staticmethod
    def _way(one: tuple[float, float, float]) -> int:
        before, after, doubt = one
        return 0 if abs(after - before) <= doubt else 1 if after > before else -1


def passes(before: Scores, after: Scores, name: str) -> Passes | None:
    """Compare two validations by a column; None where prompts have one sample, or other numbers of them."""
    counts = {len(values) for scores in (before, after) for values in _values(scores, name).values()}
    if len(counts) != 1 or (n := counts.pop()) < 2:
        return None
    found = []
    for sides in ((before, after), (_best(before, name), _best(after, name))):
        means = [over_sources(by_source(side, name)) for side in sides]
        if means[0] is None or means[1] is None:
            return None
        found.append((means[0][0], means[1][0], chance(*sides, name)))
    return Passes(n, *found)


def _values(scores: Scores, name: str) -> dict[int, list[float]]:
    found: defaultdict[int, list[float]] = defaultdict(list)
    for (index, _), score in scores.items():
        value = score.of(name)
        if value is not None:
            found[index].append(value)
    return found


def _best(scores: Scores, name: str) -> Scores:
    """The best sample of each prompt."""
    sources = {index: score.source for (index, _), score in scores.items()}
    return {
        (index, 0): Score(sources[index], max(values), {name: max(values)})
        for index, values in _values(scores, name).items()
    }
