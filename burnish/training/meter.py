"""What share of a device's peak the networks use: operations by formula or once per shape, never while a step runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from burnish.models.lora import carriers, switch_adapter
from burnish.training.flop_counter import Cost, FlopCounter, Skeleton

log = logging.getLogger(__name__)


class Meter:
    """Operations of the networks of this rank. A family of tasks says what its calls cost."""

    def __init__(self, peak: float) -> None:
        """Args: ``peak`` is what the device could do, in operations per second."""
        self.peak = peak
        self.counted = 0.0  # operations, until they are read
        self.spent = 0.0  # seconds that counting took
        self.active = False  # whether what runs now counts
        self.works = True  # until something can't be counted

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what runs in this context."""
        self.active = self.works
        try:
            yield
        finally:
            self.active = False

    def add(self, cost: Callable[[], Cost], times: float = 1.0) -> None:
        """Count a call of a network, with its backward pass where it will have one.

        Args:
            cost: of it. What can't be run without values raises anything, and then nothing is counted any more.
            times: how many such calls.
        """
        if not self.active:
            return
        start = time.perf_counter()
        try:
            found = cost()
        except Exception as error:
            self.active = self.works = False
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            log.warning("perf/mfu isn't logged: the operations of the network can't be counted (%s)", reason)
            return
        self.spent += time.perf_counter() - start
        self.counted += times * (found.forward + (found.backward if torch.is_grad_enabled() else 0.0))


class CallMeter(Meter):
    """Counts calls of networks by the shapes of what they are given; each shape is run once without values."""

    def __init__(self, peak: float, device: torch.device) -> None:
        super().__init__(peak)
        self.device = device
        self._known: dict[Any, Cost] = {}

    def watch(self, network: nn.Module, adapter: Callable[[], str | None] | None = None) -> None:
        """Count the calls of a network that is complete and not sharded yet.

        Args:
            network: or several, in one module.
            adapter: the name of the one that is active, if that changes.
        """
        for one in network.children() if isinstance(network, nn.ModuleDict) else [network]:
            skeleton = Skeleton(one, self.device)
            layers = carriers(skeleton.network)
            one.register_forward_pre_hook(_Call(self, skeleton, layers, adapter), with_kwargs=True)

    def cost(self, key: Any, run: Callable[[], Any]) -> Cost:
        """What a call costs: that of an earlier one like it, or by running it."""
        if key not in self._known:
            with FlopCounter() as operations:
                run()
            self._known[key] = operations.cost
        return self._known[key]


class _Call:
    """Looks at the arguments of a network before it runs."""

    def __init__(self, meter: CallMeter, skeleton: Skeleton, layers: list[Any], adapter: Any) -> None:
        self.meter, self.skeleton, self.layers, self.adapter = meter, skeleton, layers, adapter

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not self.meter.active:
            return
        switches = bool(self.layers) and self.adapter is not None
        adapter = self.adapter() if switches else None
        shapes = tuple(
            (leaf.shape, leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else leaf is None
            for leaf in tree_leaves((args, kwargs))
        )

        def run() -> None:
            if switches:
                switch_adapter(self.layers, adapter)
            given, named = self.skeleton.fake((args, dict(kwargs)))
            self.skeleton.network(*given, **named)

        self.meter.add(lambda: self.meter.cost((id(self), adapter, torch.is_grad_enabled(), shapes), run))


class Usage:
    """MFU by phase: operations are summed over ranks with the other sums of an optimizer step."""

    def __init__(self, meter: Meter | None, ranks: int) -> None:
        self.meter, self.ranks = meter, ranks
        self._seconds: dict[str, float] = {}
        self._here: dict[str, float] = {}  # operations of this rank that no step has summed yet
        self._total: dict[str, float] = {}

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count to a phase of an update."""
        if self.meter is None:
            yield
            return
        start, spent = time.perf_counter(), self.meter.spent
        with self.meter.counting():
            yield
        self._seconds[phase] = time.perf_counter() - start - (self.meter.spent - spent)
        self._here |= self._taken(phase)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Work in this context is there for other ranks, and doesn't count."""
        active = self.meter is not None and self.meter.active
        if self.meter is not None:
            self.meter.active = False
        try:
            yield
        finally:
            if self.meter is not None:
                self.meter.active = active and self.meter.works

    def share(self, phase: str) -> dict[str, float]:
        """This rank's part of the sums of a step: what was counted since the last one."""
        found, self._here = self._here | self._taken(phase), {}
        return {f"operations {name}": value for name, value in found.items()}

    def add(self, sums: Mapping[str, float]) -> None:
        """What all ranks counted."""
        for name, value in sums.items():
            if name.startswith("operations "):
                phase = name.removeprefix("operations ")
                self._total[phase] = self._total.get(phase, 0.0) + value

    def metrics(self) -> dict[str, float]:
        """The share of the devices' peak that each phase used since the last call."""
        total, seconds = self._total, self._seconds
        self._total, self._seconds, self._here = {}, {}, {}
        if self.meter is None or not self.meter.works:
            return {}
        full = self.meter.peak * self.ranks
        return {f"perf/mfu/{name}": total[name] / (seconds[name] * full) for name in seconds if total.get(name)}

    def _taken(self, phase: str) -> dict[str, float]:
        if self.meter is None:
            return {}
        counted, self.meter.counted = self.meter.counted, 0.0
        return {phase: counted} if counted else {}
