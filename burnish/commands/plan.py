"""``burnish plan``: how much memory a run will need, phase by phase, without a GPU and without weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from burnish.config import RunConfig, load
from burnish.config.batches import written
from burnish.config.hardware import Speed, made_for, read_machine, read_speed
from burnish.config.load import hardware_of
from burnish.utils import terminal

if TYPE_CHECKING:
    from burnish.plan.forecast import PoolForecast

EXIT_TOO_LARGE = 1
LEAST = 1 << 20  # bytes of a column that is shown


def plan(recipe: str, overrides: Sequence[str] = ()) -> int:
    """Forecast the memory that a run will need.

    The run's own code loads, samples, computes log-probs, learns and saves on tensors that have shapes and no values.
    For each pool and phase it prints what a process holds at its peak: weights, gradients, optimizer, activations,
    caches, batch and buffers on the GPU; host memory; and bytes that it receives of other ranks. 1 is returned where it
    does not fit.
    It also says how many seconds each phase of an update takes at least, and what bounds it; for language models that
    is with prompts and responses of the greatest length.

    Examples:
        burnish plan flux/flow_grpo memory=80GB                              does it fit? if not, what would help?
        burnish plan flux/flow_grpo model.lora=null gpus=8 memory=80GB
        burnish plan my_recipe.yaml model.path=DIR                           DIR may hold configuration files alone

    Args:
        recipe: name of a recipe (burnish recipes) or path of a .yaml file
        overrides (OPTION=VALUE): options of the run as section.option=value, with the value in YAML; gpus=8, nodes=2,
            memory=80GB of each GPU; tflops, bandwidth, launch, nvlink, network of one
    """
    speed, options = read_speed(overrides)
    config = load(recipe, options)
    config.check_code()
    with terminal.loading_pytorch():
        from burnish.plan.advice import choose, remedies
        from burnish.plan.counter import shown
        from burnish.plan.forecast import FRAGMENTS, OVERHEAD, Forecasts
    stated, (machine, _) = hardware_of(recipe), read_machine(options)
    profile = machine.profile(stated)
    memory = machine.memory or (None if profile is None else profile.bytes)

    def read(more: Sequence[str]) -> RunConfig:
        return load(recipe, [*options, *more])

    if profile is not None and machine.gpus is None:
        terminal.say(made_for(recipe, stated))
    if profile is not None and machine.memory is None:
        terminal.say(f"Each GPU has {profile.memory_gb:g} GB; memory=24GB asks for another size.")
    with terminal.progress("Forecasting") as tell, closing(Forecasts(config, tell)) as forecasts:
        chosen = choose(forecasts, memory)
    if chosen.sizes:
        why = "the smallest; memory=80GB finds the largest that fit" if memory is None else f"for {shown(memory)}"
        terminal.say(f"Chosen where auto is set: {' '.join(written(chosen.sizes))} ({why}).")
    found = chosen.forecast
    for pool in found.pools:
        _show(pool, memory)
        _show_seconds(pool, speed)
    terminal.say(
        f"A GPU needs the highest peak, {FRAGMENTS:.0%} for fragments, and {shown(OVERHEAD)} for CUDA and NCCL."
        + (f" Not counted: {'; '.join(found.left_out)}." if found.left_out else "")
    )
    if memory is None:
        return 0
    into = f" into {shown(memory)}: {'; '.join(pool.why(memory) for pool in found.pools)}."
    if found.fits(memory):
        terminal.say(("It fits", "bold green"), into)
        return 0
    terminal.say(("It does not fit", "bold red"), into)
    fits = False
    with terminal.progress("Trying what would help") as tell:
        for tried in remedies(read, found, memory, tell):
            fits = tried.fits
            mark = ("fits", "green") if fits else ("does not fit", "red")
            terminal.say(f"  {shown(tried.needs):>10}, ", mark, f": {' '.join(tried.options)}  ({tried.cost})")
    if not fits:
        terminal.say(
            "None of these options makes it fit: use more GPUs (gpus=8), larger ones, smaller samples, or a smaller "
            "model."
        )
    return EXIT_TOO_LARGE


def _show(pool: PoolForecast, memory: int | None) -> None:
    """A row for each phase, in GiB; kinds of memory that no phase has are left out."""
    from burnish.plan.counter import CATEGORIES, shown
    from burnish.plan.forecast import needed

    rows = {name: {"peak": peak.total, **peak.parts, "host": peak.host} for name, peak in pool.phases.items()}
    names = [name for name in ("peak", *CATEGORIES, "host") if any(row.get(name, 0) >= LEAST for row in rows.values())]
    each = "a process" if pool.processes == 1 else f"each of {pool.processes} processes"
    terminal.say((f"{each} of pool {pool.name}, GiB", "bold"))
    terminal.say((f"{'':18}" + "".join(f"{name:>12}" for name in names), "dim"))
    for name, row in rows.items():
        line = f"{name:18}" + "".join(f"{row.get(column, 0) / 2**30:12.2f}" for column in names)
        large = memory is not None and pool.sharing * needed(row["peak"]) > memory
        terminal.say((line, "red" if large else ""))
    if pool.vllm is not None:
        terminal.say(pool.vllm.line(memory))
    terminal.say(f"Its part of a checkpoint has {shown(pool.saved)}.\n" if pool.saved else "\n")


def _show_seconds(pool: PoolForecast, speed: Speed) -> None:
    """A row for each phase of an update: how long a GPU takes at least, and what for."""
    from burnish.plan.counter import BETWEEN, INSIDE, KERNELS, MOVED, OPERATIONS
    from burnish.plan.forecast import seconds_of

    if not pool.work:
        return
    each = f"{speed.tflops:g} TFLOP/s, {speed.bandwidth:g} GB/s, {speed.launch:g} µs a kernel"
    if several := any(work[INSIDE] or work[BETWEEN] for work in pool.work.values()):
        each += f"; from others {speed.nvlink:g} GB/s in a machine, {speed.network:g} GB/s between machines"
    terminal.say((f"seconds of an update on each GPU, at {each}", "bold"))
    names = ("seconds", "bound by", "TFLOP", "GB moved", "kernels", *(["GB received"] if several else []))
    terminal.say((f"{'':18}" + "".join(f"{name:>12}" for name in names), "dim"))
    for phase, work in pool.work.items():
        seconds, bound = seconds_of(work, speed)
        figures = f"{work[OPERATIONS] / 1e12:12,.0f}{work[MOVED] / 1e9:12,.0f}{work[KERNELS]:12,.0f}"
        figures += f"{(work[INSIDE] + work[BETWEEN]) / 1e9:12,.1f}" if several else ""
        terminal.say(f"{phase:18}{seconds:12.1f}{bound:>12}{figures}")
    terminal.say()
