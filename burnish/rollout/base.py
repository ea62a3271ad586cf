"""What the loop needs of a source: one batch per policy update, and a state to resume from."""

from __future__ import annotations

from typing import Any, Protocol

from burnish.data.stream import Stream
from burnish.types.rollout import Collected


class Source(Protocol):
    """Online sampling, a data set of finished samples, or sampling that runs ahead of the loop."""

    def collect(self, update: int) -> Collected:
        """The batch of policy update ``update``, counted from 1.

        Raises:
            Cancelled: the run is to stop. What is saved now is as it was before: a resumed run collects the same.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the next batch."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class StreamSource(Source, Protocol):
    """One that draws from a stream in this process, which is all of its state unless it says otherwise."""

    stream: Stream[Any]  # of prompts or records

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)
