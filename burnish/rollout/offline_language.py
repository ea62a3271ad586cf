"""Responses that somebody wrote: nothing is sampled."""

from __future__ import annotations

from typing import Any

from burnish.data.language.offline import ResponseData
from burnish.data.language.responses import ResponseRecord
from burnish.data.stream import Stream
from burnish.types.rollout import OfflineResponses
from burnish.utils.timer import Stopwatch


class OfflineLanguageSource:
    """The next demonstrations, pairs or judgements of a stream; several batches to an update if asked."""

    def __init__(
        self, stream: Stream[ResponseRecord], data: ResponseData, *, batches: int, seed: int, watch: Stopwatch
    ) -> None:
        self.stream, self.data, self.batches, self.seed, self.watch = stream, data, batches, seed, watch

    def collect(self, update: int) -> OfflineResponses:
        records = [record for _ in range(self.batches) for record in self.stream.next_batch()]
        with self.watch("encode"):
            return self.data.batch(records, update=update, seed=self.seed)

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)
