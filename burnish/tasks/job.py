"""What an engine is to generate, and what a rank learns of data that it shares with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeVar

from torch import Tensor

from burnish.options import StepOptions
from burnish.rewards.scoring import Collector, Scorer
from burnish.rollout.sources import group_starts, numbered
from burnish.training.ranks import Ranks, own_rows, shares
from burnish.training.trainer import learned_rows
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.errors import Cancelled

Purpose = Literal["rollout", "greedy", "validation", "sample", "trial"]  # draws of one are never those of another


@dataclass
class Stop:
    """Whether sampling is to be cancelled, as nobody would learn from it."""

    asked: Callable[[], bool] = lambda: False
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # what can't ask: a request ends it, by Cancelled

    def check(self) -> None:
        """Called between steps of sampling, and while others are waited for.

        Raises:
            Cancelled: the run is to stop.
        """
        if self.asked():
            raise Cancelled


@dataclass(frozen=True, kw_only=True)
class Job:
    """Which samples to generate. Row i is sample ``sample[i]`` of prompt ``prompts[i]``."""

    prompts: list[Prompt]  # [B]
    group: Tensor  # [B] long: rows of a prompt stand next to each other
    sample: Tensor  # [B] long
    purpose: Purpose
    update: int
    check_cancelled: Callable[[], None] = lambda: None  # called before every step or token; what it raises ends the job
    noise: tuple[random.Part, ...] | None = None  # of a suite: seeds in place of the run's, the same in every run

    def keys(self, seed: int) -> list[tuple[random.Part, ...]]:
        """What seeds the draws of every row, but for the number of the sample.

        Args:
            seed: of the run.
        """
        if self.noise is None:
            return [(seed, self.purpose, self.update, prompt.uid) for prompt in self.prompts]
        return [(*self.noise, prompt.question.uid) for prompt in self.prompts]

    def seeds(self, seed: int) -> dict[str, Any]:
        """The same for a record: with the prompt and the number of a sample it can be drawn again."""
        return {"seed": seed, "purpose": self.purpose, "update": self.update}

    @classmethod
    def groups(cls, prompts: Sequence[Prompt], n: int, **options: Any) -> Self:
        """``n`` samples of each prompt. A prompt that occurs again gets further samples, not the same ones."""
        rows, group, sample = numbered(prompts, n)
        return cls(prompts=rows, group=group, sample=sample, **options)

    def select(self, rows: slice) -> Self:
        """Some of its rows."""
        return replace(self, prompts=self.prompts[rows], group=self.group[rows], sample=self.sample[rows])

    def share(self, ranks: Ranks) -> Self:
        """The rows that this rank samples: those of some prompts, in order; there may be none."""
        starts = group_starts(self.group)
        own = own_rows(ranks, len(starts) - 1)
        return self.select(slice(starts[own.start], starts[own.stop]))


def collector(job: Job, scorer: Scorer, *, one_by_one: bool, **more: Any) -> Collector:
    """Takes a job's samples as they are finished; see ``Collector``. Those of validation belong to no update."""
    update = job.update if job.purpose == "rollout" else 0
    return Collector(scorer, job.prompts, job.group.tolist(), update=update, one_by_one=one_by_one, **more)


T = TypeVar("T")


def steps_of_an_update(config: Any) -> StepOptions:
    """How a batch of a run becomes optimizer steps; a mini-batch is counted in rows of the batch."""
    size = config.trainer.mini_batch_size
    found: StepOptions = replace(config.trainer, mini_batch_size=size and size // config.rows_per_group)
    return found


def learned_in_an_update(records: Sequence[T], costs: Sequence[int], config: Any, ranks: Ranks, update: int) -> list[T]:
    """Those of a batch of records that a rank learns in the mini-batches of an update."""
    rows = learned_rows(costs, steps_of_an_update(config), config.seed, update, ranks)
    return [records[row] for row in rows]


def learned_in_a_step(records: Sequence[T], costs: Sequence[int], ranks: Ranks) -> list[T]:
    """Those of a batch of records that a rank learns in one optimizer step."""
    return list(records[shares(costs, ranks.size)[ranks.rank]])
