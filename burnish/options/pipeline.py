"""Options of sampling that runs ahead of learning."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from burnish.options.shared import Seconds, Whole
from burnish.registry import options


@options
class PipelineOptions:
    """How far sampling runs ahead of learning."""

    depth: Annotated[int, Field(ge=0, le=1000)] = 0
    """Batches that may be sampled ahead while another one is learned: 0 samples and learns in turn, 1 is
    one-step-off-policy, more is fully asynchronous. More than 0 needs runtime=ray."""
    max_staleness: Whole | None = None
    """Policy updates at most between the weights that sampled and those that learn; what would become older is not
    started. null takes depth."""
    drop: bool = False
    """Throw away, and count, batches of a checkpoint that would be older than max_staleness when their turn comes, as
    it may be where that was lowered; false learns from them all the same."""
    timeout: Seconds = 3600.0
    """Seconds to wait for samples, or for weights to be published, before the run stops with an error."""

    @property
    def lag(self) -> int:
        """Policy updates between the weights that sample and those that learn, once the run is under way."""
        return self.depth if self.max_staleness is None else min(self.depth, self.max_staleness)
