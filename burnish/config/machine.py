"""Whether a local run fits on this machine, as far as its options tell."""

from __future__ import annotations

import os
from collections.abc import Iterator

from burnish.config.run import RunConfig
from burnish.config.text import fields
from burnish.utils.installed import optimizer_complaint, quantization_complaint

CROWD = 4  # most threads or processes per core
ALWAYS = 16  # threads or processes that are never refused
RECORD = 2048  # bytes of a sample at least: prompt, reward, bookkeeping
GB = 1e9


def machine_complaints(config: RunConfig) -> Iterator[str]:
    """Options that exceed this machine; nothing for a cluster, whose machines are unknown here."""
    if config.runtime != "local":
        return
    for section, optimizer in config.optimizers.items():
        if complaint := optimizer_complaint(optimizer.name):
            yield f"{section}.name={optimizer.name} {complaint}"
    if (fewer := config.model.quantization) is not None:
        chosen = {"weights": fewer.weights, "text_encoders": getattr(fewer, "text_encoders", None)}
        for name, precision in chosen.items():
            if precision is not None and (complaint := quantization_complaint(precision)):
                yield f"model.quantization.{name}={precision} {complaint}"
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
    # the number of prompts is only known when they are read; at least one
    batches.append(("a validation", config.validation.n, "validation.n of a prompt", "validation.n"))
    if config.auxiliary is not None:
        section, imitated = config.auxiliary
        batches.append(("an optimizer step", imitated.batch_size, f"{section}.batch_size", f"{section}.batch_size"))
    for what, count, factors, option in batches:
        if memory is not None and count * each > memory:
            yield (
                f"{what} has {count:.3g} samples ({factors}), which take at least {count * each / GB:.3g} GB{why}, but "
                f"this machine has {memory / GB:.3g} GB of memory; lower {option}"
            )


def _memory() -> int | None:
    """Bytes of memory; None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
