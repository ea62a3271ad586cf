"""A generator's run, shortened: encoders, forward passes without gradients and the VAE compute each shape once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from burnish.data.images import ImageRecord
from burnish.data.scored import ScoredGroup
from burnish.diffusion.assembly import FlowAssembly
from burnish.diffusion.engine import FlowJob, in_groups
from burnish.diffusion.offline import ImageFiles
from burnish.diffusion.pipeline.checks import SLIPS
from burnish.diffusion.pipeline.forwards import RunDone
from burnish.diffusion.pipeline.latents import LatentLayout
from burnish.diffusion.pipeline.loading import family_of, read_index
from burnish.diffusion.pipeline.model import PipelineModel
from burnish.diffusion.pipeline.program import Program
from burnish.diffusion.roles import FlowRoles
from burnish.plan.counter import BATCH, HOST, STORED, WEIGHTS, LiveBytes, Peak
from burnish.plan.made_up import grey, made_up_prompts
from burnish.plan.measure import LOAD, Half
from burnish.plan.repeats import Like, Once, compute_once, made_of
from burnish.types.prompt import Prompt, Prompts
from burnish.types.samples import Clip
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import LruCache

IMAGE = (1024, 1024)  # height and width of what samples begin from, where no data is at hand
CORNER = 16  # pixels


def made_up_images(
    prompts: Sequence[Prompt], members: int, pixels: np.ndarray, weights: Mapping[str, float], n: int
) -> ImageFiles:
    """Images to learn from, where those of the run are not at hand.

    Args: ``members`` images like ``pixels`` to a record; ``n`` records to each prompt, if they have scores.
    """
    image = grey(*pixels.shape[:2])
    each = [ImageRecord(prompt, (image,) * members, "made up") for prompt in prompts]
    if not weights:
        return ImageFiles(each)
    scored = [[replace(one, scores=(float(i),) * len(weights)) for i in range(n)] for one in each]
    groups = [ScoredGroup(tuple(members)) for members in scored]
    return ImageFiles([member for group in scored for member in group], groups, weights, n)


class GeneratorHalf(Half):
    """What is a generator's own in a forecast."""

    def __init__(self, assembly: FlowAssembly, *given: Any, **named: Any) -> None:
        super().__init__(assembly, *given, **named)
        self.batches = defaultdict[int, list[Any]](list)  # of a job, by their sizes: what they cost, and drew
        if assembly.config.sharding.context_parallel > 1:
            assembly.check_split_sequences()

    @staticmethod
    def without_values(config: Any, counter: LiveBytes, *, shared: bool) -> AbstractContextManager[Any]:
        # what a pipeline does for a prompt is what it does for others, which by values is compared
        return patch.object(Program, "confirmed", True)

    def made_up(self, count: int) -> dict[str, Any]:
        """Made-up prompts, and finished images of the size that the run draws where it learns from such."""
        prompts, shades = self._prompts(count), self.assembly.dummy_sample()
        config = self.assembly.config
        if not isinstance(shades, np.ndarray):
            return {"train_prompts": prompts}
        members = {"images": 1, "pairs": 2, "scored": 1}.get(config.holds)
        each = {"data": (members, config.data.scores or {}, config.rollout.n)} if members else {}
        each |= {"supervised": (1, {}, 1)} if config.supervised is not None else {}
        files = {name: made_up_images(prompts, count, shades, *scores) for name, (count, *scores) in each.items()}
        return {"train_prompts": prompts, "files": files}

    def _prompts(self, count: int) -> Prompts:
        """Made-up prompts, with an image where the pipeline needs one, or data.images_key says that there are some."""
        config = self.assembly.config
        _, index = read_index(config.model)
        family = family_of(config.model, index)
        # some pipelines take prompts alone by their signature, and fail without an image
        for image in (None, IMAGE) if config.data.images_key is None else (IMAGE, None):
            prompts = made_up_prompts(count, image)
            with suppress(UserError):
                family.check_inputs(index, config.rollout, prompts)
                return prompts
        raise UserError(
            f"no prompts can be made up for a {index.get('_class_name')}, which needs more than an image; give "
            "data.train_files"
        )

    @property
    def _components(self) -> list[tuple[str, nn.Module]]:
        every = self.assembly.roles.model.pipeline.components.items()
        return [(name, part) for name, part in every if isinstance(part, nn.Module)]

    def parts(self) -> Iterator[nn.Module]:
        yield from super().parts()
        yield from (part for _, part in self._components)

    def learned_at_once(self, rows: int) -> float:
        return float(self.assembly.config.trainer.micro_batch_size / rows)

    def caches(self) -> Any:  # what a pipeline's encoders gave for prompts
        return [tape._results for tape, _ in self.assembly.roles.model._tapes._entries.values()]

    def before_sharding(self) -> None:
        if self.assembly.finished:  # whose layout the first prompt's own run tells
            self.assembly.engine.latent_shape(self.assembly.train_prompts[0])

    def prepare(self) -> None:
        roles: FlowRoles = self.assembly.roles
        model: Any = roles.model
        once = partial(Once, counter=self.counter)
        # pipelines of two experts call both, of which one may be trained
        compute_once((part for name, part in self._components if name not in model.names), self.counter)
        if model.away:
            self._offload(model)
        model.predict = once(_in_some_form(model), held=lambda: (self.gathered(), model.shares))
        model.decode, encode_images = once(model.decode), once(model.encode_images)
        self._once = [model.predict, model.decode, encode_images]  # where a prompt is also encoded
        model.encode_images = torch.no_grad()(encode_images)
        model.verify = lambda *args, **kwargs: None
        model._latent_layout = partial(_latent_layout, model)
        for name in ("distribute", "kept"):
            setattr(roles, name, self._stored(getattr(roles, name)))
        engine: Any = self.assembly.engine
        engine.sample, engine._denoise = self._labelled(engine.sample), self._denoised(engine._denoise)
        self._sizes = dict(model.forwards._known)

    def begin(self) -> None:
        roles: FlowRoles = self.assembly.roles
        model: Any = roles.model
        roles.micro_batch_size = self.assembly.config.trainer.micro_batch_size
        model.forget_programs()
        for known in (model.forwards._known, *(one.known for one in self._once)):
            known.clear()
        model.forwards._known |= self._sizes
        for cache in (*vars(model).values(), *(data._cache for data in self.assembly.finished.values())):
            if isinstance(cache, LruCache):
                cache.clear()
        super().begin()
        for data in self.assembly.finished.values():
            data.check()  # whose first image tells the shape of all

    @property
    def _waits(self) -> bool:
        """Whether recorded states wait in CPU memory until they are learned from."""
        return bool(self.assembly.config.rollout.trajectories == "host" or self.assembly.ranks.size > 1)

    def _stored(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stored(each: Callable[..., Any], parts: Any) -> Any:
            found = function(Once(each, self.counter, self.gathered), parts)
            if self._waits:
                self.counter.label(STORED, found)
            return found

        return stored

    def _labelled(self, sample: Callable[[FlowJob], Any]) -> Callable[[FlowJob], Generator[Any]]:
        """Samples of a job with what its trajectories are for, and only a corner of every image."""

        def labelled(job: FlowJob) -> Generator[Any]:
            with closing(sample(job)) as parts:
                for rows, trace, images in parts:
                    if job.purpose == "rollout":
                        self.counter.label(STORED if self._waits else BATCH, trace)
                    yield rows, trace, [_corner(one) for one in images]
            self.batches.clear()

        return labelled

    def _denoised(self, denoise: Callable[..., Generator[None, None, Any]]) -> Callable[..., Any]:
        """What denoises the batches of a job: those after the second of a size cost what that one did."""

        def denoised(
            job: FlowJob, rows: slice, role: Any, plan: Any, branches: Any, conditioning: Any, *given: Any
        ) -> Any:
            alike, engine = self.batches[rows.stop - rows.start], self.assembly.engine
            # weights come before it is measured what a batch adds to them
            rest = conditioning.select(range(rows.start, len(conditioning)))
            engine.encode(conditioning.select(rows), rest, job)
            for base in engine.model.bases:
                base.bring()
            if len(alike) < 2 or plan.branch is not None:  # the first one may make what all have
                with self.counter.span() as span:
                    trace = yield from denoise(job, rows, role, plan, branches, conditioning, *given)
                alike.append((span, replace(trace, **{name: Like.of(value) for name, value in trace._rows()})))
                return trace
            span, like = alike[-1]
            self.counter.repeated(span)
            made = {name: made_of(value) for name, value in like._rows()}
            node = in_groups(job, branches)[rows, 1:][plan.recorded].view_as(made["time"])
            return replace(like, **{**made, "conditioning": conditioning.select(rows), "node": node})

        return denoised

    def _offload(self, model: Any) -> None:
        """Count as CPU memory what rests there (model.offload), but while it is used."""
        for part in (*model.away, *model.bases):
            self._label(part)
            if hasattr(part.part, "decode"):  # which no hook precedes
                part.part.decode = _first(part.bring, part.part.decode)
        predict = model.predict

        def alone(*args: Any, **kwargs: Any) -> Any:
            model.leave(decoders=torch.is_grad_enabled())
            for base in model.bases:
                base.bring()
            return predict(*args, **kwargs)

        model.predict = alone
        self.counter.peaks[LOAD] = Peak(self.counter.live, self.counter.parts())  # the device has never seen them

    def _label(self, part: Any) -> None:
        """Say where the weights of an offloaded part are whenever it moves."""
        weights = [weight for _, _, weight in part._resting]

        def moved(move: Callable[[], None]) -> None:
            move()
            self.counter.label(HOST if part.is_away else WEIGHTS, weights)

        part.bring, part.leave = partial(moved, part.bring), partial(moved, part.leave)
        moved(lambda: None)

    def draw(self, job: FlowJob) -> None:
        self.assembly.engine.prepare(job.prompts, job)
        with self.assembly.roles.shards.gathered(["policy"]):
            for _ in self.assembly.engine.sample(job):
                pass


def _first(come: Callable[[], None], function: Callable[..., Any]) -> Any:
    """A function of a part that is offloaded: its weights come first, as what is repeated is activations."""

    @wraps(function)
    def after(*args: Any, **kwargs: Any) -> Any:
        come()
        return function(*args, **kwargs)

    return after


def _in_some_form(model: Any) -> Callable[..., Any]:
    """What predicts, row by row where rows turn out not to go together: a run tells by values that nobody has here."""
    predict: Callable[..., Any] = model.predict

    def predicted(*args: Any, **kwargs: Any) -> Any:
        if model.shares:
            with suppress(*SLIPS):
                return predict(*args, **kwargs)
            model.shares = False
        return predict(*args, **kwargs)

    return predicted


def _latent_layout(model: PipelineModel, request: Any) -> LatentLayout:
    """How an image becomes a state, which is found by values that nobody knows; here it stays as it is."""
    shape, taken = tuple(model.initial_latents(request, 0).shape), []

    def take(**arguments: Any) -> None:
        taken.append(next(iter(arguments.values())).shape)
        raise RunDone

    with torch.no_grad(), suppress(RunDone):
        model.output(request, torch.zeros(1, *shape), take)
    place = torch.arange(taken[0].numel()).view(taken[0])
    return LatentLayout(torch.ones(taken[0]), torch.zeros(taken[0]), place, shape)


def _corner(sample: Any) -> Any:
    """A corner of an image, or of the frames of a clip: what is made of samples is no memory of a GPU."""
    if isinstance(sample, Clip):
        return replace(sample, frames=sample.frames[:, :CORNER, :CORNER])
    return sample[:CORNER, :CORNER] if isinstance(sample, np.ndarray) else sample
