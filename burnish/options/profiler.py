"""Options of looking closely at where time and memory go."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from burnish.options.shared import Count, Whole
from burnish.registry import options

Role = Literal["trainer", "rollout", "reward", "controller"]
Words = dict[str, str | bool | int | float]

DEFAULT: tuple[Role, ...] = ("trainer", "rollout")
READ = {  # by which tool
    "record_shapes": "torch",
    "with_stack": "torch",
    "profile_memory": "torch",
    "max_entries": "memory",
    "controller": "nsys",
    "worker": "nsys",
}


@options
class ProfilerOptions:
    """What is recorded in every detail, in which policy updates."""

    steps: Annotated[list[Count], Field(min_length=1)]
    """Policy updates that are recorded, counted from 1."""
    tool: Literal["torch", "memory", "nsys"] = "torch"
    """torch: a trace of every operation, to be opened in a browser; memory: what is allocated on the GPU, and by
    whom; nsys: what Nsight Systems is told to capture. memory and nsys need a GPU."""
    roles: list[Role] = Field(default_factory=lambda: list(DEFAULT))
    """Which processes of runtime=ray are recorded; in one process everything is."""
    ranks: list[Whole] | None = None
    """Which processes of each role, counted from 0; null is all of them."""
    record_shapes: bool = False
    """torch: also the shapes of what operations get."""
    with_stack: bool = False
    """torch: also the lines of Python that operations come from; traces become large."""
    profile_memory: bool = False
    """torch: also what operations allocate and free."""
    max_entries: Count = 100_000
    """memory: events that are kept, the newest."""
    controller: Words = Field(default_factory=dict)
    """nsys: options of the process that was started by the user, by the long names of nsys profile, as in
    {trace: "cuda,nvtx,osrt"}."""
    worker: Words = Field(default_factory=dict)
    """nsys: the same for the workers of runtime=ray."""

    @model_validator(mode="after")
    def _is_read(self) -> Self:
        for name, tool in READ.items():
            untouched = getattr(self, name) in (False, {}, 100_000)
            if tool != self.tool and not untouched:
                raise ValueError(f"{name} is never read when tool is {self.tool}; leave it out")
        for name in ("controller", "worker"):
            if "capture-range" in getattr(self, name):
                raise ValueError(f"{name} has capture-range, but what is captured is said by steps; leave it out")
        if self.tool == "memory" and "controller" in self.roles:
            raise ValueError("roles has controller, which holds nothing on a GPU that tool=memory could show")
        return self
