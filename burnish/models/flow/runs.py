"""Runs of a pipeline's own ``__call__``, and what they are for: a schedule, a first state, a velocity, or decoding.

Stand-ins take the places of its scheduler and its networks in a shallow copy of the pipeline; nothing is patched.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from burnish.models.flow.forwards import Call, Forwards
from burnish.models.flow.levels import Levels, Unsupported, once_a_step
from burnish.models.flow.stand_ins import StandIn, aides, precise
from burnish.models.flow.tape import Tape
from burnish.models.flow.timetable import Timetable


class Left(BaseException):
    """The run has served its purpose, and gives what it is raised with. Not an Exception, which pipelines may catch."""


def leave(*args: Any, **kwargs: Any) -> None:
    """In place of a method: the run ends where it is called."""
    raise Left


class Runner:
    """A pipeline whose runs a visit sees: at every call of a network that is trained, and at every step."""

    def __init__(self, pipeline: Any, names: tuple[str, ...], device: Callable[[], torch.device]) -> None:
        """Args: ``names`` of the networks; ``device`` tells where they compute once they are placed."""
        kind = type(pipeline)
        self._pipeline, self._scheduler, self._device = pipeline, once_a_step(pipeline.scheduler), device
        self._networks = {name: part for name in names if (part := getattr(pipeline, name)) is not None}
        self._call = inspect.unwrap(kind.__call__)  # without its no_grad
        self._aides = aides(pipeline.components, names)
        self._encoders = [name for name in dir(kind) if name.startswith(("encode_", "_encode_"))]

    @functools.cached_property
    def _facts(self) -> tuple[type, dict[str, dict[str, Any]]]:
        """What pipelines and networks would look for in all of their modules, several times a run."""
        where, kind = self._device(), type(self._pipeline)
        own = type(kind.__name__, (kind,), {"_execution_device": where, "device": where})
        return own, {name: {"dtype": part.dtype, "device": where} for name, part in self._networks.items()}

    def __call__(self, arguments: Mapping[str, Any], tape: Tape, visit: Visit, seed: int, decode: Any) -> Any:
        """What the pipeline returns, or what the visit leaves it with; ``decode`` may be in place of the VAE's."""
        clone, answering = copy.copy(self._pipeline), tape.answering(visit.brought)
        clone.__class__, facts = self._facts
        own = clone.__dict__  # its __setattr__ would also write its configuration

        def network(name: str, part: nn.Module) -> StandIn:
            return StandIn(part, lambda *a, **k: visit.call(name, part, named(part, a, k)), **facts[name])

        own |= {name: network(name, part) for name, part in self._networks.items()}
        own |= self._aides
        own["scheduler"] = stand_in_scheduler(self._scheduler, visit)
        if (guider := getattr(clone, "guider", None)) is not None:
            own["guider"] = copy.deepcopy(guider)  # some have a memory of the steps before
        vae: Any = getattr(clone, "vae", None)
        if hasattr(vae, "encode"):
            encode, decode = answering(precise(vae, vae.encode)), decode or precise(vae, vae.decode)
            own["vae"] = StandIn(vae, encode=encode, decode=decode)
        own |= {name: answering(getattr(clone, name)) for name in self._encoders}
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                return self._call(clone, **arguments, generator=torch.Generator().manual_seed(seed))
        except Left as left:
            return next(iter(left.args), None)


def stand_in_scheduler(scheduler: Any, visit: Visit) -> Any:
    """A copy whose steps are the visit's; all else is the scheduler's own."""
    from diffusers.schedulers.scheduling_ddim import DDIMSchedulerOutput  # its fields are also a tuple's

    fresh, kind = copy.copy(scheduler), type(scheduler)

    @functools.wraps(scheduler.set_timesteps)  # pipelines look at what these take
    def set_timesteps(*args: Any, **kwargs: Any) -> None:
        kind.set_timesteps(fresh, *args, **kwargs)
        visit.placed(fresh)

    @functools.wraps(scheduler.step)
    def step(
        model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, return_dict: bool = True, **kwargs: Any
    ) -> Any:  # by the names that pipelines call them
        def own(predicted: Tensor = model_output, at: Tensor = sample) -> Any:
            if backward and predicted is not model_output:
                raise NotImplementedError("a step whose tokens have times of their own")
            return kind.step(fresh, predicted, timestep, at, *args, return_dict=False, **kwargs)[0]

        # with a time for each token, schedulers step forward along the negative of what a network predicts
        backward = kwargs.get("per_token_timesteps") is not None
        landed = visit.step(fresh, -model_output if backward else model_output, timestep, sample, own)
        # schedulers that also return what they predict: it is the sample, where the last step lands on it
        return DDIMSchedulerOutput(landed, landed) if return_dict else (landed, landed)

    def copied(memo: Any) -> None:
        raise Unsupported("it steps several schedulers in an iteration, so that a sample has more than one state")

    own = {"set_timesteps": set_timesteps, "step": step, "__deepcopy__": copied}
    if hasattr(scheduler, "add_noise") and hasattr(scheduler, "alphas_cumprod") and not hasattr(scheduler, "sigmas"):
        # looked up in a table by the time, also where the one that is asked for lies between two
        def add_noise(original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Any:
            return kind.add_noise(fresh, original_samples, noise, timesteps.round().long())

        own["add_noise"] = add_noise
    fresh.__dict__ |= own
    return fresh


def named(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a network's call by name."""
    signature = inspect.signature(network.forward)
    bound = signature.bind(*args, **kwargs)
    return dict(zip(signature.parameters, bound.args, strict=False)) | bound.kwargs


class Visit:
    """A run to the first step, for the state that the pipeline starts from; networks answer with zeros."""

    def __init__(self, forwards: Forwards) -> None:
        self.forwards = forwards
        self.brought: list[Any] = []  # what encoders gave, on its device

    def placed(self, scheduler: Any) -> None:
        """The pipeline has set its scheduler to its timesteps."""

    def call(self, name: str, network: nn.Module, arguments: dict[str, Any]) -> Any:
        """A network's output."""
        return self.forwards.blank(network, self.forwards.noted(name, arguments))

    def step(self, scheduler: Any, output: Tensor, time: Any, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        """The next state after ``x`` at ``time``, in the scheduler's terms; ``own`` is the scheduler's own step, which
        takes another output and state too."""
        raise Left(x)


class Placed(Visit):
    """Gives the pipeline states at a time by a first step, to go on with the step that begins there.

    One run notes how that step calls the networks, without calling them. The next run, given their outputs, takes what
    the pipeline makes of them: guidance, and its sign. At the last time no step begins, and the pipeline decodes.
    """

    def __init__(self, forwards: Forwards, table: Timetable, x: Tensor, time: float | None) -> None:
        """Args: ``x`` [B, ...] states at ``time``; None is the last time."""
        super().__init__(forwards)
        self.table, self.x, self.time = table, x, time
        self.calls: list[Call] = []
        self._outputs: Iterator[Any] | None = None

    def answered(self, outputs: Iterator[Any]) -> Placed:
        """The same for the next run, with outputs for all calls."""
        self._outputs = iter([next(outputs) for _ in self.calls])
        return self

    def placed(self, scheduler: Any) -> None:
        self._before = self.table.place(scheduler, self.time)  # steps until the states are given

    def call(self, name: str, network: nn.Module, arguments: dict[str, Any]) -> Any:
        if self._before >= 0:
            return super().call(name, network, arguments)
        if self._outputs is not None:
            return next(self._outputs)
        self.calls.append(self.forwards.noted(name, arguments, copies=len(self.x)))
        return self.forwards.blank(network, self.calls[-1])

    def step(self, scheduler: Any, output: Tensor, time: Any, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        at, rows = float(self.table.times[-1]) if self.time is None else self.time, len(self.x)
        if self._before < 0:
            answered = self._outputs is not None
            raise Left(self.table.velocity(scheduler, output[:rows], x[:rows], at) if answered else None)
        scheduler._step_index = self.table.skipped + 1
        self._before -= 1
        # some hold a sample twice, for guidance
        return x if self._before >= 0 else torch.cat([self.x * self.table.scale(at)] * len(x))


class Witness(Visit):
    """Sees all steps: of the pipeline's own run, with its own networks and solver, or with blanks."""

    last: Tensor  # the state after the last step

    def __init__(self, forwards: Forwards, *, own: bool) -> None:
        super().__init__(forwards)
        self._own = own
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []  # timestep, state and output of each step
        self._called, self._trained = False, -1  # in this step; in which step last, or -1

    def call(self, name: str, network: nn.Module, arguments: dict[str, Any]) -> Any:
        self._called = True
        run = self.forwards if self._own else self.forwards.blank
        return run(network, self.forwards.noted(name, arguments))

    def step(self, scheduler: Any, output: Tensor, time: Any, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        self._scheduler = scheduler
        # some write the next state over this one
        self._seen.append((torch.as_tensor(time).reshape(()).cpu(), x.clone(), output))
        if self._called:
            self._called, self._trained = False, len(self._seen) - 1
        if not self._own:
            scheduler._step_index = (getattr(scheduler, "_begin_index", None) or 0) + len(self._seen)
        self.last = own() if self._own else x
        return self.last

    def table(self) -> Timetable:
        """The pipeline's own schedule."""
        if not self._seen:
            raise Unsupported("it takes no step of its own scheduler")
        levels = Levels.of(self._scheduler, torch.stack([name for name, _, _ in self._seen]))
        skipped, own = len(self._scheduler.timesteps) - len(self._seen), levels.times[:-1].tolist()
        return Timetable(levels, skipped, own[min(self._trained, len(own) - 1)])

    @property
    def rows(self) -> int:
        """How many rows the scheduler steps for one sample."""
        return max((len(x) for _, x, _ in self._seen), default=1)

    def states(self, table: Timetable) -> tuple[Tensor, Tensor]:
        """The state before each step, [N, ...], and the velocity there."""
        seen = list(zip(table.times[:-1].tolist(), self._seen, strict=False))
        states = [x[:1].float() / table.scale(at) for at, (_, x, _) in seen]
        velocities = [table.velocity(self._scheduler, v[:1], x[:1], at) for at, (_, x, v) in seen]
        return torch.cat(states), torch.cat(velocities)
