"""Has the samples of a batch scored as they are finished, while others are still sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from burnish.rewards.given import Given
from burnish.rewards.scoring import AnyScorer, PendingScores, awaited
from burnish.types.prompt import Prompt

if TYPE_CHECKING:
    from burnish.types.rollout import Scores


class Collector:
    """Takes samples in any order and in any portions, and gives the scores of all of them in the order of the rows.

    A portion is submitted at once, unless a reward compares the samples of a prompt, or reads several at once with its
    weights: then those of a prompt wait for each other. All wait for the end where a reward's weights take turns on a
    GPU with those that sample, or where it is scored in this process, which is busy.
    """

    def __init__(
        self,
        scorer: AnyScorer,
        prompts: Sequence[Prompt],
        group: Sequence[int],
        *,
        update: int,
        one_by_one: bool,
        tell: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        """Begin a batch.

        Args:
            scorer: who scores.
            prompts: of every row.
            group: of every row, equal for the samples of a prompt.
            update: the policy update that the samples are for; 0 is validation.
            one_by_one: samples come in ones and twos, too few for a model to read.
            tell: is told how many of how many samples are there.
        """
        self._tell = tell
        self._scorer, self._prompts, self._group, self._update = scorer, list(prompts), list(group), update
        self._samples: dict[int, Any] = {}  # that are not submitted yet: all of them would fill the memory
        self._there: set[int] = set()
        self._inputs: dict[str, dict[int, Any]] = {}
        self._pending: list[tuple[list[int], PendingScores | Future[Scores]]] = []
        rewards = list(scorer.rewards.values())
        self._at_the_end = any(reward.puts_away for reward in rewards) or (one_by_one and not scorer.overlaps)
        self._by_group = any(
            reward.compares() != "samples" or (one_by_one and reward.has_weights) for reward in rewards
        )
        self._left: dict[int, int] = {}  # samples of each group that are not there yet
        for number in self._group:
            self._left[number] = self._left.get(number, 0) + 1

    def add(
        self, rows: Sequence[int], samples: Sequence[Any], inputs: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        """Take finished samples, each once; of one that is there already, the first counts.

        Args:
            rows: where they belong.
            samples: pictures, clips, sounds or responses.
            inputs: what else rewards may ask for, by name; the same names each time.
        """
        new = [i for i, row in enumerate(rows) if row not in self._there]
        for i in new:
            self._there.add(rows[i])
            self._samples[rows[i]] = samples[i]
            self._left[self._group[rows[i]]] -= 1
            for name, values in (inputs or {}).items():
                self._inputs.setdefault(name, {})[rows[i]] = values[i]
        self._tell(len(self._there), len(self._group))
        if self._at_the_end:
            return
        if not self._by_group:
            self._submit([rows[i] for i in new])
            return
        touched = {self._group[rows[i]] for i in new}
        full = {number for number in touched if not self._left[number]}
        self._submit([row for row, number in enumerate(self._group) if number in full])

    def scores(self, check_cancelled: Callable[[], None]) -> Scores:
        """The scores of all rows, in order; ``check_cancelled`` is called while they are waited for, and may end that.

        Raises:
            RewardsFailing: a reward failed more often than the run allows.
        """
        from burnish.types.rollout import Scores

        assert len(self._there) == len(self._prompts), "samples are missing"
        self._submit(sorted(self._samples))
        if not self._pending:  # nothing was sampled
            return awaited(self._scorer.submit([], []), check_cancelled)
        found = Scores.cat([awaited(pending, check_cancelled) for _, pending in self._pending])
        order = [row for rows, _ in self._pending for row in rows]
        if order == sorted(order):
            return found
        place = {row: i for i, row in enumerate(order)}
        return found.select([place[row] for row in range(len(order))])

    def _submit(self, rows: Sequence[int]) -> None:
        if not rows:
            return
        inputs = {name: [values.pop(row) for row in rows] for name, values in self._inputs.items()}
        given = Given(inputs=inputs, group=[self._group[row] for row in rows], update=self._update)
        samples, prompts = [self._samples.pop(row) for row in rows], [self._prompts[row] for row in rows]
        self._pending.append((list(rows), self._scorer.submit(samples, prompts, given)))
