"""Looks closely at some policy updates: traces, snapshots of memory, and ranges for Nsight Systems.

The phases of an update carry in all of them the names that they have in the metrics ``timing_s/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from burnish.options import ProfilerOptions
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.timer import Stopwatch

LOCAL = "local"  # the role of a process that has all of them
CAPTURED = {"capture-range": "cudaProfilerApi"}
SHOWN = {"trace": "cuda,nvtx", "cuda-memory-usage": "true"}


class Profiler:
    """Records the updates that its options name, if they name its process. It changes no number of the run."""

    def __init__(
        self, options: ProfilerOptions | None, *, role: str, rank: int, folder: Path, watch: Stopwatch
    ) -> None:
        """Get ready.

        Args:
            options: what is recorded; None records nothing.
            role: of this process: trainer, rollout, reward, controller, or local, which has all of them.
            rank: of this process among those of its role.
            folder: where recordings go, update-00000003/trainer-0.json.gz for instance.
            watch: that knows the phases of an update.

        Raises:
            UserError: the tool needs a GPU, and there is none.
        """
        self.options, self.name, self.folder, self.watch = options, f"{role}-{rank}", folder, watch
        self._steps: set[int] = set()
        if options is None or not (role == LOCAL or _named(options, role, rank)):
            return
        if options.tool != "torch" and not torch.cuda.is_available():
            if role == "controller":
                return  # Nsight Systems records it from outside
            raise UserError(
                f"profiler.tool is {options.tool}, which looks at a GPU, but {self.name} has none; "
                "profiler.tool=torch works without"
            )
        self._steps = set(options.steps)

    def during(self, update: int) -> AbstractContextManager[None]:
        """Record what happens meanwhile, if this update is to be; what ends with an error leaves no recording."""
        if self.options is None or update not in self._steps:
            return nullcontext()
        record = {"torch": self._trace, "memory": self._memory, "nsys": self._capture}[self.options.tool]
        return record(self.options, update)

    @contextmanager
    def _trace(self, options: ProfilerOptions, update: int) -> Iterator[None]:
        from torch.profiler import ProfilerActivity, profile, record_function

        gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        with (
            profile(
                activities=[ProfilerActivity.CPU, *gpu],
                record_shapes=options.record_shapes,
                with_stack=options.with_stack,
                profile_memory=options.profile_memory,
            ) as found,
            self._marked(record_function, update),
        ):
            yield
        self._write(update, "json.gz", found.export_chrome_trace)

    @contextmanager
    def _memory(self, options: ProfilerOptions, update: int) -> Iterator[None]:
        memory = torch.cuda.memory
        memory._record_memory_history(max_entries=options.max_entries)
        try:
            yield
            self._write(update, "pickle", memory._dump_snapshot)
        finally:
            memory._record_memory_history(enabled=None)

    @contextmanager
    def _capture(self, options: ProfilerOptions, update: int) -> Iterator[None]:
        torch.cuda.profiler.start()
        try:
            with self._marked(torch.cuda.nvtx.range, update):
                yield
        finally:
            torch.cuda.profiler.stop()

    @contextmanager
    def _marked(self, mark: Callable[[str], AbstractContextManager[Any]], update: int) -> Iterator[None]:
        """Give every phase a range of its name, and the update one around them."""
        self.watch.mark = mark
        try:
            with mark(f"update {update}"):
                yield
        finally:
            self.watch.mark = nullcontext

    def _write(self, update: int, ending: str, export: Callable[[str], Any]) -> None:
        """Whole or not there: whoever looks at a run while it trains finds no half of a recording."""
        folder = self.folder / f"update-{update:08d}"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            aside = folder / f".{self.name}.{ending}"
            export(str(aside))
            aside.rename(folder / f"{self.name}.{ending}")


def _named(options: ProfilerOptions, role: str, rank: int) -> bool:
    return role in options.roles and (options.ranks is None or rank in options.ranks)


def nsight(options: ProfilerOptions | None, role: str) -> dict[str, str] | None:
    """What Ray's runtime environment gets as ``nsight``, so that a worker runs under Nsight Systems.

    Ray starts the worker by ``nsys profile`` with these options, and puts reports into logs/nsight of its assembly's
    folder on the worker's machine.
    """
    if options is None or options.tool != "nsys" or role not in options.roles:
        return None
    given = _words(options.worker)
    output = given.pop("output", f"{role}_%p")
    return _ranges(options) | SHOWN | given | {"o": f"'{output}'"}


def controller_command(options: ProfilerOptions, *, local: bool, folder: Path) -> list[str]:
    """How the user starts ``burnish train``, where Nsight Systems is to see that process, too.

    Args:
        options: with the tool nsys.
        local: whether this process does everything, so that only the updates to be recorded are of interest. The
            controller of a cluster is recorded from beginning to end: it may have no GPU, whose driver starts a range.
        folder: where the report goes.
    """
    ranges = _ranges(options) if local else {}
    words = ranges | SHOWN | {"output": str(folder / "controller")} | _words(options.controller)
    return ["nsys", "profile", *(f"--{name}={value}" for name, value in words.items()), "burnish", "train", "..."]


def _ranges(options: ProfilerOptions) -> dict[str, str]:
    """Every recorded update is a range; the process goes on after the last one, which nsys would kill otherwise."""
    return CAPTURED | {"capture-range-end": f"repeat:{len(set(options.steps))}", "kill": "none"}


def _words(given: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
