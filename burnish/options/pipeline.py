"""Options of asynchronous training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from burnish.options import Seconds, Whole
from burnish.registry import options


@options
class PipelineOptions:
    """How far sampling runs ahead of training."""

    depth: Annotated[int, Field(ge=0, le=1000)] = 0
    """Batches that may be sampled ahead of the one that is trained on: 0 is synchronous, 1 is one-step-off-policy, more
    is fully asynchronous. More than 0 needs runtime=ray."""
    max_staleness: Whole | None = None
    """Most policy updates between the weights that sampled a batch and those that train on it; a batch that would
    become older is not started. null uses depth."""
    drop: bool = False
    """After resuming with a lower max_staleness, drop (and count) the checkpoint's batches that would be older; false
    trains on them anyway."""
    timeout: Seconds = 3600.0
    """Seconds to wait for samples or for a weight sync before the run stops with an error."""

    @property
    def lag(self) -> int:
        """Policy updates between sampling and training weights in the steady state."""
        return self.depth if self.max_staleness is None else min(self.depth, self.max_staleness)
