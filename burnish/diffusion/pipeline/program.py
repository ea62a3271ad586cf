"""A pipeline's run for one prompt, in segments: its start, each of its steps, and its end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_iter, tree_leaves, tree_map, tree_unflatten

from burnish.diffusion.pipeline.forwards import Call, Whole, tiled
from burnish.diffusion.pipeline.schedules import NoiseSchedule, Unsupported, sigma_at
from burnish.diffusion.steps import finished

if TYPE_CHECKING:
    from burnish.diffusion.pipeline.runs import RecordedRun

# bits of what a value depends on: the scheduler's times, a state or an output, drawn noise, what encoders gave
TIME, STATE, NOISE, PROMPT = 1, 2, 4, 8


class ControlFlowChanged(Exception):
    """At this time the pipeline would do something else than what was recorded."""


class NotBatchable(Exception):
    """What was recorded can't be computed for several states at once."""


@dataclass(frozen=True)
class Value:
    """Stands for a tensor that was recorded, in arguments."""

    number: int


@dataclass(eq=False, slots=True)
class Operation:
    """On tensors. One without outputs reads a number, and says what it was."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[int]
    depends: int
    writes: bool = False
    read: Any = None
    drawn: Tensor | None = None  # noise


@dataclass(eq=False, slots=True)
class NetworkCall:
    """Of a network, or of another part that is answered from outside."""

    network: str
    arguments: dict[str, Any]  # by name, with values
    flags: dict[str, Any]  # which arguments have rows
    kind: str  # equal for calls that may share a forward
    alone: set[int]  # values of arguments that have no rows
    outputs: list[int] = field(default_factory=list)

    def at(self, values: Mapping[int, Tensor], count: int, of_states: Set[int], of_times: Set[int]) -> Call:
        """The call for so many states, which differ in some values, and are at a time that differs in others."""

        def own(one: Any, row: int | None = None) -> Any:
            if not isinstance(one, Value):
                return one
            value, several = values[one.number], count > 1 and one.number in of_states
            if several and row is None:
                raise NotBatchable
            return value[row] if several else value

        def made(rowed: Any, given: Any) -> Any:
            if not rowed:
                if isinstance(given, Whole):
                    return Whole(own(given.value))
                return tree_map(own, given)
            if isinstance(given, list):
                return [tree_map(partial(own, row=row), one) for row in range(count) for one in given]
            if isinstance(given, Value) and count > 1 and given.number in of_states:
                return values[given.number].flatten(0, 1)
            return tiled(own(given), count)

        differs = self.alone & (of_states | of_times)
        kind = f"{self.kind} {id(values)}" if differs else self.kind
        return Call(self.network, tree_map(made, self.flags, self.arguments), kind)

    def results(self, output: Any, count: int) -> Iterator[tuple[int, Tensor]]:
        """The values of its outputs for so many states."""
        found = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        single = len(self.outputs)
        if count > 1 and len(found) == single:
            found = [leaf.unflatten(0, (count, -1)) for leaf in found]
        elif count > 1:  # lists of rows
            found = [torch.stack(found[i::single]) for i in range(single)]
        return zip(self.outputs, found, strict=True)


def is_noise(entry: Operation | NetworkCall) -> bool:
    """Whether it draws."""
    return isinstance(entry, Operation) and entry.drawn is not None


def inputs_of(entry: Operation | NetworkCall) -> Iterator[int]:
    """Numbers of the values that an entry reads."""
    return numbers_in((entry.args, entry.kwargs) if isinstance(entry, Operation) else entry.arguments)


def numbers_in(tree: Any) -> Iterator[int]:
    """Numbers of the values in a tree."""
    for leaf in tree_iter(tree):
        leaf = leaf.value if isinstance(leaf, Whole) else leaf
        if isinstance(leaf, Value):
            yield leaf.number


T = TypeVar("T")


class Segment:
    """Entries that lead from given values to roots, in rounds: operations, and then calls that need no later ones."""

    def __init__(
        self, entries: list[Operation | NetworkCall], roots: list[Any], given: list[int], tensors: Sequence[Tensor],
        depends: Sequence[int], *, draws: bool = False,
    ) -> None:  # fmt: skip
        """Args: ``tensors`` as they were recorded and what they depend on, by number; ``draws``: it begins with noise.

        Raises:
            Unsupported: its code reads numbers of the state.
        """
        self.roots, self.given, self.entries = roots, given, entries
        moving, timed = set(given), set[int]()
        moves: list[bool] = []
        for entry in entries:
            moves.append(
                isinstance(entry, NetworkCall) or (draws and is_noise(entry)) or not moving.isdisjoint(inputs_of(entry))
            )
            if moves[-1]:
                if not entry.outputs and not draws:
                    raise Unsupported("its own code reads numbers of the state, and does what they say")
                moving |= set(entry.outputs)
        # what is written to must be made anew for every state
        self._in_order = any(
            entry.writes for entry, own in zip(entries, moves, strict=True) if own and isinstance(entry, Operation)
        )
        steps: list[Operation | NetworkCall] = []
        self._timed: list[Operation] = []  # that depend on times, but on no state
        self.settled: list[Operation] = []  # that depend on the prompt, but on no state
        for entry, own in zip(entries, moves, strict=True):
            if own or self._in_order:
                moving |= set(entry.outputs)
                steps.append(entry)
                continue
            assert isinstance(entry, Operation)
            if entry.depends & TIME:
                timed |= set(entry.outputs)
                self._timed.append(entry)
            if entry.depends & PROMPT or any(depends[number] & PROMPT for number in entry.outputs):
                self.settled.append(entry)
        self.noisy = not draws and any(map(is_noise, entries))
        self.rounds = _rounds(steps, in_order=self._in_order)
        self._done = _last_readers(self.rounds, {root.number for root in roots if isinstance(root, Value)})
        self.calls = [call for _, calls in self.rounds for call in calls]
        self._moving, self._later = moving, timed  # values that differ between states, and between times
        needed = {root.number for root in roots if isinstance(root, Value)}.union(*map(inputs_of, steps)) - moving
        given_anew = needed.union(*map(inputs_of, self._timed)) - moving - timed
        # what depends on the prompt is bound to it, at the recorded times and at others
        self._bound = tuple({n for n in some if depends[n] & PROMPT} for some in (needed, given_anew))
        self._values = {n: tensors[n] for n in needed - self._bound[0]}
        self._constants = {n: tensors[n] for n in given_anew - self._bound[1]}
        self.prompted = self._bound[0] | self._bound[1]
        self.fixed = {n: tensors[n] for n in needed.union(*map(inputs_of, self.settled)) - moving - self.prompted}

    def run(
        self, given: Mapping[int, Tensor], count: int = 1, *, bound: Mapping[int, Tensor],
        times: Mapping[int, Tensor] | None = None, generator: torch.Generator | None = None,
    ) -> Generator[list[Call], list[Any], list[Tensor]]:  # fmt: skip
        """Compute it: calls of networks are yielded, and their outputs sent.

        Args:
            bound: what depends on the prompt.
            given: of each value that it begins with a tensor; of ``count`` states along a first axis if it is not 1.
            count: how many states.
            times: other values of the scheduler's tables.
            generator: that noise is drawn from.

        Returns:
            The roots.

        Raises:
            ControlFlowChanged: the pipeline would do something else at these times.
            NotBatchable: it can't be computed for several states at once.
        """
        if count > 1 and self._in_order:
            raise NotBatchable
        values = dict(self._values) if times is None else self._constants | dict(times)
        values |= {number: bound[number] for number in self._bound[times is not None]}
        values |= {number: x.clone() for number, x in given.items()} if self._in_order else given
        for one in () if times is None else self._timed:
            compute(one, values)
        for operations, calls in self.rounds:
            if count > 1 and operations:
                self._compute_each(operations, values)
            for one in operations if count == 1 else ():
                compute(one, values, generator)
                self._drop(values, one)
            if calls:
                later = self._later if times is not None else set[int]()
                asked = [call.at(values, count, self._moving, later) for call in calls]
                for call in calls:
                    self._drop(values, call)
                outputs = yield asked
                del asked
                for call, output in zip(calls, outputs, strict=True):
                    values |= call.results(output, count)
                del outputs
        return [values[root.number] if isinstance(root, Value) else root for root in self.roots]

    def _drop(self, values: dict[int, Any], entry: Operation | NetworkCall) -> None:
        """Forget what nobody reads after an entry."""
        for number in self._done.get(id(entry), ()):
            values.pop(number, None)

    def _compute_each(self, operations: list[Operation], values: dict[int, Any]) -> None:
        """Operations for several states at once."""
        made = {number for one in operations for number in one.outputs}
        inputs = {number for one in operations for number in inputs_of(one)}
        done = {number for one in operations for number in self._done.get(id(one), ())}
        batched, left = sorted((inputs - made) & self._moving), sorted(made - done)

        def together(*each: Tensor) -> list[Tensor]:
            local = values | dict(zip(batched, each, strict=True))
            for one in operations:
                compute(one, local)
                self._drop(local, one)
            return [local[number] for number in left]

        results = torch.func.vmap(together)(*[values[number] for number in batched])
        for number in done:
            values.pop(number, None)
        values |= zip(left, results, strict=True)


def driven(run: Generator[list[Call], list[Any], T], answer: Callable[[Call], Any]) -> T:
    """What a computation returns, with calls of networks answered one by one."""
    return finished(run, lambda calls: [answer(call) for call in calls])


def _last_readers(rounds: Sequence[tuple[list[Operation], list[NetworkCall]]], roots: set[int]) -> dict[int, list[int]]:
    """By the identity of an entry, the values that nobody reads after it."""
    last: dict[int, int] = {}
    for operations, calls in rounds:
        every: list[Operation | NetworkCall] = [*operations, *calls]
        for entry in every:
            last |= dict.fromkeys((*inputs_of(entry), *entry.outputs), id(entry))
    found: dict[int, list[int]] = {}
    for number, reader in last.items():
        if number not in roots:
            found.setdefault(reader, []).append(number)
    return found


def _rounds(
    entries: Sequence[Operation | NetworkCall], *, in_order: bool
) -> list[tuple[list[Operation], list[NetworkCall]]]:
    """Entries by how many calls they have to wait for, one after the other; each with what can be done then."""
    found: list[tuple[list[Operation], list[NetworkCall]]] = []
    level: dict[int, int] = {}
    latest = 0
    for entry in entries:
        at = max((level.get(number, 0) for number in inputs_of(entry)), default=0)
        at = max(at, latest) if in_order else at
        while len(found) <= at:
            found.append(([], []))
        if isinstance(entry, Operation):
            found[at][0].append(entry)
        else:
            found[at][1].append(entry)
        latest = max(latest, at + isinstance(entry, NetworkCall))
        level |= dict.fromkeys(entry.outputs, at + isinstance(entry, NetworkCall))
    return found


def alike(one: Any, other: Any) -> bool:
    """Whether two recordings are the same, but for what drawn noise was."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Segment):
        return all(alike(getattr(one, name), getattr(other, name)) for name in ("roots", "given", "entries", "fixed"))
    if isinstance(one, Operation | NetworkCall):
        names = {part.name for part in fields(one)} - {"drawn"}
        return all(alike(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
            return False
        return isinstance(one, FakeTensor) or torch.equal(one, other)
    if isinstance(one, torch.Generator):
        return True
    if isinstance(one, Whole):
        return alike(one.value, other.value)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def compute(one: Operation, values: dict[int, Any], generator: torch.Generator | None = None) -> None:
    """Add what an operation makes of values; noise is drawn from ``generator``.

    Raises:
        ControlFlowChanged: a number that it reads is another one.
    """

    def own(arg: Any) -> Any:
        if isinstance(arg, Value):
            return values[arg.number]
        if isinstance(arg, list):
            return [own(item) for item in arg]
        return generator if isinstance(arg, torch.Generator) else arg

    if one.drawn is not None and generator is None:
        values[one.outputs[0]] = one.drawn.clone()
        return
    out = one.function(*[own(arg) for arg in one.args], **{name: own(arg) for name, arg in one.kwargs.items()})
    if not one.outputs:
        if out != one.read:
            raise ControlFlowChanged
        return
    results = [out] if isinstance(out, Tensor) else [item for item in out if isinstance(item, Tensor)]
    values |= zip(one.outputs, results, strict=True)


def joined(streams: Sequence[Tensor]) -> Tensor:
    """Streams [B, ...] side by side: [B, N]; a single one as it is."""
    return streams[0] if len(streams) == 1 else torch.cat([x.flatten(1) for x in streams], 1)


OBJECTS = 2**17  # bytes, roughly, of Python's objects


class Program:
    """What a recorded run does, to be done again for other states, and for other prompts once that is ``confirmed``."""

    confirmed = False

    def __init__(self, run: RecordedRun, returned: Any) -> None:
        """Raises: Unsupported: its steps depend on more than the state, the time and the prompt."""
        if not (steps := run.steps):
            raise Unsupported("it takes no step of its own scheduler")
        trace = run.trace
        table = NoiseSchedule.of(run.scheduler, torch.stack([streams[0].name for streams in steps]))
        skipped = len(run.scheduler.timesteps) - len(steps)
        self.rows = run.rows
        self._tables = run.times
        self.steps: list[Segment | None] = []
        first = [step.state for step in steps[0]]
        self._shapes = [x.shape[1:] for x in first]  # of streams
        self.start = trace.segment(first, [], 0, run.ends[0], draws=True)
        noise = trace.noise_of(first)
        given = [list(run.first.values()), *([step.following for step in streams] for streams in steps)]
        states = [list(map(trace.value, some)) for some in given]
        for k, (end, streams) in enumerate(zip(run.ends, steps, strict=True)):
            roots = [*(step.output for step in streams), *(step.state for step in streams)]
            try:
                if not all(isinstance(state, Value) for state in states[k]):
                    raise Unsupported
                start, numbers = run.ends[k - 1] if k else 0, list(numbers_in(states[k]))
                self.steps.append(trace.segment(roots, numbers, start, end, noise=() if k else noise))
            except Unsupported:
                if k:
                    raise
                self.steps.append(None)  # what the pipeline begins with is no state yet
        last = [k for k, step in enumerate(self.steps) if step and any(c.network in run.trained for c in step.calls)]
        own = table.times[:-1].tolist()
        trained = own[min(max(last, default=-1), len(own) - 1)]
        self.table = replace(table, skipped=skipped, last_trained=trained)
        leaves, self._returned = tree_flatten(returned if isinstance(returned, tuple) else vars(returned))
        self.end: Segment | None = None
        if all(leaf is None or isinstance(leaf, Tensor | int | float | str) for leaf in leaves):
            with suppress(Unsupported):
                self.end = trace.segment(leaves, list(numbers_in(states[-1])), run.ends[-1], len(trace.entries))
            if self.end is not None and not any(isinstance(root, Value) for root in self.end.roots):
                self.end = None

        segments = [one for one in (self.start, *self.steps, self.end) if one is not None]
        self.answers, self.prompt = run.answers, run.prompt
        self.generic = run.generic and not any(one.noisy for one in segments)
        settled = {id(entry) for one in segments for entry in one.settled}
        self._settled = [one for one in trace.entries if isinstance(one, Operation) and id(one) in settled]
        made = {number for one in self._settled for number in one.outputs}
        self._fixed = {n: value for one in segments for n, value in one.fixed.items()}
        self._bound = {n for one in segments for n in one.prompted} | {
            one.number for one in self.prompt if isinstance(one, Value)
        }
        self.bound = {number: trace.tensors[number] for number in self._bound | made}
        # equal for prompts that may have the same program
        self.signature = signature_of(
            [self.bound[one.number] if isinstance(one, Value) else one for one in self.prompt]
        )

    @property
    def bytes(self) -> int:
        """Of what it keeps for its prompt."""
        return OBJECTS + sum(value.nbytes for value in (*self.bound.values(), *self._fixed.values()))

    def bound_to(self, values: Mapping[int, Tensor]) -> Program:
        """The same with other values of what depends on the prompt."""
        found = copy.copy(self)
        found.bound = dict(values)
        return found

    def alike(self, other: Program) -> bool:
        """Whether another prompt's run was the same, but for what encoders gave."""
        names = ("start", "steps", "end", "rows", "answers", "prompt")
        same = all(alike(getattr(self, name), getattr(other, name)) for name in names)
        return same and torch.equal(self.table.times, other.table.times)

    def of(self, leaves: Sequence[Any]) -> Program:
        """The program of another prompt, by what encoders gave for it.

        Raises:
            ControlFlowChanged: the pipeline would do something else.
        """
        values = self._fixed | {
            one.number: leaf for one, leaf in zip(self.prompt, leaves, strict=True) if isinstance(one, Value)
        }
        for entry in self._settled:
            compute(entry, values)
        return self.bound_to({number: values[number] for number in self._bound})

    def velocity(
        self, scheduler: Any, x: Tensor, time: float, number: int | None = None
    ) -> Generator[list[Call], list[Any], Tensor]:
        """The velocity at states [B, ...] of one time, as networks answer: [B, ...] float32; ``number`` is that of the
        step which was recorded at this time, where it is not one of the pipeline's own."""
        step, times = self.at(time) if number is None else (self.steps[number], None)
        assert step is not None
        found = yield from step.run(self._given(step, x, time), len(x), bound=self.bound, times=times)
        if len(x) > 1:
            found = [value[:, 0] for value in found]
        some = [value[: len(x)] for value in found]
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

    def _given(self, segment: Segment, x: Tensor, time: float) -> dict[int, Tensor]:
        """States [B, ...] as the schedulers have them, with as many rows as they step for a sample."""
        scale, count = self.table.scale(time), len(x)
        streams = self.split(x if scale == 1 else x * scale)
        if count > 1:
            streams = [x[:, None].expand(count, self.rows, *x.shape[1:]) for x in streams]
        elif self.rows > 1:
            streams = [torch.cat([x] * self.rows) for x in streams]
        return dict(zip(segment.given, streams, strict=True))

    def before(self, time: float) -> int:
        """The last step that begins at a time or earlier, if it has a state of its own."""
        k = max((i for i, at in enumerate(self.table.times[:-1].tolist()) if at >= time), default=0)
        if self.steps[k] is None and len(self.steps) == 1:
            raise Unsupported("what it begins with is no state of its scheduler, and it takes no further step")
        return k if self.steps[k] is not None else 1

    def at(self, time: float) -> tuple[Segment, dict[int, Tensor] | None]:
        """The step at a time, with other tables for one between the pipeline's own."""
        times, k = self.table.times[:-1].tolist(), self.before(time)
        step = self.steps[k]
        assert step is not None
        if times[k] == time:
            return step, None
        return step, {
            number: placed(self.table, table, name, k, time) for number, (name, table) in self._tables.items()
        }

    def begin(self, seed: int) -> Tensor:
        """The pipeline's own first state for a seed: [1, ...] in the scheduler's terms."""
        if self.start.calls:
            raise Unsupported("its networks run before its first step")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            run = self.start.run({}, bound=self.bound, generator=torch.Generator().manual_seed(seed))
            return joined([x[:1] for x in driven(run, lambda call: None)])

    def returned(self, x: Tensor) -> Generator[list[Call], list[Any], Any]:
        """What the pipeline returns for a last state [1, ...], as its parts answer."""
        assert self.end is not None
        leaves = yield from self.end.run(self._given(self.end, x, float(self.table.times[-1])), bound=self.bound)
        found = tree_unflatten(leaves, self._returned)
        return found if isinstance(found, tuple) else SimpleNamespace(**found)


def placed(table: NoiseSchedule, values: Tensor, name: str, k: int, time: float) -> Tensor:
    """A scheduler's timesteps or sigmas, with the time at which step ``k`` begins."""
    here = table.name(time) if name == "timesteps" else values.new_tensor(sigma_at(table.kind, time))
    values = values.to(here.dtype, copy=True)
    values[table.skipped + k] = here
    return values


def signature_of(leaves: Sequence[Any]) -> Any:
    """What prompts must have in common for one program: sizes of tensors, and all else that encoders gave."""
    return tuple((leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
