"""Whether a run fits on the machine that it is started on, as far as its options alone can tell."""

from __future__ import annotations

import os
from collections.abc import Iterator

from burnish.config.flow import FlowConfig
from burnish.config.language import LanguageConfig
from burnish.config.run import RunConfig
from burnish.config.text import fields

CROWD = 4  # threads or processes per core, above which they only stand in each other's way
ALWAYS = 16  # that many are never refused
RECORD = 2048  # bytes that a sample takes at least: its prompt, its reward, and what keeps track of it
TOKEN = 32  # bytes of a sampled token: its id, its log-prob, its place, its mask
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
    each, why = _sample(config)
    candidates = config.rollout.candidates if isinstance(config, FlowConfig) else None
    update = config.samples if candidates is None else config.records * candidates.n
    batches = [("an update", update, config.samples_from, "rollout.n or data.train_batch_size")]
    # how many prompts there are is seen when they are read; there is one at least
    batches.append(("a validation", config.validation.n, "validation.n of a prompt", "validation.n"))
    besides = config.supervised if isinstance(config, FlowConfig) else config.ptx  # type: ignore[attr-defined]
    if besides is not None:
        section = "supervised" if isinstance(config, FlowConfig) else "ptx"
        batches.append(("an optimizer step", besides.batch_size, f"{section}.batch_size", f"{section}.batch_size"))
    for what, count, factors, way in batches:
        if memory is not None and count * each > memory:
            yield (
                f"{what} has {count:.3g} samples ({factors}), which take at least {count * each / GB:.3g} GB{why}, but "
                f"this machine has {memory / GB:.3g} GB of memory; lower {way}"
            )


def _sample(config: RunConfig) -> tuple[float, str]:
    """Bytes that a sample takes at least, and what makes it large."""
    if isinstance(config, FlowConfig):
        height, width = config.rollout.height, config.rollout.width
        if height is None or width is None:
            return RECORD, ""
        return RECORD + 3 * height * width, f" with rollout.height {height} and rollout.width {width}"
    assert isinstance(config, LanguageConfig)
    where = "rollout.max_new_tokens" + (", environment.max_turns" if config.environment is not None else "")
    return RECORD + TOKEN * config.longest, f" with up to {config.longest} tokens each ({where})"


def _memory() -> int | None:
    """Bytes of memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
