"""Options of the profiler."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from burnish.options import Count, Whole
from burnish.registry import options

Role = Literal["trainer", "rollout", "reward", "controller"]
Words = dict[str, str | bool | int | float]

DEFAULT: tuple[Role, ...] = ("trainer", "rollout")
READ = {  # option: the tool that reads it
    "record_shapes": "torch",
    "with_stack": "torch",
    "profile_memory": "torch",
    "max_entries": "memory",
    "controller": "nsys",
    "worker": "nsys",
}


@options
class ProfilerOptions:
    """Which policy updates are profiled, and how."""

    steps: Annotated[list[Count], Field(min_length=1)]
    """Policy updates to profile, counted from 1."""
    tool: Literal["torch", "memory", "nsys"] = "torch"
    """torch: PyTorch profiler trace; memory: CUDA memory snapshot; nsys: ranges for Nsight Systems. memory and nsys
    need a GPU."""
    roles: list[Role] = Field(default_factory=lambda: list(DEFAULT))
    """Processes to profile with runtime=ray; a local run profiles its single process."""
    ranks: list[Whole] | None = None
    """Ranks of each role to profile, counted from 0; null is all."""
    record_shapes: bool = False
    """torch: also record the shapes of inputs."""
    with_stack: bool = False
    """torch: also record Python stacks; traces become large."""
    profile_memory: bool = False
    """torch: also record allocations."""
    max_entries: Count = 100_000
    """memory: newest events that are kept."""
    controller: Words = Field(default_factory=dict)
    """nsys: options of the process that the user starts, by their long names in nsys profile, as in
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
                raise ValueError(f"{name} has capture-range, which profiler.steps decides; leave it out")
        if self.tool == "memory" and "controller" in self.roles:
            raise ValueError("roles has controller, which uses no GPU memory to profile with tool=memory; leave it out")
        return self
