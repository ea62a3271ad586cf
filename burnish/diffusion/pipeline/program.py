"""A pipeline's run for one prompt, in segments: its start, each of its steps, and its end."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from burnish.diffusion.pipeline.forwards import Call
from burnish.diffusion.pipeline.levels import Levels, Timetable, Unsupported, sigma_at
from burnish.diffusion.pipeline.runs import Recorded
from burnish.diffusion.pipeline.segments import Operation, Segment, Value, alike, compute, driven

OBJECTS = 2**17  # bytes, roughly, of Python's objects


class Program:
    """What a recorded run does, to be done again for other states, and for other prompts once that is ``confirmed``."""

    confirmed = False

    def __init__(self, run: Recorded, returned: Any) -> None:
        """Raises: Unsupported: its steps depend on more than the state, the time and the prompt."""
        if not run.steps:
            raise Unsupported("it takes no step of its own scheduler")
        trace = run.trace
        levels = Levels.of(run.scheduler, torch.stack([name for name, _, _ in run.steps]))
        skipped = len(run.scheduler.timesteps) - len(run.steps)
        self.rows = run.rows
        self._tables = run.times
        self.steps: list[Segment | None] = []
        first = trace.value(run.steps[0][1])
        self.start = trace.segment([run.steps[0][1]], [], 0, run.ends[0], draws=True)
        noise = trace.noise_of(run.steps[0][1])
        states = [first.number if isinstance(first, Value) else -1, *run.states]
        for k, end in enumerate(run.ends):
            _, x, output = run.steps[k]
            try:
                if states[k] < 0:
                    raise Unsupported
                start = run.ends[k - 1] if k else 0
                self.steps.append(trace.segment([output, x], states[k : k + 1], start, end, noise=() if k else noise))
            except Unsupported:
                if k:
                    raise
                self.steps.append(None)  # what the pipeline begins with is no state yet
        last = [k for k, step in enumerate(self.steps) if step and any(c.network in run.trained for c in step.calls)]
        own = levels.times[:-1].tolist()
        self.table = Timetable(levels, skipped, own[min(max(last, default=-1), len(own) - 1)])
        leaves, self._returned = tree_flatten(returned if isinstance(returned, tuple) else vars(returned))
        self.end: Segment | None = None
        if all(leaf is None or isinstance(leaf, Tensor | int | float | str) for leaf in leaves):
            with suppress(Unsupported):
                self.end = trace.segment(leaves, states[-1:], run.ends[-1], len(trace.entries))
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
        self.bound = {number: trace.kept(number) for number in self._bound | made}
        # equal for prompts that may have the same program
        self.signature = signature_of(
            [self.bound[one.number] if isinstance(one, Value) else one for one in self.prompt]
        )

    @property
    def bytes(self) -> int:
        """Of what it keeps for its prompt."""
        return OBJECTS + sum(value.nbytes for value in (*self.bound.values(), *self._fixed.values()))

    @property
    def template(self) -> Program:
        """The same for other prompts, without what is this one's."""
        found = copy.copy(self)
        found.bound = {}
        return found

    def alike(self, other: Program) -> bool:
        """Whether another prompt's run was the same, but for what encoders gave."""
        names = ("start", "steps", "end", "rows", "answers", "prompt")
        same = all(alike(getattr(self, name), getattr(other, name)) for name in names)
        return same and torch.equal(self.table.times, other.table.times)

    def of(self, leaves: Sequence[Any]) -> Program:
        """The program of another prompt, by what encoders gave for it.

        Raises:
            Otherwise: the pipeline would do something else.
        """
        values = self._fixed | {
            one.number: leaf for one, leaf in zip(self.prompt, leaves, strict=True) if isinstance(one, Value)
        }
        for entry in self._settled:
            compute(entry, values)
        found = copy.copy(self)
        found.bound = {number: values[number] for number in self._bound}
        return found

    def velocity(
        self, scheduler: Any, x: Tensor, time: float, number: int | None = None
    ) -> Generator[list[Call], list[Any], Tensor]:
        """The velocity at states [B, ...] of one time, as networks answer: [B, ...] float32; ``number`` is that of the
        step which was recorded at this time, where it is not one of the pipeline's own."""
        step, times = self.at(time) if number is None else (self.steps[number], None)
        assert step is not None
        output, state = yield from step.run(
            {step.given[0]: self._scaled(x, time)}, len(x), bound=self.bound, times=times
        )
        if len(x) > 1:
            output, state = output[:, 0], state[:, 0]
        return self.table.velocity(scheduler, output[: len(x)], state[: len(x)], time)

    def _scaled(self, x: Tensor, time: float) -> Tensor:
        """States [B, ...] as the scheduler has them, with as many rows as it steps for a sample."""
        scale, count = self.table.scale(time), len(x)
        x = x if scale == 1 else x * scale
        if count == 1:
            return torch.cat([x] * self.rows) if self.rows > 1 else x
        return x[:, None].expand(count, self.rows, *x.shape[1:])

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
            return driven(run, lambda call: None)[0][:1]

    def returned(self, x: Tensor) -> Generator[list[Call], list[Any], Any]:
        """What the pipeline returns for a last state [1, ...], as its parts answer."""
        assert self.end is not None
        state = self._scaled(x, float(self.table.times[-1]))
        leaves = yield from self.end.run({self.end.given[0]: state}, bound=self.bound)
        found = tree_unflatten(leaves, self._returned)
        return found if isinstance(found, tuple) else SimpleNamespace(**found)


def placed(table: Timetable, values: Tensor, name: str, k: int, time: float) -> Tensor:
    """A scheduler's timesteps or sigmas, with the time at which step ``k`` begins."""
    if name == "timesteps":
        called = table.levels.name(time)
        values = values.to(called.dtype).clone()
        values[table.skipped + k] = called
    else:
        values = values.clone()
        values[table.skipped + k] = sigma_at(table.levels.kind, time)
    return values


def signature_of(leaves: Sequence[Any]) -> Any:
    """What prompts must have in common for one program: sizes of tensors, and all else that encoders gave."""
    return tuple((leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
