"""Comparisons of what was recorded of a pipeline with its own runs, when a model is first used, and which of the ways
to compute it is taken."""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from burnish.diffusion.pipeline.forwards import Call, Forwards, RunDone, tensors_in
from burnish.diffusion.pipeline.program import ControlFlowChanged, Program, alike, joined
from burnish.diffusion.pipeline.runs import EncoderCache, RecordedRun
from burnish.diffusion.pipeline.schedules import NoiseSchedule, Unsupported
from burnish.diffusion.steps import finished
from burnish.types.rollout import Requests
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.diffusion.pipeline.model import PipelineModel

log = logging.getLogger(__name__)

EXACT = 1e-4  # largest relative difference of ways to compute a velocity, in float32
GUIDED = 2.0  # some guidance
TRIED = 4  # steps of the pipeline's own run that velocities are compared with
TOGETHER = 2**14  # numbers of states that are decoded at once: large samples take the memory of a decoder one by one
SLIPS = RuntimeError, ValueError, IndexError, AttributeError, Unsupported  # of a network that is called otherwise
CLOSE, NEAR = 1e-4, 1e-2  # largest difference of steps, relative to the largest value: in float32, and in less
ROUNDED = 5e-2  # of velocities and samples, in less than float32
FAR = 0.5  # of the largest value: some schedulers leave a little noise at the end, and here noise is large
SPREAD = 0.5  # of the noise before the last step, in our scale


class RandomRun(RecordedRun):
    """A recorded run whose networks answer with what is drawn, step by step. The scheduler also takes its own steps,
    from states on a straight path."""

    off = 0.0  # relative distance from the path after the last step

    def __init__(self, forwards: Forwards, device: torch.device, table: NoiseSchedule) -> None:
        super().__init__(forwards, device)
        self._table, self._draw = table, torch.Generator().manual_seed(0)
        self.made = defaultdict[int, list[tuple[str, Any, Any]]](list)  # calls and outputs of each step

    def call(self, name: str, network: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        output = super().call(name, network, arguments)
        with self.trace.paused():
            # some write the next state over this one
            self.made[len(self.ends)].append((name, tree_map_only(Tensor, torch.clone, arguments), output))
        return output

    def blank(self, network: Callable[..., Any], call: Call) -> Any:
        drawn: Any = super().blank(network, call)
        return tree_map_only(Tensor, lambda x: torch.randn(x.shape, generator=self._draw).to(x), drawn)

    def stepped(self, scheduler: Any, number: int, output: Tensor, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        if output.shape == x.shape and number + 1 < len(self._table.times):
            scheduler._step_index = self._table.skipped + number
            self.off = 0.0  # also of a step that can't be taken by itself
            with suppress(RuntimeError, ValueError, IndexError, TypeError):
                self.off = self._missed(scheduler, number, x, own)
        super().stepped(scheduler, number, output, x, own)
        return torch.randn(x[:1].shape, generator=self._draw).to(x).expand_as(x).clone()

    def _missed(self, scheduler: Any, number: int, x: Tensor, own: Callable[..., Tensor]) -> float:
        """How far the scheduler's own step ends from the path."""
        at, after = self._table.times[number : number + 2].tolist()
        draw = torch.Generator().manual_seed(0)
        clean = (torch.randn(x.shape, generator=draw) * 0.3).clamp(-0.9, 0.9).to(x.device)
        velocity = torch.randn(x.shape, generator=draw).to(x.device) * SPREAD / self._table.times[-2].item() - clean
        x = (clean + at * velocity) * self._table.scale(at)
        # what a velocity is of an output, it is for each number by itself: a factor and a summand
        least, most = (self._table.predicted(scheduler, fill(x), x, at) for fill in (torch.zeros_like, torch.ones_like))
        landed = own((velocity - least) / (most - least), x).float()
        return distance(landed / self._table.scale(after), clean + after * velocity)


def check_steps(model: PipelineModel, request: Requests, guidance: float) -> None:
    """Compare each step of a run with what was recorded of it, and where the last one ends with the sample that is
    predicted. No network computes.

    What a pipeline makes of a step may depend on nothing but the state, the time and what networks answer.

    Args:
        model: any pipeline.
        request: with all steps.
        guidance: of the run.

    Raises:
        Unsupported: a step differs.
        UserError: another number of steps is asked for than the pipeline takes by itself.
    """
    program, tolerance = model.program(request, guidance), CLOSE if model.compute == torch.float32 else NEAR
    taken = len(program.table.times) - 1
    if "num_inference_steps" not in model.arguments.parameters and taken != request.steps:
        raise UserError(
            f"num_inference_steps is {request.steps}, but a {model.class_name} is told no number of steps, and takes "
            f"{taken}: set it to {taken}, or give other sigmas or timesteps in rollout.call, if it takes them"
        )
    run = RandomRun(model.forwards, model.device, program.table)
    model.run(request, guidance, run)
    run.drop_unread()
    scheduler, table, mask = model._run.scheduler, program.table, model.noised(request)
    for k, (at, streams) in enumerate(zip(table.times[:-1].tolist(), steps := run.steps, strict=False)):
        states, before = [step.state[:1] for step in streams], [step.following[:1] for step in steps[max(k - 1, 0)]]
        kept, given = joined(before).float(), joined(states).float()
        if k and distance(given if mask is None else torch.where(mask, given, kept), kept) > tolerance:
            raise Unsupported(
                f"it changes its state between step {k} and the next one, as by clipping it (callback_on_step_end): "
                "samples would be others than its own; leave that out"
            )
        expected = program.velocity_of(scheduler, [step.output[:1] for step in streams], states, at)
        again, left = program.velocity(scheduler, joined(states).float() / table.scale(at), at), list(run.made[k])
        velocity = None
        with suppress(ControlFlowChanged):
            velocity = finished(again, lambda calls: [_answer(call, left, tolerance) for call in calls])  # noqa: B023
        if velocity is not None and _close(velocity, expected, tolerance):
            continue
        if k == 0 and len(steps) > 1 and mask is not None:
            continue  # what a pipeline keeps of an image may be noise until then
        raise Unsupported(
            f"its step {k + 1} of {len(steps)} does something else than the same step by itself: it depends on "
            "more than the state, the time and the prompt, such as momentum of guidance or noise drawn in each step "
            f"({how_to_turn_off(model.pipeline)})"
        )
    between, x = float(table.times[-2:].mean()), joined(states).float()
    with suppress(ControlFlowChanged, UserError):
        anew = model.program(request, guidance, between, (table, k)).velocity(scheduler, x, between, k)
        model.retimes = _close(next(program.velocity(scheduler, x, between), []), next(anew, []), tolerance)
    if not run.off <= FAR:
        raise Unsupported(
            f"the last step of its {type(model.pipeline.scheduler).__name__} ends {run.off:.2g} (relative) from the "
            "sample that is predicted by its prediction_type, so that it is unknown what its networks predict; save "
            "the pipeline with other options of it, or with another scheduler, as EulerDiscreteScheduler"
        )


def _answer(call: Call, left: list[tuple[str, Any, Any]], tolerance: float) -> Any:
    """The output that was made for the same call, which is taken off the list."""
    for at, (network, arguments, output) in enumerate(left):
        if network == call.network and _close(call.arguments, arguments, tolerance):
            del left[at]
            return output
    raise ControlFlowChanged


def check_samples(model: PipelineModel, full: Requests, guidance: float) -> None:
    """Have rows share no forward where they differ then, decode together what doesn't differ, and compare a sample
    with the pipeline's own end.

    Raises:
        Unsupported: that is another one.
    """
    request = replace(full, steps=min(full.steps, TRIED))
    table, tolerance = model.program(request, guidance).table, EXACT if model.compute == torch.float32 else ROUNDED
    known = dict(model.forwards.axes)
    for other in {1.0, max(model.rollout.guidance_scale, GUIDED)} - {guidance}:
        with suppress(UserError):  # networks are called with other sizes, which tell what has a row for each state
            model.program(request, other)
    if model.forwards.axes != known:
        model.forget_programs()
    one, two = (model.initial_latents(request, seed) for seed in (0, 1))
    states, times = torch.stack([one, two, two / 2, one / 2]), table.times[:-1][[0, -1, 0, -1]]
    shared, rows = model.shares, Requests.cat([request] * len(states))

    def predict(shares: bool) -> Tensor:
        model.shares = shares
        return model.predict(model.network, states, times, rows, guidance=guidance)

    each, together = predict(False), None
    with suppress(*SLIPS):
        together = predict(True)
    model.shares = shared and together is not None and distance(together, each) <= tolerance
    if not model.shares:
        log.warning("%s: rows are computed one by one, as together they differ", type(model.pipeline).__name__)
    drawn, decoded = model.end(request, one[None]), model.output(request, one[None])
    model.arguments.check_returned(drawn)

    def apart(*returned: Any) -> list[float]:  # of images, and of their sound
        return [distance(*pair) for pair in zip(*map(model.arguments.parts, returned), strict=True)]

    differences = apart(decoded, drawn)
    if not all(left <= tolerance for left in differences):
        raise Unsupported(f"decoded from the same state, a sample differs by {max(differences):.2g} (relative)")
    if 2 * one.numel() <= TOGETHER:
        with suppress(*SLIPS):
            _, both = model.outputs([request] * 2, [two[None], one[None]])
            model.decodes_together = all(left <= tolerance for left in apart(both, decoded))


class ComparedRun(RecordedRun):
    """A recorded run that ends where a network would compute, or an encoder be called otherwise than by another run."""

    def __init__(self, model: PipelineModel, other: ComparedRun | None = None) -> None:
        super().__init__(model.forwards.anew(), model.device, moving=model._moving)
        self.questions, self._other = list[Any](), other

    def asked(self, *question: Any) -> None:
        self.questions.append(question)
        count = len(self.questions)
        if self._other and not alike(self._other.questions[count - 1 : count], [question]):
            raise RunDone

    def call(self, name: str, network: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if not self.trace.varies(arguments):
            self.asked(name, arguments)
        return super().call(name, network, arguments)

    def found(self, model: PipelineModel, arguments: dict[str, Any], tape: EncoderCache) -> Any:
        """What it records of a call, and with which values."""
        program = Program(self, model._run(arguments, tape, self))
        return program.parts, program.values


def check_arguments(model: PipelineModel, full: Requests, guidance: float) -> None:
    """Look for arguments that change nothing of what is recorded: neither what encoders and networks are called with,
    nor what is made of what they answer. Such arguments are told.

    Args:
        model: any pipeline.
        full: with all steps: some begin to guide in the middle.
        guidance: of the run.

    Raises:
        UserError: guidance changes nothing.
    """
    arguments, run = model.arguments, ComparedRun(model)
    given, tape = arguments.of(full, guidance), model._tape(full, guidance)
    others: dict[str, tuple[Any, EncoderCache, ComparedRun | None]] = {}
    if guidance > 1:
        others[f"guidance_scale is {guidance:g}"] = arguments.of(full, 1.0), model._tape(full, 1.0), None
    others |= {option: (other, tape, run) for option, other in arguments.without(full, guidance).items()}
    own = run.found(model, given, tape) if others else None
    for option, (other, own_tape, beside) in others.items():
        same = other == given
        with suppress(Exception, RunDone):  # which the argument avoids, or another call
            same = same or alike(own, ComparedRun(model, beside).found(model, other, own_tape))
        if same:
            told = f"{option}, but a {type(model.pipeline).__name__} draws {full.prompts[0].text!r:.80} as without it"
            if option.startswith(("guidance_scale is", "rollout.embedded_guidance is")):
                raise UserError(f"{told}; remove it")
            log.warning(told)


def refuse_guiders(kinds: Mapping[str, Any]) -> None:
    """Refuse parts that guide by changing the network, as by skipping its layers, or without a scale.

    Args:
        kinds: classes of a pipeline's parts.

    Raises:
        UserError: naming the part.
    """
    from diffusers.guiders.guider_utils import BaseGuidance

    for name, kind in kinds.items():
        if not issubclass(kind, BaseGuidance):
            continue
        scaled = "guidance_scale" in inspect.signature(kind).parameters
        if not scaled or kind.prepare_models is not BaseGuidance.prepare_models:
            why = "changes its network while it draws, and Burnish would train the changed one"
            raise UserError(
                f"model.path has a {kind.__name__} as {name}, which {why if scaled else 'has no guidance_scale'}; "
                "give a pipeline that was saved with another, as ClassifierFreeGuidance"
            )


def how_to_turn_off(pipeline: Any) -> str:
    """How to turn off what a pipeline's guidance keeps from step to step, for a message."""
    from diffusers.guiders.guider_utils import GUIDER_CONFIG_NAME, BaseGuidance

    guiders = {name: part for name, part in pipeline.components.items() if isinstance(part, BaseGuidance)}
    if not guiders:
        return "rollout.guidance_scale=1 or rollout.call may turn it off"
    files, kind = (f"{name}/{GUIDER_CONFIG_NAME}" for name in guiders), type(next(iter(guiders.values()))).__name__
    return f'its guider, {kind}, may do so: it is off with "enabled": false in {" and ".join(files)}'


def _close(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether two trees have equal tensors, but for rounding."""
    own, other = tensors_in(found), tensors_in(expected)
    return len(own) == len(other) and all(distance(*pair) <= tolerance for pair in zip(own, other, strict=True))


def distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    if found.shape != expected.shape or not found.numel():
        return 0.0 if found.shape == expected.shape else float("inf")
    expected = expected.double()
    return float((found.to(expected) - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
