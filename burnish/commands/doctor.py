"""``burnish doctor``: checks whether this machine can run the quickstart."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from burnish.utils import terminal
from burnish.utils.errors import UserError

NEEDED_DISK = 1.0  # GB: checkpoints and samples of a few runs
SHARED = Path("/dev/shm")
NEEDED_SHARED = 1.0  # GB: containers have .06 unless they are given more
SLOW_LAUNCH, SLOW_COPY = 15.0, 8.0  # µs of a kernel's launch, and GB/s from the CPU's memory: below PCIe 3
MEASURED = 1 << 28  # bytes that are copied and summed
PATIENCE = 180.0  # seconds that GPUs may take to sum them
COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}
AGAIN = "pip install --force-reinstall burnish"

Finding = tuple[str, str, str]  # ok, warn or fail; what was found; what to do


def doctor() -> int:
    """Check that this machine can train.

    Examples:
        burnish doctor      what to fix if the quickstart does not run
    """
    from rich.text import Text

    rows: list[tuple[str, Text, str, str]] = []
    with terminal.progress("Checking this machine") as tell:
        for name, check in CHECKS.items():
            try:
                state, found, advice = check()
            except UserError as error:
                state, found, advice = "fail", str(error), f"{AGAIN}, or another folder"
            except Exception as error:
                state, found, advice = "fail", f"{type(error).__name__}: {error}", AGAIN
            rows.append((name, Text(state, style=COLOURS[state]), found, advice))
            tell(len(rows), len(CHECKS))
    terminal.table(("check", "", "found", "what to do"), rows)
    if any(state.plain == "fail" for _, state, *_ in rows):
        terminal.say("\nThe quickstart can't run yet: fix what failed.")
        return 1
    terminal.say("\nReady: burnish train quickstart. No network is needed.")
    return 0


def check_packages() -> Finding:
    """Versions of the required packages."""
    from packaging.requirements import Requirement

    found, wrong = [], []
    for requirement in map(Requirement, importlib.metadata.requires("burnish") or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            version = "missing"
            with suppress(importlib.metadata.PackageNotFoundError):
                version = importlib.metadata.version(requirement.name)
            found.append(f"{requirement.name} {version}")
            if version == "missing" or not requirement.specifier.contains(version, prereleases=True):
                wrong.append(f"'{requirement.name}{requirement.specifier}'")
    return ("fail" if wrong else "ok"), ", ".join(found), f"pip install {' '.join(wrong)}" if wrong else ""


def check_device() -> Finding:
    """Where torch computes."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    found = f"{name}; {os.cpu_count()} cores, of which a run uses one unless threads=N says otherwise"
    return "ok", f"{found}; Python {platform.python_version()} on {platform.system()} {platform.machine()}", ""


def check_folder() -> Finding:
    """Whether runs can be written here."""
    free, here = shutil.disk_usage(".").free / 1e9, Path.cwd()
    if not os.access(here, os.W_OK | os.X_OK):
        return "warn", f"{here} can't be written", "change folder, or set output_dir"
    advice = "free some, or set output_dir to a disk that has some" if free < NEEDED_DISK else ""
    return "fail" if advice else "ok", f"{free:.1f} GB free in {here}", advice


def check_shared_memory() -> Finding:
    """What weights and batches of several processes travel through."""
    if not SHARED.is_dir():
        return "ok", f"no {SHARED}", ""
    free = shutil.disk_usage(SHARED).free / 1e9
    advice = "for several GPUs or vLLM: docker run --shm-size 8g, or as much as the model has bytes"
    return ("ok", f"{free:.1f} GB free", "") if free >= NEEDED_SHARED else ("warn", f"{free:.2f} GB free", advice)


def check_speed() -> Finding:
    """How fast kernels are launched, data reaches a GPU, and GPUs sum it."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        return "ok", "not measured without a GPU", ""
    launch, copied = launch_time("cuda"), copy_speed("cuda")
    found = [f"a kernel every {launch:.1f} µs", f"{copied:.1f} GB/s from pinned memory"]
    wrong = []
    if launch > SLOW_LAUNCH:
        wrong.append("the CPU is slow or busy, so that GPUs wait for kernels")
    if copied < SLOW_COPY:
        wrong.append("look at the PCIe link (nvidia-smi -q)")
    if count > 1:
        peers = all(torch.cuda.can_device_access_peer(0, other) for other in range(1, count))
        found += [f"peer-to-peer {'works' if peers else 'does not work'}"]
        if not peers:
            wrong.append("GPUs exchange through the CPU's memory: look at nvidia-smi topo -m, and IOMMU or ACS")
        try:
            found.append(f"{count} GPUs sum {sum_speed('cuda', count):.1f} GB/s (NCCL)")
        except Exception as error:  # of a process, which may end in any way
            wrong.append(f"several GPUs can't be used: {error!s:.300}")
    return "warn" if wrong else "ok", ", ".join(found), "; ".join(wrong)


def timed(work: Callable[[], object], device: str, times: int = 3) -> float:
    """Seconds that a call takes on a device, after a first one."""
    import torch

    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    work()
    wait()
    start = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - start) / times


def launch_time(device: str) -> float:
    """Microseconds from one small kernel to the next."""
    import torch

    number = torch.zeros(1, device=device)
    return 1e6 * timed(lambda: number.add_(1), device, 1000)


def copy_speed(device: str) -> float:
    """GB/s from the CPU's memory, pinned for a GPU."""
    import torch

    here = torch.zeros(MEASURED, dtype=torch.uint8, pin_memory=device == "cuda")
    there = torch.empty_like(here, device=device)
    return MEASURED / 1e9 / timed(lambda: there.copy_(here, non_blocking=True), device)


def sum_speed(device: str, ranks: int) -> float:
    """GB/s that each of some processes sends while all sum a tensor: the bus bandwidth of NCCL's tests.

    Raises:
        UserError: they don't end.
    """
    import torch

    with TemporaryDirectory() as folder:
        summing = torch.multiprocessing.spawn(_sum, (ranks, device, folder), ranks, join=False, daemon=True)
        end = time.monotonic() + PATIENCE
        while not summing.join(1.0):
            if time.monotonic() > end:
                for process in summing.processes:
                    process.kill()
                raise UserError(f"{ranks} GPUs did not sum a tensor within {PATIENCE:g} s; set NCCL_DEBUG=INFO")
        return float(Path(folder, "speed").read_text())


def _sum(rank: int, ranks: int, device: str, folder: str) -> None:
    """In one of the processes: the first writes down the speed."""
    import torch
    from torch import distributed

    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo", store=distributed.FileStore(f"{folder}/store", ranks), rank=rank,
        world_size=ranks, timeout=timedelta(seconds=PATIENCE),
    )  # fmt: skip
    numbers = torch.ones(MEASURED // 4, device=device)
    seconds = timed(lambda: distributed.all_reduce(numbers), device)
    if rank == 0:
        Path(folder, "speed").write_text(str(2 * (ranks - 1) / ranks * MEASURED / 1e9 / seconds))
    distributed.destroy_process_group()


def check_quickstart() -> Finding:
    """Whether the quickstart's recipe passes the checks of ``burnish train``."""
    from burnish.config import load
    from burnish.config.disk import check_disk

    check_disk(load("quickstart"))
    return "ok", "recipe, model and prompts are there", ""


def check_plugins() -> Finding:
    """Plugins of installed packages."""
    from burnish.registry import ENTRY_POINTS, open_entry_points

    try:
        opened = open_entry_points()
    except UserError as error:
        return "warn", str(error), "only runs that name something of it are refused"
    names = ", ".join(f"{name} ({what})" for name, what in opened.items())
    return "ok", names or f"no installed package has any (entry points {ENTRY_POINTS})", ""


CHECKS: dict[str, Callable[[], Finding]] = {
    "packages": check_packages, "device": check_device, "speed": check_speed, "folder": check_folder,
    "shared memory": check_shared_memory, "quickstart": check_quickstart, "plugins": check_plugins,
}  # fmt: skip
