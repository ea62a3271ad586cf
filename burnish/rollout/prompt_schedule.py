"""Which samples are requested: the next prompts of a stream, and more where groups have equal rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from burnish.data.stream import PromptStream
from burnish.options.data import FilterOptions
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
    tells: bool = False  # whether requests tell of the prompts that come next

    def request(self, update: int, version: int, seen: Counter[str]) -> RolloutRequest:
        """The next prompts; ``seen`` counts the samples that a prompt has in this update already."""
        drawn = [prompt for _ in range(self.rollouts) for prompt in self.stream.next_batch(update, version)]
        prompts, group, sample = numbered(drawn, self.n, seen)
        return RolloutRequest(
            prompts=prompts, group=group, sample=sample, groups=len(drawn), update=update, version=version,
            ahead=self.stream.peek(self.rollouts) if self.tells else [],
        )  # fmt: skip

    def batch(self, generate: Callable[[RolloutRequest], R], update: int, version: int) -> R:
        """Rollouts of an update; if groups are filtered, ``generate`` is called until enough of them are kept."""
        seen: Counter[str] = Counter()
        if self.filtering is None:
            drawn = generate(self.request(update, version, seen))
            self.learn(update, drawn)
            return drawn

        def draw() -> R:
            some = generate(self.request(update, version, seen))
            self.learn(update, some)
            return some

        return fill(draw, self.stream.batch_size * self.rollouts, self.filtering.max_num_gen_batches)

    def learn(self, update: int, sampled: Rollouts) -> None:
        """Tell a sampler of the user what was rewarded in an update."""
        if self.stream.sampler is not None:
            self.stream.sampler.history.add(update, sampled)

    def history(self, last: int | None = None) -> dict[str, Any]:
        """What a sampler has been told of updates up to ``last``, for a checkpoint; nothing where there is none."""
        sampler = self.stream.sampler
        return {} if sampler is None else {"history": sampler.history.state(last)}


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
