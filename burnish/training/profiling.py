"""Profiles of policy updates: PyTorch traces, memory snapshots, and ranges for Nsight Systems.

The phases of an update have the names of the metrics ``timing_s/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from burnish.options.profiler import ProfilerOptions
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.timer import Stopwatch

LOCAL = "local"  # role of the single process of a local run
CAPTURED = {"capture-range": "cudaProfilerApi"}
SHOWN = {"trace": "cuda,nvtx", "cuda-memory-usage": "true"}


class Profiler:
    """Profiles the chosen updates, if this process is one of the chosen roles and ranks."""

    def __init__(
        self, options: ProfilerOptions | None, *, role: str, rank: int, folder: Path, watch: Stopwatch
    ) -> None:
        """Check that the tool is available.

        Args:
            options: None profiles nothing.
            role: of this process: trainer, rollout, reward, controller, or local.
            rank: of this process within its role.
            folder: of the profiles, such as update-00000003/trainer-0.json.gz.
            watch: timer of the phases of an update.

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
                f"profiler.tool is {options.tool}, which needs a GPU, but {self.name} has none; set profiler.tool=torch"
            )
        self._steps = set(options.steps)

    def during(self, update: int) -> AbstractContextManager[None]:
        """Profile this context if the update is chosen; an exception leaves no profile."""
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
        """Mark the update and each of its phases with a range."""
        self.watch.mark = mark
        try:
            with mark(f"update {update}"):
                yield
        finally:
            self.watch.mark = nullcontext

    def _write(self, update: int, ending: str, export: Callable[[str], Any]) -> None:
        """Write a profile atomically."""
        folder = self.folder / f"update-{update:08d}"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{self.name}.{ending}"
            export(str(temporary))
            temporary.rename(folder / f"{self.name}.{ending}")


def _named(options: ProfilerOptions, role: str, rank: int) -> bool:
    return role in options.roles and (options.ranks is None or rank in options.ranks)


def nsight(options: ProfilerOptions | None, role: str) -> dict[str, str] | None:
    """``nsight`` of Ray's runtime environment, so that a worker runs under Nsight Systems.

    Ray starts the worker with ``nsys profile`` and these options; reports are in logs/nsight of Ray's session folder on
    the worker's machine.
    """
    if options is None or options.tool != "nsys" or role not in options.roles:
        return None
    given = _words(options.worker)
    output = given.pop("output", f"{role}_%p")
    return _ranges(options) | SHOWN | given | {"o": f"'{output}'"}


def controller_command(options: ProfilerOptions, *, local: bool, folder: Path) -> list[str]:
    """The command that starts ``burnish train`` under Nsight Systems.

    Args:
        options: with the tool nsys.
        local: a local run captures only the chosen updates. The controller of a cluster is captured from start to end,
            since it may have no GPU, whose driver would start a range.
        folder: of the report.
    """
    ranges = _ranges(options) if local else {}
    words = ranges | SHOWN | {"output": str(folder / "controller")} | _words(options.controller)
    return ["nsys", "profile", *(f"--{name}={value}" for name, value in words.items()), "burnish", "train", "..."]


def _ranges(options: ProfilerOptions) -> dict[str, str]:
    """One range per profiled update; without kill=none, nsys would end the process after the last one."""
    return CAPTURED | {"capture-range-end": f"repeat:{len(set(options.steps))}", "kill": "none"}


def _words(given: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
