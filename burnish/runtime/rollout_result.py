"""Rollouts on their way from who makes them to who learns: the traces stay where they are, the rest travels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from burnish.rollout.requests import RolloutRequest, join
from burnish.rollout.serialization import deserialize, serialize
from burnish.runtime.prompt_numbers import PromptNumbers
from burnish.runtime.transfer import Packed, Pointers, ResponsePointers, Stored, pack, resolved
from burnish.tasks import Assembly
from burnish.types.completion import Lengths
from burnish.types.rollout import Denoising, Rollouts
from burnish.utils.timer import Span


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """What the driver gets of rollouts that a worker has made."""

    rollouts: Any  # without their traces
    lengths: Lengths | None
    seconds: float  # that it took
    phases: dict[str, float]  # seconds by name
    spans: list[Span]  # what it did when


def joined(
    parts: Sequence[tuple[RolloutResult | None, ray.ObjectRef[Any]]], numbers: PromptNumbers
) -> tuple[Rollouts, dict[str, float]]:
    """A batch of parts that were made at once, and seconds by phase: of every phase the longest.

    Args:
        parts: results, and references to their traces, each a ``Packed``, to which the batch has pointers; None is
            the result of a worker that had nothing to do.
        numbers: of the prompts.
    """
    found = [(result, trace) for result, trace in parts if result is not None]
    rollouts = [_pointing(one.rollouts, Stored(trace, len(one.rollouts)), one.lengths) for one, trace in found]
    names = {name for one, _ in found for name in one.phases}
    return numbers.named(join(rollouts)), {name: max(one.phases.get(name, 0.0) for one, _ in found) for name in names}


def generate(
    assembly: Assembly, request: RolloutRequest | None, numbers: PromptNumbers
) -> tuple[RolloutResult | None, Packed | None]:
    """Sample and score in this process, if there is anything to; the second half is for the object store."""
    start = time.perf_counter()
    rollouts = assembly.generate(None if request is None else numbers.named(request))
    if rollouts is None:
        return None, None
    trace: Any = rollouts.trace
    packed = pack(trace.put_away() if isinstance(trace, Denoising) else trace)
    result = RolloutResult(
        rollouts=numbers.numbered(replace(rollouts, trace=None)),
        lengths=rollouts.lengths,
        seconds=time.perf_counter() - start,
        phases=assembly.watch.drain(),
        spans=assembly.watch.take_spans(),
    )
    return result, packed


def to_save(source: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The state of a source with batches that were sampled ahead, their traces in this process, fit to be saved."""
    ahead = [serialize(resolved(rollouts, seconds=seconds)) for rollouts in source.get("ahead", [])]
    return source | {"ahead": ahead} if ahead else source


def from_saved(source: dict[str, Any]) -> dict[str, Any]:
    """The opposite of ``to_save``: the traces are in the object store, and belong to this process."""
    ahead: list[Any] = [deserialize(plain) for plain in source.get("ahead", [])]
    placed = [_pointing(rollouts, Stored.put(rollouts.trace), rollouts.lengths) for rollouts in ahead]
    return source | {"ahead": placed} if placed else source


def _pointing(rollouts: Any, stored: Stored, lengths: Lengths | None) -> Rollouts:
    pointers = Pointers.to_all(stored)
    if lengths is not None:
        pointers = ResponsePointers(part=pointers.part, row=pointers.row, stored=pointers.stored, lengths=lengths)
    found: Rollouts = replace(rollouts, trace=pointers)
    return found
