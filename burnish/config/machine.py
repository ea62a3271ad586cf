"""Whether a run fits on the machine that it is started on, as far as its options alone can tell."""

from __future__ import annotations

import os
from collections.abc import Iterator

from burnish.config.run import RunConfig
from burnish.config.text import fields

CROWD = 4  # threads or processes per core, above which they only stand in each other's way
ALWAYS = 16  # that many are never refused
RECORD = 2048  # bytes that a sample takes at least: its prompt, its reward, and what keeps track of it
GB = 1e9


def machine_complaints(config: RunConfig) -> Iterator[str]:
    """What this machine can't do. On a cluster others do the work, of which nothing is known here."""
    if config.runtime != "local":
        return
    yield from _crowded(config)
    yield from _too_much(config)


def _crowded(config: RunConfig) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = max(ALWAYS, CROWD * cores)
    wanted = {"threads": config.threads, "scoring.processes": config.scoring.processes}
    for label, reward in config.rewards.items():
        if "threads" in fields(reward):
            wanted[f"rewards.{label}.threads"] = reward.threads
    for option, value in wanted.items():
        if value > limit:
            yield f"{option} is {value}, but this machine has {cores} cores; set it to {limit} or less"


def _too_much(config: RunConfig) -> Iterator[str]:
    memory = _memory()
    made, why = config.sample_bytes
    each, update = RECORD + made, config.records * config.sampled_per_prompt if config.online else config.samples
    batches = [("an update", update, config.samples_from, "rollout.n or data.train_batch_size")]
    # how many prompts there are is seen when they are read; there is one at least
    batches.append(("a validation", config.validation.n, "validation.n of a prompt", "validation.n"))
    if config.auxiliary is not None:
        section, imitated = config.auxiliary
        batches.append(("an optimizer step", imitated.batch_size, f"{section}.batch_size", f"{section}.batch_size"))
    for what, count, factors, way in batches:
        if memory is not None and count * each > memory:
            yield (
                f"{what} has {count:.3g} samples ({factors}), which take at least {count * each / GB:.3g} GB{why}, but "
                f"this machine has {memory / GB:.3g} GB of memory; lower {way}"
            )


def _memory() -> int | None:
    """Bytes of memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
