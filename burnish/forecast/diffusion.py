"""A generator's run, shortened: its own sampling, annotation and updates with fewer forward passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

from burnish.diffusion.assembly import FlowAssembly
from burnish.diffusion.engine import BranchIds, FlowEngine, FlowJob
from burnish.diffusion.pipeline.latents import LatentLayout, Taken
from burnish.diffusion.pipeline.loading import family_of, read_index
from burnish.diffusion.pipeline.model import FORMS, SLIPS, PipelineModel
from burnish.diffusion.roles import FlowRoles
from burnish.diffusion.steps import finished
from burnish.forecast.brief import Once, alike, shapes
from burnish.forecast.counter import HOST, WEIGHTS, LiveBytes, Peak
from burnish.forecast.fakes import is_fake
from burnish.forecast.phases import LOAD, tensors_of
from burnish.forecast.pretended import MadeUpPictures, made_up_prompts
from burnish.forecast.recomputed import recompute_alike
from burnish.forecast.suites import first_batch, first_unit, suite_runners
from burnish.types.clips import Clip
from burnish.types.prompt import Prompts
from burnish.types.rollout import Denoising
from burnish.utils.errors import UserError

PICTURE = (1024, 1024)  # height and width of what samples begin from, where no data is at hand
CORNER = 16  # pixels
DRAWN = ("latents", "state", "next_state", "time", "time_next", "logprob", "noised")  # fields of a trajectory


class FlowHalf:
    """What is a generator's own in a forecast."""

    def __init__(self, assembly: FlowAssembly, counter: LiveBytes, *, away: bool = False) -> None:
        """Args: ``away`` is whether parts that are not trained rest in CPU memory (model.offload)."""
        self.assembly, self.counter, self.away = assembly, counter, away
        if assembly.config.sharding.context_parallel > 1:
            assembly.check_split_sequences()
        self._come: Callable[[nn.Module], None] = lambda part: None  # for those that rest in CPU memory

    def data(self, count: int) -> dict[str, Any]:
        """Made-up prompts, and finished pictures of the size that the run draws where it learns from such."""
        prompts, shades = self._prompts(count), self.assembly.dummy_sample()
        data = self.assembly.needs.data
        members = {"prompts": 0, "pictures": 1, "pairs": 2, "scored": 1}[data]
        if not members or not isinstance(shades, np.ndarray):
            return {"train_prompts": prompts}
        n = self.assembly.config.rollout.n if data == "scored" else 0
        return {"train_prompts": prompts, "pictures": MadeUpPictures.of(prompts, members, shades, n)}

    def _prompts(self, count: int) -> Prompts:
        """Made-up prompts, with a picture where the pipeline needs one, or data.images_key says that there are some."""
        config, (family, index) = self.assembly.config, self._family
        # some pipelines take prompts alone by their signature, and fail without a picture
        for picture in (None, PICTURE) if config.data.images_key is None else (PICTURE, None):
            found = made_up_prompts(count, picture)
            try:
                family.check_inputs(index, config.rollout, found)
            except UserError:
                continue
            return found
        raise UserError(
            f"no prompts can be made up for a {index.get('_class_name')}, which needs more than a picture; give "
            "data.train_files"
        )

    @property
    def _family(self) -> tuple[Any, dict[str, Any]]:
        """What the model is read by, and what its model_index.json says."""
        model = self.assembly.config.model
        _, index = read_index(model)
        return family_of(model, index), index

    def parts(self) -> Iterator[nn.Module]:
        """Everything that has weights."""
        roles: FlowRoles = self.assembly.roles
        yield from roles._networks.values()
        pipeline: Any = getattr(roles.model, "pipeline", None)
        yield from (part for part in pipeline.components.values() if isinstance(part, nn.Module))

    def _put_away(self) -> Callable[..., None]:
        """Count frozen parts as CPU memory, but between their use and the next forward of the trained networks."""
        model: Any = self.assembly.roles.model
        parts = model.pipeline.components.items()
        frozen = [part for name, part in parts if isinstance(part, nn.Module) and name not in model.names]
        here = {id(part): True for part in frozen}

        def leave(given: Iterable[Any]) -> None:
            for part in given:
                if here.get(id(part)):
                    here[id(part)] = False
                    self.counter.label(HOST, part.parameters())

        def come(part: nn.Module) -> None:
            if not here[id(part)]:
                leave(model.never_beside(part))
                here[id(part)] = True
                self.counter.label(WEIGHTS, part.parameters())

        for part in frozen:
            for module in part.modules():
                module.register_forward_pre_hook(lambda *_, part=part: come(part))
        for network in self.assembly.roles._networks.values():
            network.register_forward_pre_hook(lambda *_: leave(frozen))
        leave(frozen)
        self.counter.peaks[LOAD] = Peak(self.counter.live, self.counter.parts())  # the device has never seen them
        self._come = come
        return partial(leave, frozen)

    def _after_coming(self, function: Callable[..., Any], parts: Sequence[nn.Module]) -> Callable[..., Any]:
        """A function whose cost is that of its activations: the weights come first, and stay for calls that follow."""

        @wraps(function)
        def after(*args: Any, **kwargs: Any) -> Any:
            for part in parts:
                self._come(part)
            return function(*args, **kwargs)

        return after

    def shorten(self) -> None:
        """Do once what is done for every prompt, every sample and every step."""
        leave = self._put_away() if self.away else None
        roles: FlowRoles = self.assembly.roles
        model: Any = roles.model
        for name, part in model.pipeline.components.items():
            if not isinstance(part, nn.Module) or name in model.names:
                continue
            if hasattr(part, "decode"):
                part.decode = self._after_coming(self.once(part.decode, shapes), [part])  # type: ignore[assignment]
                continue
            # text encoders, and networks that are not trained: pipelines of two experts call both in every run
            alike(part, self.counter)
            part.forward = self.once(part.forward, shapes)
        for network in roles._networks.values():
            alike(network, self.counter)
            if self.assembly.ranks.size == 1:  # what ranks exchange for a block depends on its place
                recompute_alike(network, self.counter)
            network.forward = self.once(network.forward, lambda *args, **more: (self._held(), shapes(*args, **more)))
        # a pipeline whose fast forms fail finds that out by trying them
        predict = self.once(
            _in_some_form(model), lambda *args, **more: (_form(model), self._held(), shapes(*args, **more))
        )
        model.predict = predict if leave is None else lambda *args, **more: leave() or predict(*args, **more)
        model.verify = self._idle(model.verify)
        model.decode = self.once(model.decode, shapes)
        model.encode_pictures = torch.no_grad()(self.once(model.encode_pictures, _sizes))
        if isinstance(model, PipelineModel):
            model._latent_layout = partial(_latent_layout, model)  # type: ignore[method-assign]
        for name in ("distribute", "kept"):
            setattr(roles, name, partial(self._brief_parts, getattr(roles, name)))
        self.assembly.engine = BriefEngine(roles, self.assembly.config.rollout, self.assembly.config.seed, self)
        for data in self.assembly.finished:
            data.check()  # which ranks that learn from the same pictures rely on

    def _idle(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called once in a run: what it does is no part of an update."""

        def idle(*args: Any, **kwargs: Any) -> Any:
            before = Counter(self.counter.work)
            found = function(*args, **kwargs)
            self.counter.work = before
            return found

        return idle

    def _held(self) -> tuple[bool, ...]:
        """Of which networks this rank has full weights for a while; of others every call gathers those of a block."""
        return tuple(sharded.is_gathered for sharded in self.assembly.roles.shards.networks.values())

    def _brief_parts(self, every: Callable[..., Any], function: Callable[..., Any], parts: Any) -> Any:
        found = every(self.once(function, len), parts)
        if self.waits:
            self.counter.label(HOST, tensors_of(found))
        return found

    @property
    def waits(self) -> bool:
        """Whether recorded states wait in CPU memory until they are learned from."""
        return self.assembly.config.rollout.trajectories == "host" or self.assembly.ranks.size > 1

    def caches(self) -> Iterator[Any]:
        """What a pipeline's encoders gave for prompts."""
        model = vars(self.assembly.roles.model)
        yield from (tape._results for tape in model["_tapes"].values()) if "_tapes" in model else ()

    def validate(self) -> None:
        """Draw the first batch of the held-out prompts and of every suite, each as large as any that follows."""
        self._evaluate(self._held_out(None))
        family, index = self._family
        for runner in suite_runners(self.assembly, self._prompts):
            try:
                family.check_inputs(index, self.assembly.config.rollout, runner.prompts)
            except UserError as error:
                raise UserError(f"suite {runner.suite.name}: {error}") from None
            self._evaluate(first_unit(runner))

    def baseline(self) -> None:
        """Draw with the guidance that the untrained model is evaluated with."""
        self._evaluate(self._held_out(self.assembly.config.reference_guidance))

    def _held_out(self, guidance: float | None) -> FlowJob:
        assembly = self.assembly
        job = assembly.evaluation(assembly).job(assembly.config.validation.n, guidance)
        found: FlowJob = first_batch(job, assembly.config, assembly.ranks.rows)
        return found

    def _evaluate(self, job: FlowJob) -> None:
        with self.assembly.roles.shards.gathered_late(["policy"]):
            for _ in self.assembly.engine.sample(job):
                pass

    def again(self) -> None:
        """Nothing is done anew: what it cost at its peak is counted again."""

    def once(self, function: Any, key: Any) -> Once:
        """Compute calls that are alike once."""
        return Once(function, key, self.counter)


class BriefEngine(FlowEngine):
    """Draws the first samples of a job; the others are made up at once, and are as large."""

    _tables: tuple[Any, ...] = ()  # of the job that is drawn: conditioning, schedule
    _before: Counter[tuple[str, str]]  # what was done before the first batch
    _received = 0  # bytes from ranks that share the sequences of a batch

    def __init__(self, roles: FlowRoles, options: Any, seed: int, half: FlowHalf) -> None:
        super().__init__(roles, options, seed=seed)
        self.half = half
        self._trajectory = half.once(self._drawn, lambda job, rows, *_: (how(job), rows.stop - rows.start))

    def sample(self, job: FlowJob) -> Generator[tuple[slice, Denoising, list[Any]]]:
        with closing(super().sample(job)) as parts:  # which holds the weights that are sampled with until the end
            rows, trace, pictures = next(parts)
            work = self.half.counter.work - self._before
            some = [_small(one) for one in pictures]
            first = {name: getattr(trace, name) for name in DRAWN}
            self._counted(trace)
            yield rows, trace, some
            del trace
            others = slice(rows.stop, len(job.prompts))
            if others.start < others.stop:
                count = others.stop - others.start
                self.half.counter.received(self._received * math.ceil(count / others.start))
                self.half.counter.work_again(work, count / others.start)
                rest = self._made_up(job, others, first)
                del first
                yield others, rest, [some[i % len(some)] for i in range(count)]

    def _made_up(self, job: FlowJob, rows: slice, like: dict[str, Tensor]) -> Denoising:
        count, waits = rows.stop - rows.start, self.options.trajectories == "host"
        with self.half.counter.made_as(HOST) if waits else nullcontext():
            values = {name: _repeated(value, count) for name, value in like.items()}
        conditioning, schedule = self._tables
        recorded = self._plan(job, schedule).recorded
        made = Denoising(
            conditioning=conditioning.select(rows),
            node=BranchIds.of(job, recorded).within[:, 1:][recorded].view(len(recorded), -1)[rows],
            schedule=schedule,
            **values,
        )
        self._counted(made)
        return made

    def _counted(self, trace: Denoising) -> None:
        """Have what is put away counted in CPU memory, which the device that a forecast runs on can't be told from."""
        itself = ref(trace)  # which goes when nobody needs it, and not when the garbage collector finds the time

        def put_away() -> Denoising:
            there = Denoising.put_away(itself())  # type: ignore[arg-type]
            self.half.counter.label(HOST, tensors_of(there))
            return there

        trace.put_away = put_away  # type: ignore[method-assign]

    def _pauses(self, *_: Any) -> list[int]:
        return []  # every batch by itself: what waits for the next expert is as large as what is kept of it

    def _denoise(
        self, job: FlowJob, rows: slice, role: Any, plan: Any, branches: Any, *given: Any
    ) -> Generator[None, None, Denoising]:
        yield from ()  # nothing pauses
        self._tables, before, self._before = given[:2], self.half.counter.wire, Counter(self.half.counter.work)
        values = self._trajectory(job, rows, role, plan, branches, *given)
        self._received = self.half.counter.wire - before
        conditioning, schedule, _ = given
        return Denoising(
            conditioning=conditioning.select(rows),
            node=branches.within[:, 1:][plan.recorded].view(rows.stop - rows.start, -1),
            schedule=schedule,
            **values,
        )

    def _drawn(self, job: FlowJob, rows: slice, role: Any, plan: Any, *given: Any) -> dict[str, Tensor]:
        found = finished(super()._denoise(job, rows, role, plan, *given))
        drawn = {name: getattr(found, name) for name in DRAWN}
        count = len(plan.recorded)
        for name, times in (("time", plan.times[:-1]), ("time_next", plan.times[1:])):
            # with values, for a time may decide which of a pipeline's networks is called
            drawn[name] = times.expand(count, -1)[plan.recorded].view(count, -1)
        return drawn


def _in_some_form(model: Any) -> Callable[..., Any]:
    """What predicts, row by row where rows turn out not to go together: a run tells by values that nobody has here."""
    predict: Callable[..., Any] = model.predict
    if not isinstance(model, PipelineModel):
        return predict

    def predicted(*args: Any, **kwargs: Any) -> Any:
        if model.unverified != FORMS[-1]:
            with suppress(*SLIPS):
                return predict(*args, **kwargs)
            model.unverified = FORMS[-1]
        return predict(*args, **kwargs)

    return predicted


def how(job: FlowJob) -> Any:
    """What tells apart jobs that need other memory for as many samples."""
    size = job.height, job.width
    return job.purpose, job.role, job.recording is None, job.guidance, job.steps, job.solver, *size


def _form(model: Any) -> Any:
    """How a model puts rows together."""
    return model.unverified if isinstance(model, PipelineModel) else None


def _sizes(pictures: Sequence[np.ndarray], *_: Any) -> Any:
    return tuple(picture.shape for picture in pictures)


def _latent_layout(model: PipelineModel, request: Any) -> LatentLayout:
    """How a picture becomes a state, which is found by values that nobody knows; here it stays as it is."""
    shape, taken = tuple(model.initial_latents(request, 0).shape), []

    def take(latents: Tensor, *_: Any, **__: Any) -> None:
        taken.append(latents.shape)
        raise Taken

    with torch.no_grad(), suppress(Taken):
        model.output(request, torch.zeros(1, *shape), take)
    place = torch.arange(taken[0].numel()).view(taken[0])
    return LatentLayout(torch.ones(taken[0]), torch.zeros(taken[0]), place, shape)


def _repeated(value: Tensor, count: int) -> Tensor:
    """The like of the first row, several times."""
    if is_fake(value):
        return torch.empty((count, *value.shape[1:]), dtype=value.dtype)
    return value[:1].expand(count, *value.shape[1:]).contiguous()


def _small(sample: Any) -> Any:
    """A corner of a picture, or of the frames of a clip: what is made of samples is no memory of a GPU."""
    if isinstance(sample, Clip):
        return replace(sample, frames=sample.frames[:, :CORNER, :CORNER])
    return sample[:CORNER, :CORNER] if isinstance(sample, np.ndarray) else sample
