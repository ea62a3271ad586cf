"""A pipeline's run for one prompt, in segments: its start, each of its steps, and its end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_iter, tree_map_only, tree_unflatten

from burnish.diffusion.pipeline.forwards import Call, tensors_in, told
from burnish.diffusion.pipeline.schedules import NoiseSchedule, Unsupported
from burnish.diffusion.steps import finished

if TYPE_CHECKING:
    from burnish.diffusion.pipeline.runs import RecordedRun
    from burnish.types.rollout import Streams


class ControlFlowChanged(Exception):
    """At this time the pipeline would do something else than what was recorded."""


@dataclass(frozen=True)
class Value:
    """Stands for a tensor that was recorded, in arguments."""

    number: int


@dataclass(eq=False, slots=True)
class Recorded:
    """What makes values of others."""

    arguments: Any  # with values in the place of tensors
    outputs: list[int]
    writes: bool = field(default=False, kw_only=True)
    drawn: Tensor | None = field(default=None, kw_only=True)  # noise
    inputs: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = list(numbers_in(self.arguments))


@dataclass(eq=False, slots=True)
class Operation(Recorded):
    """On tensors. One without outputs reads a number, and says what it was."""

    function: Callable[..., Any]
    read: Any = None

    @property
    def parts(self) -> Any:
        """What is the same in another recording of the same."""
        return self.function, self.arguments, self.outputs, self.writes, self.read


@dataclass(eq=False, slots=True)
class NetworkCall(Recorded):
    """Of a network, or of another part that is answered from outside."""

    call: Call  # with values in the place of tensors
    alone: set[int]  # values of arguments that have no rows

    @property
    def parts(self) -> Any:
        """What is the same in another recording of the same."""
        return self.call.leaves, self.call.axes, self.call.kind, sorted(self.alone), self.outputs

    def at(self, values: Mapping[int, Tensor], differing: Set[int]) -> Call:
        """The call with these values, of which some differ from those of other states and times."""

        leaves = tree_map_only(Value, lambda value: values[value.number], self.call.leaves)
        kind = self.call.kind if self.alone.isdisjoint(differing) else f"{self.call.kind} {id(values)}"
        return self.call._replace(leaves=leaves, kind=kind)


Entry = Operation | NetworkCall


def numbers_in(tree: Any) -> Iterator[int]:
    """Numbers of the values in a tree."""
    for leaf in tree_iter(tree):
        if isinstance(leaf, Value):
            yield leaf.number


def depending(entries: Iterable[Entry], numbers: Iterable[int]) -> list[Any]:
    """The entries that depend on some values."""
    reached, found = set(numbers), []
    for entry in entries:
        if not reached.isdisjoint(entry.inputs):
            reached.update(entry.outputs)
            found.append(entry)
    return found


class Segment:
    """Entries that lead from given values to roots, in rounds: operations, and then calls that need no later ones."""

    def __init__(
        self, entries: list[Entry], roots: list[Any], given: list[int], tables: Iterable[int], *, draws: bool
    ) -> None:
        """Args: ``tables`` of the scheduler's times; ``draws``: it begins with noise.

        Raises:
            Unsupported: its code reads numbers of the state.
        """
        self.roots, self.given, self.entries = roots, given, entries
        self._moving = moving = set(given)  # values that differ between states
        steps = list[Entry]()
        for entry in entries:
            begins = isinstance(entry, NetworkCall) or (draws and entry.drawn is not None)
            if begins or not moving.isdisjoint(entry.inputs):
                if not entry.outputs and not draws:
                    raise Unsupported("its own code reads numbers of the state, and does what they say")
                moving.update(entry.outputs)
                steps.append(entry)
        # what is written to must be made anew for every state
        self._in_order = any(entry.writes for entry in steps)
        if self._in_order:
            steps = entries
            moving.update(number for entry in entries for number in entry.outputs)
        own = set(map(id, steps))
        self.settled = [entry for entry in entries if id(entry) not in own]  # that depend on no state
        self.timed = depending(self.settled, tables)  # of these, those that depend on times
        self.noisy = not draws and any(entry.drawn is not None for entry in entries)
        self.computes = any(isinstance(root, Value) for root in roots)
        self.rounds = _rounds(steps, in_order=self._in_order)
        self.networks = frozenset(call.call.network for _, calls in self.rounds for call in calls)  # that are called
        self.reads = {number for entry in (*steps, *self.timed) for number in entry.inputs}.union(numbers_in(roots))
        self.reads -= moving

    @property
    def parts(self) -> Any:
        """What is the same in another recording of the same."""
        return self.roots, self.given, [entry.parts for entry in self.entries]

    def run(
        self, values: Mapping[int, Any], given: Mapping[int, Tensor], *, timed: Set[int] = frozenset(),
        generator: torch.Generator | None = None,
    ) -> Generator[list[Call], list[Any], list[Tensor]]:  # fmt: skip
        """Compute it: calls of networks are yielded, and their outputs sent.

        Args:
            values: what it reads of what depends on no state.
            given: of each value that it begins with a tensor.
            timed: those of the values that are others at other times.
            generator: that noise is drawn from.

        Returns:
            The roots.
        """
        values = {**values, **{number: x.clone() if self._in_order else x for number, x in given.items()}}
        for operations, calls in self.rounds:
            for one in operations:
                compute(one, values, generator)
            if calls:
                outputs = yield [call.at(values, self._moving | timed) for call in calls]
                for call, output in zip(calls, outputs, strict=True):
                    values |= zip(call.outputs, tensors_in(output), strict=True)
        return [values[root.number] if isinstance(root, Value) else root for root in self.roots]


def _rounds(entries: Sequence[Entry], *, in_order: bool) -> list[tuple[list[Operation], list[NetworkCall]]]:
    """Entries by how many calls they have to wait for, one after the other; each with what can be done then."""
    rounds: list[tuple[list[Operation], list[NetworkCall]]] = [([], [])]
    waits: dict[int, int] = {}  # of values: how many rounds
    for entry in entries:
        at = len(rounds) - 1 if in_order else max((waits.get(number, 0) for number in entry.inputs), default=0)
        if isinstance(entry, Operation):
            rounds[at][0].append(entry)
            waits |= dict.fromkeys(entry.outputs, at)
            continue
        rounds[at][1].append(entry)
        waits |= dict.fromkeys(entry.outputs, at + 1)
        if at + 1 == len(rounds):
            rounds.append(([], []))
    return rounds


def alike(one: Any, other: Any) -> bool:
    """Whether two recordings are the same, but for what drawn noise was."""
    (own, tree), (theirs, their_tree) = tree_flatten(one), tree_flatten(other)
    return bool(tree == their_tree) and all(map(_same, own, theirs))


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        kinds = [(tensor.shape, tensor.dtype, tensor.device) for tensor in (one, other)]
        return kinds[0] == kinds[1] and (isinstance(one, FakeTensor) or torch.equal(one, other))
    return bool(one == other or told(one) == told(other))


def compute(one: Operation, values: dict[int, Any], generator: torch.Generator | None = None) -> None:
    """Add what an operation makes of values; noise is drawn from ``generator``.

    Raises:
        ControlFlowChanged: a number that it reads is another one.
    """
    if one.drawn is not None and generator is None:
        values[one.outputs[0]] = one.drawn.clone()
        return
    args, named = one.arguments
    given = [_own(arg, values, generator) for arg in args]
    out = one.function(*given, **{name: _own(arg, values, generator) for name, arg in named.items()})
    if one.outputs:
        values |= zip(one.outputs, tensors_in(out), strict=True)
    elif out != one.read:
        raise ControlFlowChanged


def _own(arg: Any, values: Mapping[int, Any], generator: torch.Generator | None) -> Any:
    """An argument of an operation, with tensors in the place of values."""
    if isinstance(arg, Value):
        return values[arg.number]
    if isinstance(arg, list):
        return [_own(item, values, generator) for item in arg]
    return generator if isinstance(arg, torch.Generator) else arg


def joined(streams: Sequence[Tensor]) -> Tensor:
    """Streams [B, ...] side by side: [B, N]; a single one as it is."""
    return streams[0] if len(streams) == 1 else torch.cat([x.flatten(1) for x in streams], 1)


OBJECTS = 2**17  # bytes, roughly, of Python's objects


class Program:
    """What a recorded run does, to be done again for other states, and for other prompts once that is ``confirmed``."""

    confirmed = False

    def __init__(self, run: RecordedRun, returned: Any, table: NoiseSchedule | None = None) -> None:
        """Args: ``table``: of the pipeline's own times, where a step of the run begins at another one.

        Raises:
            Unsupported: its steps draw noise, or read numbers of the state.
        """
        run.drop_unread()
        if not (steps := run.steps):
            raise Unsupported("it takes no step of its own scheduler")
        trace = run.trace
        self.table = table or NoiseSchedule.of(run.scheduler, torch.stack([streams[0].name for streams in steps]))
        self.rows = max(len(step.state) for streams in steps for step in streams)  # that schedulers step for a sample
        self._tables = trace.tables
        first = [step.state for step in steps[0]]
        self._shapes = [x.shape[1:] for x in first]  # of streams
        self.start = trace.segment(first, [], 0, run.ends[0], draws=True)
        self.steps: list[Segment | None] = []
        noise, given, start = trace.noise_of(first), list(run.first.values()), 0
        for streams, end in zip(steps, run.ends, strict=True):
            roots = [*(step.output for step in streams), *(step.state for step in streams)]
            try:
                self.steps.append(trace.segment(roots, given, start, end, noise=() if start else noise))
            except Unsupported:
                if start:
                    raise
                self.steps.append(None)  # what the pipeline begins with is no state yet
            given, start = [step.following for step in streams], end
        leaves, self._returned = tree_flatten(returned if isinstance(returned, tuple) else vars(returned))
        self.end: Segment | None = None
        if all(leaf is None or isinstance(leaf, Tensor | int | float | str) for leaf in leaves):
            with suppress(Unsupported):
                segment = trace.segment(leaves, given, start, len(trace.entries))
                self.end = segment if segment.computes else None

        segments = [one for one in (self.start, *self.steps, self.end) if one is not None]
        self.answers, self.prompt = run.answers, run.prompt
        self.generic = run.generic and not any(one.noisy for one in segments)
        self.signature = signature_of([trace.tensors[x.number] if isinstance(x, Value) else x for x in self.prompt])
        settled = {id(entry) for one in segments for entry in one.settled}
        own = {one.number for one in self.prompt if isinstance(one, Value)}
        every = [entry for entry in trace.entries if id(entry) in settled]
        # constants that are written to: each prompt writes to copies of its own
        copies = [entry for entry in every if entry.writes and not entry.inputs]
        own.update(number for entry in copies for number in entry.outputs)
        self._prompted = [*copies, *depending(every, own)]
        own.update(number for entry in self._prompted for number in entry.outputs)
        reads = set[int]().union(*(one.reads for one in segments))
        self._own = reads & own  # values that depend on the prompt
        reads.update(number for entry in self._prompted for number in entry.inputs)
        self._constants = {number: trace.tensors[number] for number in reads - own}
        self.values = self._constants | {number: trace.tensors[number] for number in self._own}

    @property
    def parts(self) -> Any:
        """What is the same in the program of another prompt."""
        segments = [one and one.parts for one in (self.start, *self.steps, self.end)]
        return self.rows, self.answers, self.prompt, self.table.times, segments

    @property
    def bytes(self) -> int:
        """Of what it keeps for its prompt."""
        return OBJECTS + sum(value.nbytes for value in self.values.values())

    def bound_to(self, values: Mapping[int, Tensor]) -> Program:
        """The same with other values of what depends on the prompt."""
        other = copy.copy(self)
        other.values = {**self._constants, **values}
        return other

    def of(self, leaves: Sequence[Any]) -> Program:
        """The program of another prompt, by what encoders gave for it.

        Raises:
            ControlFlowChanged: the pipeline would do something else.
        """
        values = dict(self._constants)
        values |= {one.number: leaf for one, leaf in zip(self.prompt, leaves, strict=True) if isinstance(one, Value)}
        for entry in self._prompted:
            compute(entry, values)
        return self.bound_to({number: values[number] for number in self._own})

    def velocity(
        self, scheduler: Any, x: Tensor, time: float, number: int | None = None
    ) -> Generator[list[Call], list[Any], Tensor]:
        """The velocity at a state [1, ...] and a time, as networks answer: [1, ...] float32.

        Args:
            scheduler: of the pipeline.
            x: state.
            time: of the step.
            number: of the step that was recorded at this time, where it is not one of the pipeline's own.
        """
        k = self.before(time) if number is None else number
        step, values, timed = self.steps[k], self.values, set[int]()
        assert step is not None
        if number is None and float(self.table.times[k]) != time:
            values = dict(values)
            for table, (name, entries) in self._tables.items():
                values[table] = self.table.placed(name, entries, k, time)
            for one in step.timed:
                compute(one, values)
                timed.update(one.outputs)
        found = yield from step.run(values, self._given(step, x, time), timed=timed)
        some = [value[:1] for value in found]
        return self.velocity_of(scheduler, some[: len(self._shapes)], some[len(self._shapes) :], time)

    def velocity_of(self, scheduler: Any, outputs: Sequence[Tensor], states: Sequence[Tensor], time: float) -> Tensor:
        """The velocity [B, ...] by what the scheduler's steps are given: [B, ...] of each stream."""
        pairs = zip(outputs, states, strict=True)
        return joined([self.table.velocity(scheduler, output, x, time) for output, x in pairs])

    def split(self, x: Tensor) -> list[Tensor]:
        """The streams [B, ...] of states [B, ...]."""
        if len(self._shapes) == 1:
            return [x]
        parts = x.split([shape.numel() for shape in self._shapes], 1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def streams(self, sounds: Collection[str]) -> Streams:
        """Name and elements of each of several streams: audio, if what is returned of it are ``sounds``, else video.

        Nothing where there is one, or where one makes both.
        """
        found = list[tuple[str, int]]()
        if self.end is None or len(self._shapes) == 1:
            return ()
        fields = tree_unflatten(self.end.roots, self._returned)
        for number, shape in zip(self.end.given, self._shapes, strict=True):
            made = {number, *(one for entry in depending(self.end.entries, [number]) for one in entry.outputs)}
            heard = {name in sounds for name, value in fields.items() if not made.isdisjoint(numbers_in(value))}
            if len(heard) != 1:
                return ()
            found.append(("audio" if heard.pop() else "video", shape.numel()))
        return tuple(found)

    def _given(self, segment: Segment, x: Tensor, time: float) -> dict[int, Tensor]:
        """A state [1, ...] as the schedulers have it, with as many rows as they step for a sample."""
        scale = self.table.scale(time)
        streams = self.split(x if scale == 1 else x * scale)
        streams = [torch.cat([x] * self.rows) for x in streams] if self.rows > 1 else streams
        return dict(zip(segment.given, streams, strict=True))

    def before(self, time: float) -> int:
        """The last step that begins at a time or earlier, if it has a state of its own."""
        k = max((i for i, at in enumerate(self.table.times[:-1].tolist()) if at >= time), default=0)
        if self.steps[k] is None and len(self.steps) == 1:
            raise Unsupported("what it begins with is not a state of its scheduler, and it takes no further step")
        return k if self.steps[k] is not None else 1

    def begin(self, seed: int) -> Tensor:
        """The pipeline's own first state for a seed: [1, ...] in the scheduler's terms."""
        if self.start.networks:
            raise Unsupported("its networks run before its first step")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            run = self.start.run(self.values, {}, generator=torch.Generator().manual_seed(seed))
            return joined([x[:1] for x in finished(run)])

    def returned(self, x: Tensor) -> Generator[list[Call], list[Any], Any]:
        """What the pipeline returns for a last state [1, ...], as its parts answer."""
        assert self.end is not None
        leaves = yield from self.end.run(self.values, self._given(self.end, x, float(self.table.times[-1])))
        found = tree_unflatten(leaves, self._returned)
        return found if isinstance(found, tuple) else SimpleNamespace(**found)


def signature_of(leaves: Sequence[Any]) -> Any:
    """What prompts must have in common for one program: sizes of tensors, and all else that encoders gave."""
    return tuple((leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
