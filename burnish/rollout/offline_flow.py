"""Finished pictures of the user: nothing is sampled."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from burnish.data.flow.offline import OfflinePictures
from burnish.data.stream import Stream
from burnish.types.rollout import OfflineSamples
from burnish.utils.timer import Stopwatch


class OfflineFlowSource:
    """The next pictures or pairs of a stream."""

    def __init__(
        self, stream: Stream[Any], data: OfflinePictures, *, schedule: Tensor, seed: int, watch: Stopwatch
    ) -> None:
        self.stream, self.data, self.schedule, self.seed, self.watch = stream, data, schedule, seed, watch

    def collect(self, update: int) -> OfflineSamples:
        with self.watch("encode"):
            return self.data.batch(self.stream.next_batch(), self.schedule, update=update, seed=self.seed)

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)
