"""Options of checkpoints: when, how many, where else, and in which other form."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from burnish.options import Count, NonNegative, Positive
from burnish.registry import options
from burnish.utils.addresses import address_complaint

Address = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]+$")]
WAIT = 600.0


@options
class CheckpointOptions:
    """Checkpoints, from which a killed run resumes."""

    every: Count = 10
    """Policy updates between checkpoints; one is always written at the end and when a signal stops the run."""
    keep_last: Count = 2
    """Newest N checkpoints are kept."""
    keep_best: bool = True
    """Also keep the checkpoint with the best validation reward."""
    max_gb: Positive | None = None
    """Keep fewer, the newest first, where those that are kept take more than this many GB (10^9 bytes) together. The
    newest and, with keep_best, the best are always kept."""
    asynchronous: bool = False
    """Write in the background from a copy in CPU memory; a checkpoint still appears only when it is complete. An error
    is raised after the next policy update, or at the end of the run."""
    export: Literal["lora", "merged"] | None = None
    """Also write the weights of every checkpoint as diffusers, transformers and peft load them, to
    output_dir/exported: the adapter, or all weights (merged). They go when their checkpoint does. A process beside the
    run does it, with a copy of the model in CPU memory; if it fails, the run goes on."""
    copy_to: Address | None = None
    """Address of a folder that gets a verified copy of every checkpoint: s3://, gs://, hdfs://, file:// or another that
    fsspec knows, with credentials from the environment. A process beside the run does it; if it fails, the run goes on.
    resume=ADDRESS goes on from there."""
    copy_keep: Count | None = None
    """Newest N copies are kept at copy_to, and with keep_best the best; null keeps all."""
    wait: NonNegative = WAIT
    """Seconds at the end of a run, or a stop, in which export and copy_to may be finished; 10 at most if it fails."""

    @field_validator("copy_to")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and (complaint := address_complaint(value)):
            raise ValueError(f"copy_to is {value}, {complaint}")
        return value

    @model_validator(mode="after")
    def _are_read(self) -> Self:
        if self.copy_to is None and self.copy_keep is not None:
            raise ValueError("copy_keep is never read when copy_to is null; leave it out, or set copy_to")
        if self.copy_to is None and self.export is None and self.wait != WAIT:
            raise ValueError("wait is never read when export and copy_to are null; leave it out")
        return self
