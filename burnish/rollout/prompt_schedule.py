"""Which samples are requested: the next prompts of a stream, and more where groups have equal rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from burnish.data.stream import PromptStream
from burnish.options.flow import FilterOptions
from burnish.rollout.filter import fill
from burnish.rollout.requests import RolloutRequest, numbered
from burnish.types.rollout import Rollouts
from burnish.utils.errors import UserError

R = TypeVar("R", bound=Rollouts)


@dataclass(frozen=True, kw_only=True)
class PromptSchedule:
    """Prompts and sample numbers of every update."""

    stream: PromptStream
    n: int  # samples of a prompt
    rollouts: int = 1  # batches of the stream to an update
    filtering: FilterOptions | None = None

    def request(self, update: int, version: int, seen: Counter[str]) -> RolloutRequest:
        """The next prompts; ``seen`` counts the samples that a prompt has in this update already."""
        drawn = [prompt for _ in range(self.rollouts) for prompt in self.stream.next_batch()]
        prompts, group, sample = numbered(drawn, self.n, seen)
        return RolloutRequest(
            prompts=prompts, group=group, sample=sample, groups=len(drawn), update=update, version=version
        )  # fmt: skip

    def batch(self, generate: Callable[[RolloutRequest], R], update: int, version: int) -> R:
        """Rollouts of an update; if groups are filtered, ``generate`` is called until enough of them are kept."""
        seen: Counter[str] = Counter()
        if self.filtering is None:
            return generate(self.request(update, version, seen))
        wanted = self.stream.batch_size * self.rollouts
        return fill(lambda: generate(self.request(update, version, seen)), wanted, self.filtering.max_num_gen_batches)


def refuse_ahead(state: dict[str, Any]) -> None:
    """Refuse batches that were sampled ahead, where sampling does not run ahead.

    Raises:
        UserError: the checkpoint holds some.
    """
    if state.get("ahead"):
        raise UserError(
            f"the checkpoint holds {len(state['ahead'])} batches that were sampled ahead, which this run would not "
            "use; resume with the runtime=ray and the pipeline.depth that it was made with"
        )
