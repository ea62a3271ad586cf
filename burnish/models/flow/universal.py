"""Any pipeline of diffusers as a flow model: its own ``__call__`` says how it calls its networks, and what it makes of
their outputs.

It runs once for a prompt, with blanks in place of what networks would answer, and is recorded. A velocity is that
record computed again: rows of many prompts wait for the same forward of a network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from burnish.models.flow.base import Agree, Drawing
from burnish.models.flow.called import LATEST, CalledPipeline
from burnish.models.flow.checks import distance, land, rehearse, seen, turned_off
from burnish.models.flow.failures import explained
from burnish.models.flow.forwards import Call, Forwards, Whole, groups
from burnish.models.flow.levels import Unsupported
from burnish.models.flow.networks import by_name
from burnish.models.flow.program import Program, placed, signature_of
from burnish.models.flow.runs import DECODE, Blank, Encoded, Encoding, Recorded, Runner, Visit
from burnish.models.flow.segments import Alone, Otherwise
from burnish.models.flow.tape import Tape
from burnish.models.flow.timetable import Timetable
from burnish.models.flow.trace import Momentum
from burnish.options.flow import ModelOptions
from burnish.registry import register
from burnish.types.batch import Gathered, to_device
from burnish.types.rollout import Requests
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import LruCache, in_bytes

log = logging.getLogger(__name__)
GUIDED = 2.0  # some guidance
KEPT = 2**30  # bytes of programs on the networks' device
TRIED = 4  # steps of the pipeline's own run that velocities are compared with
EXACT, ROUNDED = 1e-4, 5e-2  # largest relative difference in float32, and in half precision
SLIPS = (
    Alone,
    RuntimeError,
    ValueError,
    IndexError,
    AttributeError,
    Unsupported,
)  # of a pipeline that is run otherwise
FORMS = ((True, True), (False, True), (True, False), (False, False))  # the fastest first


@register("flow model", "pipeline")
class Universal(CalledPipeline):
    """Any pipeline that steps one scheduler once per iteration."""

    pipeline_class: ClassVar[str] = ""  # all that no family of a plugin takes

    def __init__(self, pipeline: Any, options: ModelOptions, *args: Any, **settings: Any) -> None:
        super().__init__(pipeline, options, *args, **settings)
        self._forms: dict[Any, tuple[bool, bool]] = {}  # of each way to run it that was compared
        self.unverified = FORMS[0]  # of the others
        self._verified: set[Any] = set()
        self.forwards = Forwards(self.autocast)
        with explained(self.class_name):
            self._run = Runner(pipeline, self.names, lambda: self.device, self.rollout)
        self._tapes: LruCache[Tape] = LruCache(in_bytes(options.cache_gb), lambda tape: tape.bytes)
        self._tables: LruCache[Timetable] = LruCache(LATEST)
        self._masks: LruCache[Tensor | None] = LruCache(LATEST)
        self._programs: LruCache[Program] = LruCache(KEPT, lambda program: program.bytes)
        self._known: dict[Any, list[Program]] = {}  # that may be those of other prompts, too

    def noised(self, conditioning: Gathered[Requests]) -> Tensor | None:
        return self._mask(conditioning.rows())

    def schedule(self, conditioning: Gathered[Requests], drawing: Drawing) -> Tensor:
        return self.table(conditioning.select([0]).rows()).times

    def predict(
        self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Requests,
        *, guidance: float, agree: Agree | None = None,
    ) -> Tensor:  # fmt: skip
        requests, times = conditioning.each(), time.tolist()
        wide, shares = self.form(conditioning, guidance)
        runs: dict[Any, list[int]] = {}  # rows of a prompt at a time, if they are computed together
        for i, (request, at) in enumerate(zip(requests, times, strict=True)):
            runs.setdefault((request.prompts[0].uid, at) if wide else i, []).append(i)
        order = [row for rows in runs.values() for row in rows]
        adjacent = order == list(range(len(order)))
        states = (x if adjacent else x[to_device(torch.tensor(order), x.device)]).split([*map(len, runs.values())])
        with explained(self.class_name):
            started = [
                self._begun(requests[rows[0]], guidance, some, times[rows[0]])
                for rows, some in zip(runs.values(), states, strict=True)
            ]
        networks = self._run.answering | dict(by_name(network, self.names))
        found = self._answered(networks, started, shares, agree)
        velocity = found[0] if len(found) == 1 else torch.cat(found)
        if not adjacent:
            velocity = velocity[to_device(torch.tensor(order).argsort(), x.device)]
        mask = self._mask(conditioning)
        return velocity if mask is None else torch.where(mask, velocity, 0.0)

    def _begun(self, request: Requests, guidance: float, x: Tensor, time: float) -> tuple[Any, list[Call]]:
        """A computation of velocities, and the first calls that it waits for."""
        program = self.program(request, guidance)
        run = program.velocity(self._run.scheduler, x, time)
        try:
            return run, next(run)
        except Otherwise:  # recorded anew, with this time in the place of its own
            at = program.before(time)

            def tables(scheduler: Any) -> None:
                for name in ("timesteps", "sigmas"):
                    if isinstance(table := getattr(scheduler, name, None), Tensor):
                        setattr(scheduler, name, placed(program.table, table, name, at, time))

            run = self.program(request, guidance, time, tables).velocity(self._run.scheduler, x, time, at)
            return run, next(run)

    def _answered(
        self, networks: Mapping[str, Any], started: list[tuple[Any, list[Call]]], shares: bool, agree: Agree | None
    ) -> list[Tensor]:
        """What computations return, when networks have answered all their calls."""
        found: list[Any] = [None] * len(started)
        waiting = dict(enumerate(started))
        while waiting:
            calls = [call for _, asked in waiting.values() for call in asked]
            parts = groups(calls) if shares else [[i] for i in range(len(calls))]
            outputs = iter(self.forwards.all(networks, calls, parts, agree, self.names))
            for i, (run, asked) in list(waiting.items()):
                try:
                    waiting[i] = run, run.send([next(outputs) for _ in asked])
                except StopIteration as done:
                    found[i] = done.value
                    del waiting[i]
        return found

    def verify(self, conditioning: Gathered[Requests], *, guidance: float) -> None:
        row = conditioning.select([0]).rows()
        full = replace(row, steps=self._steps(row))
        way = full.height, full.width, full.steps, guidance > 1
        if way in self._verified:
            return
        self.unverified = FORMS[-1]
        with explained(type(self.pipeline).__name__), torch.no_grad():
            start = self._compare(replace(row, steps=min(full.steps, TRIED)), guidance)
            if self._way(row, 1.0) not in self._forms:
                with suppress(Unsupported):  # which a sample would say; what learns may do without guidance
                    self._compare(replace(row, steps=min(full.steps, TRIED)), 1.0)
            rehearse(self, full, guidance, start)
            land(self, full, guidance)
        self._verified.add(way)

    def _steps(self, request: Requests) -> int:
        """Not the job's own where they are fewer: with one of them, nothing would be compared."""
        return max(request.steps, self.rollout.num_inference_steps)

    def form(self, request: Requests, guidance: float) -> tuple[bool, bool]:
        """Whether a run takes several states of a prompt, and whether rows share a forward."""
        return self._forms.get(self._way(request, guidance), self.unverified)

    def _way(self, request: Requests, guidance: float) -> Any:
        return request.height, request.width, min(self._steps(request), TRIED), guidance > 1

    def _compare(self, request: Requests, guidance: float) -> int:
        """Leave out fast forms that give other velocities than the pipeline's own run, and refuse where all do.

        Returns the first step that agrees: what a pipeline keeps of a picture may be noise until that.
        """
        witness = Visit(self.forwards, self.names)
        drawn = self.arguments.checked(self.visit(request, guidance, witness))
        for other in {1.0, max(self.rollout.guidance_scale, GUIDED)} - {guidance}:
            with suppress(UserError):  # networks are called with other sizes, which tell what has a row for each state
                self.program(request, other)
        table = self.table(request)
        states, expected = seen(witness, table, self._run.scheduler)
        times, mask = to_device(table.times[:-1], states.device), self._mask(request)
        tolerance = EXACT if self.compute == torch.float32 else ROUNDED

        def ours(states: Tensor, times: Tensor) -> Tensor:
            some = Requests.cat([request] * len(states))
            return self.predict(self.network, states, times, some, guidance=guidance)

        way = self._way(request, guidance)
        self._forms[way] = FORMS[-1]
        expected = expected if mask is None else torch.where(mask, expected, 0.0)
        found, start = ours(states, times), 0
        if mask is not None and len(states) > 1 and not distance(found[:1], expected[:1]) <= tolerance:
            start = 1
        if not (left := distance(found[start:], expected[start:])) <= tolerance:
            if witness.rows > 1:
                raise Unsupported(
                    f"its scheduler steps {witness.rows} rows for one sample, such as frames one by one, so that "
                    "these are not the state that its network reads; choose a pipeline that steps a sample as one"
                )
            raise Unsupported(
                f"at a step of its own run the velocity differs by {left:.2g} (relative), so that its steps depend on "
                "more than the state, the time and the prompt: noise drawn in each step, or momentum of guidance "
                f"({turned_off(self.pipeline)})"
                + (", or rounding (model.dtype=float32 has none)" if self.compute != torch.float32 else "")
            )
        some = torch.cat([states[[0, -1]], states[[-1, 0]] / 2]), times[[0, -1, 0, -1]]
        each = ours(*some)
        for form in FORMS:
            self._forms[way] = form
            with suppress(*SLIPS):  # whatever a pipeline makes of several states
                if distance(ours(*some), each) <= tolerance:
                    break
        if not self._forms[way][1]:
            log.warning("%s: rows are computed one by one, as together they differ", type(self.pipeline).__name__)
        decoded = self.tail(request, witness.last[:1].float() / table.scale(float(table.times[-1])))
        if not (left := distance(self.arguments.values(decoded), drawn)) <= tolerance:
            raise Unsupported(f"decoded from its own last state, a sample differs by {left:.2g} (relative)")
        return start

    def visit(self, request: Requests, guidance: float, visit: Visit, *, seed: int | None = None) -> Any:
        """A run of the pipeline. What is random in a condition is drawn from the prompt's seed, for all its samples."""
        tape, own = self._tape(request, guidance), seed_of(request.prompts[0].uid)
        return self._run(self.arguments.of(request, guidance), tape, visit, own if seed is None else seed)

    def recorded(self, request: Requests, guidance: float, visit: Recorded) -> Program:
        """A run that is recorded."""
        with torch.no_grad(), explained(self.class_name):
            returned = self.visit(request, guidance, visit)
            try:
                return Program(visit, returned)
            except Momentum as error:
                raise Unsupported(f"{error} ({turned_off(self.pipeline)})") from error

    def program(
        self, request: Requests, guidance: float, time: float | None = None,
        tables: Callable[[Any], None] | None = None,
    ) -> Program:  # fmt: skip
        """The pipeline's run for a prompt; ``tables`` places another time among its own."""
        prompt, shape = request.prompts[0], (request.height, request.width, request.steps, guidance, time)
        make = partial(Recorded, self.forwards, self.names, self.device, tables)

        def found() -> Program:
            if prompt.images or prompt.inputs or tables is not None:
                return self.recorded(request, guidance, make())
            known = self._known.setdefault(shape, [])
            for one in known:
                leaves = self._encoded(request, guidance, one.answers)
                if leaves is None or one.signature != signature_of(leaves):
                    continue
                if one.confirmed:
                    with suppress(Otherwise):
                        return one.of(leaves)
                    continue
                other = self.recorded(request, guidance, make())
                one.confirmed = one.alike(other)
                if not one.confirmed:
                    self._known[shape] = []
                return other
            program = self.recorded(request, guidance, make())
            if program.generic and len(known) < LATEST:
                known.append(program.template)
            return program

        return self._programs.get((prompt.uid, *shape), found)

    def _encoded(self, request: Requests, guidance: float, count: int) -> list[Any] | None:
        """What encoders give for a prompt, in their first so many results; None if there are fewer."""
        tape = self._tape(request, guidance)
        if len(tape) < count:
            with torch.no_grad(), suppress(Encoded), explained(self.class_name):
                self.visit(request, guidance, Encoding(self.forwards, self.names, count))
                return None
        return tape.leaves(count)

    def _tape(self, request: Requests, guidance: float) -> Tape:
        uid = request.prompts[0].uid
        return self._tapes.get((uid, request.height, request.width, guidance > 1), lambda: Tape(seed_of(uid)))

    def first(self, request: Requests, seed: int) -> Tensor:
        program = self.program(request, self.rollout.guidance_scale)
        with torch.no_grad(), explained(self.class_name):
            x = program.begin(seed)
        return x[0].float() / program.table.scale(float(program.table.times[0]))

    def table(self, request: Requests) -> Timetable:
        """The pipeline's own schedule."""
        return self._tables.get(self.key(request), lambda: self.program(request, self.rollout.guidance_scale).table)

    def tail(self, request: Requests, x: Tensor, decode: Any = None) -> Any:
        program = self.program(request, self.rollout.guidance_scale)
        if program.end is not None:
            answering = self._run.answering

            def answer(call: Call) -> Any:
                if decode is not None and call.network == DECODE:
                    return decode(*call.arguments.values())
                return self.forwards(answering[call.network], call)

            return program.returned(x, answer)
        parts = {call.network for step in program.steps if step for call in step.calls}
        end = x * program.table.scale(float(program.table.times[-1]))
        visit = Blank(self.forwards, self.names, parts, end=end, count=len(program.steps), decode=decode)
        return self.visit(request, self.rollout.guidance_scale, visit)

    def _mask(self, requests: Requests) -> Tensor | None:
        """The elements of states that reach the networks, [B, ...] bool; None if all do."""
        found = [self._masks.get(self.key(one), partial(self._reached, one)) for one in requests.each()]
        some = next((mask for mask in found if mask is not None), None)
        return None if some is None else torch.stack([torch.ones_like(some) if one is None else one for one in found])

    def _reached(self, request: Requests) -> Tensor | None:
        x, table = self.first(request, 0)[None].requires_grad_(), self.table(request)
        draw = torch.Generator().manual_seed(0)  # weights that no sum of elements cancels
        with torch.enable_grad():
            # a step that calls networks that are trained
            _, calls = self._begun(request, self.rollout.guidance_scale, x, table.last_trained)
            inputs = tree_leaves([call.arguments for call in calls])
            inputs = [leaf.value if isinstance(leaf, Whole) else leaf for leaf in inputs]
            inputs = [leaf for leaf in inputs if isinstance(leaf, Tensor) and leaf.requires_grad]
            weights = [torch.randn(leaf.shape, generator=draw).to(leaf) for leaf in inputs]
            reached = torch.autograd.grad(inputs, x, weights)[0][0] != 0
        return None if bool(reached.all()) else reached


def seed_of(uid: str) -> int:
    """The seed of what is random in a prompt's condition."""
    return int(uid, 16) >> 2
