"""What an update costs: operations, memory, and traces of the profiler."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from burnish.metrics import Stopwatch
from burnish.options import ProfilerOptions
from burnish.training.flop_counter import Cost, FlopCounter
from burnish.utils.disk import writing
from burnish.utils.errors import UserError

T = TypeVar("T")


class Meter:
    """Operations of the networks of this rank: the first call of each shape is counted as it runs."""

    def __init__(self, peak: float) -> None:
        """Args: ``peak`` is what the device could do, in operations per second."""
        self.peak = peak
        self.counted = 0.0  # operations, until they are read
        self.active = False  # whether what runs now counts
        self._known: dict[Any, tuple[Cost, float]] = {}  # of a call, and its size

    @contextmanager
    def counting(self, active: bool = True) -> Iterator[None]:
        """Count what runs in this context, or don't."""
        before, self.active = self.active, active
        try:
            yield
        finally:
            self.active = before

    def run(self, key: Any, call: Callable[[], T], size: float = 1.0) -> T:
        """Run a network, and count that with its backward pass where it will have one.

        Args:
            key: of calls that cost the same by their size.
            call: runs it.
            size: that the cost grows with.
        """
        if not self.active:
            return call()
        key = key, torch.is_grad_enabled()
        if key in self._known:
            out = call()
        else:
            with FlopCounter() as operations:
                out = call()
            self._known[key] = operations.cost, size
        cost, of = self._known[key]
        self.add(cost, size / of)
        return out

    def add(self, cost: Cost, times: float = 1.0) -> None:
        """Count operations."""
        if self.active:
            self.counted += times * (cost.forward + (cost.backward if torch.is_grad_enabled() else 0.0))

    def watch(self, network: nn.Module, adapter: Callable[[], str | None] = lambda: None) -> None:
        """Count the calls of a network that is complete and not sharded yet, by the shapes of what it is given.

        Args:
            network: or several, in one module.
            adapter: the name of the one that is active, if that changes.
        """
        for one in network.children() if isinstance(network, nn.ModuleDict) else [network]:
            one.forward = self._watched(one.forward, adapter)

    def _watched(self, forward: Callable[..., Any], adapter: Callable[[], str | None]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            shapes = tuple(
                (leaf.shape, leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else leaf is None
                for leaf in tree_leaves((args, kwargs))
            )
            return self.run((id(forward), adapter(), shapes), lambda: forward(*args, **kwargs))

        return run


class Usage:
    """MFU by phase: operations are summed over ranks with the other sums of an optimizer step."""

    def __init__(self, meter: Meter | None, ranks: int) -> None:
        self.meter, self.ranks = meter or Meter(0.0), ranks  # no network tells that one of anything
        self._seconds: dict[str, float] = {}
        self._here: dict[str, float] = {}  # operations of this rank that no step has summed yet
        self._total: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count to a phase of an update."""
        start = time.perf_counter()
        with self.meter.counting():
            yield
        self._seconds[phase] = time.perf_counter() - start
        self._here |= self._taken(phase)

    def paused(self) -> AbstractContextManager[None]:
        """Work in this context is there for other ranks, and doesn't count."""
        return self.meter.counting(active=False)

    def share(self, phase: str) -> dict[str, float]:
        """This rank's part of the sums of a step: what was counted since the last one."""
        found, self._here = self._here | self._taken(phase), {}
        return {f"operations {name}": value for name, value in found.items()}

    def add(self, sums: Mapping[str, float]) -> None:
        """What all ranks counted."""
        for name, value in sums.items():
            if name.startswith("operations "):
                self._total[name.removeprefix("operations ")] += value

    def metrics(self) -> dict[str, float]:
        """The share of the devices' peak that each phase used since the last call."""
        total, seconds = self._total, self._seconds
        self._total, self._seconds, self._here = defaultdict(float), {}, {}
        full = self.meter.peak * self.ranks
        return {f"perf/mfu/{name}": total[name] / (seconds[name] * full) for name in seconds if total.get(name)}

    def _taken(self, phase: str) -> dict[str, float]:
        counted, self.meter.counted = self.meter.counted, 0.0
        return {phase: counted} if counted else {}


STATUS = Path("/proc/self/statm")  # pages: size, resident, ...
GPU = ("memory_allocated_gb", "memory_reserved_gb")


class PhaseMemory:
    """Looks at the beginning and at the end of every phase; a phase within another one counts for both."""

    def __init__(self) -> None:
        self._most = Counter[str]()  # of the run so far
        self._phases: dict[str, Counter[str]] = {}  # since they were read
        self._open: list[Counter[str]] = []

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase by its name."""
        self._note()
        self._open.append(found := self._phases.setdefault(phase, Counter()))
        if _on_gpu():
            torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            self._note()
            self._open = [one for one in self._open if one is not found]

    def metrics(self) -> dict[str, float]:
        """In GB: the peaks of the run so far, and of each phase since the last call."""
        self._note()
        found = {"perf/max_cpu_memory_gb": _most_resident() / 1e9}
        found |= {f"perf/max_{name}": value for name, value in self._most.items()}
        for phase, values in self._phases.items():
            found |= {f"perf/{name}/{phase}": value for name, value in values.items()}
        self._phases = {}
        return found

    def _note(self) -> None:
        """What was held since the last time belongs to the phases that are open."""
        now: Any = {"cpu_memory_gb": resident() / 1e9}
        if _on_gpu():
            peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            on_gpu: Any = {name: value / 1e9 for name, value in zip(GPU, peaks, strict=True)}
            now |= on_gpu
            self._most |= Counter(on_gpu)  # the larger one of each
        for phase in self._open:
            phase |= Counter(now)


def resident() -> int:
    """Bytes of RAM that this process holds now; an upper bound where the system doesn't tell."""
    try:
        return int(STATUS.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return _most_resident()


def _most_resident() -> int:
    """The most bytes of RAM that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _on_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def gpu_bytes() -> int | None:
    """Memory of the GPU that this process computes on; None without one."""
    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


LOCAL = "local"  # role of the single process of a local run
CAPTURED = {"capture-range": "cudaProfilerApi"}
MOST_EVENTS = 100_000  # of a memory snapshot, the newest
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
        self._written = Counter[int]()  # profiles of each update: whoever samples may be asked several times
        named = options and role in options.roles and (options.ranks is None or rank in options.ranks)
        if options is None or not (role == LOCAL or named):
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
                record_shapes="shapes" in options.contents,
                with_stack="stack" in options.contents,
                profile_memory="memory" in options.contents,
            ) as found,
            self._marked(record_function, update),
        ):
            yield
        self._write(update, "json.gz", found.export_chrome_trace)

    @contextmanager
    def _memory(self, options: ProfilerOptions, update: int) -> Iterator[None]:
        memory = torch.cuda.memory
        memory._record_memory_history(max_entries=MOST_EVENTS)
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
        folder, number = self.folder / f"update-{update:08d}", self._written[update]
        self._written[update] += 1
        name = f"{self.name}-{number + 1}.{ending}" if number else f"{self.name}.{ending}"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{name}"
            export(str(temporary))
            temporary.rename(folder / name)


def nsight(options: ProfilerOptions | None, role: str) -> dict[str, str] | None:
    """``nsight`` of Ray's runtime environment, so that a worker runs under Nsight Systems.

    Ray starts the worker with ``nsys profile`` and these options; reports are in logs/nsight of Ray's session folder on
    the worker's machine.
    """
    if options is None or options.tool != "nsys" or role not in options.roles:
        return None
    return _ranges(options) | SHOWN | {"o": f"'{role}_%p'"}


def controller_command(options: ProfilerOptions, *, local: bool, folder: Path) -> list[str]:
    """The command that starts ``burnish train`` under Nsight Systems.

    Args:
        options: with the tool nsys.
        local: a local run captures only the chosen updates. The controller of a cluster is captured from start to end,
            since it may have no GPU, whose driver would start a range.
        folder: of the report.
    """
    ranges = _ranges(options) if local else {}
    words = ranges | SHOWN | {"output": str(folder / "controller")}
    return ["nsys", "profile", *(f"--{name}={value}" for name, value in words.items()), "burnish", "train", "..."]


def _ranges(options: ProfilerOptions) -> dict[str, str]:
    """One range per profiled update; without kill=none, nsys would end the process after the last one."""
    return CAPTURED | {"capture-range-end": f"repeat:{len(set(options.steps))}", "kill": "none"}
