"""Any pipeline of diffusers as a generator: its own ``__call__`` says how it calls its networks, and what it makes of
their outputs.

It runs once for a prompt, with blanks in place of what networks would answer, and is recorded. A velocity is that
record computed again: rows of many prompts wait for the same forward of a network."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from diffusers import DiffusionPipeline
from torch import Tensor, nn

from burnish.diffusion.options import ModelOptions
from burnish.diffusion.pipeline.arguments import SOUNDS, Arguments
from burnish.diffusion.pipeline.base import Agree
from burnish.diffusion.pipeline.checks import TOGETHER, check_arguments, check_samples, check_steps, refuse_guiders
from burnish.diffusion.pipeline.forwards import Call, Forwards, RunDone, tensors_in
from burnish.diffusion.pipeline.latents import LatentLayout
from burnish.diffusion.pipeline.loaded import LoadedPipeline
from burnish.diffusion.pipeline.loading import classes_of
from burnish.diffusion.pipeline.networks import by_name
from burnish.diffusion.pipeline.program import ControlFlowChanged, Program, alike, signature_of
from burnish.diffusion.pipeline.runs import (
    DECODE,
    EncoderCache,
    PipelineRun,
    RecordedRun,
    Runner,
)
from burnish.diffusion.pipeline.schedules import NoiseSchedule, Unsupported, check_scheduler
from burnish.diffusion.pipeline.writing import Asking, Question, check_tokens, token_logprobs, write
from burnish.registry import register
from burnish.types.prompt import Prompt
from burnish.types.rollout import Requests, Streams
from burnish.utils import random
from burnish.utils.errors import UserError, first_line, out_of_memory
from burnish.utils.lru_cache import ENCODED, LruCache

if TYPE_CHECKING:
    from burnish.diffusion.options import ModelOptions, RolloutOptions
    from burnish.types.samples import Kind


OURS = Path(__file__).parents[2]
# functions of ours that call parts of a pipeline as the pipeline calls them
HANDED_ON = ("set_timesteps", "own", "_record", "answered", "called")


@contextmanager
def explained(model: PipelineModel) -> Iterator[None]:
    """Turn what a pipeline's own call raises into a UserError; errors of Burnish's own code stay as they are.

    Args:
        model: whose pipeline it is.

    Raises:
        UserError: with the reason, or with the error and the line of the library that raised it.
    """
    try:
        yield
    except UserError:
        raise
    except Unsupported as error:
        raise UserError(f"a {model.class_name} can't be trained: {error}") from error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if out_of_memory(error) or (OURS in Path(last.filename).parents and last.name not in HANDED_ON):
            raise
        said = first_line(error, "no reason is given")
        without = f" without {', '.join(absent)}" if (absent := model.absent_parts()) else ""
        raise UserError(
            f"a {model.class_name}{without} can't be drawn from with the first prompt and these options: its own call "
            f"ended with {type(error).__name__}: {said} ({Path(last.filename).name}, line {last.lineno}); give it what "
            "it needs (images with the prompt, rollout.height and width, for validations those of validation, "
            "rollout.max_sequence_length, rollout.call, model.vae_tiling, another model.dtype), and try the same call "
            "in diffusers alone"
        ) from error


LATEST = 256  # prompts with images whose schedules and masks are kept


KEPT = 2**31  # bytes of programs on the networks' device


@register("flow model", "pipeline")
class PipelineModel(LoadedPipeline):
    """Any pipeline that steps its scheduler once per iteration, or once for each of several streams.

    Its conditioning is the prompt itself, and its samples are what its call returns.
    """

    pipeline_class: ClassVar[str] = ""  # all that no family of a plugin takes

    def __init__(self, pipeline: Any, options: ModelOptions, rollout: RolloutOptions, *, compute: torch.dtype) -> None:
        super().__init__(pipeline, options, rollout, compute=compute)
        if inner := [type(part).__name__ for part in vars(pipeline).values() if isinstance(part, DiffusionPipeline)]:
            raise UserError(
                f"a {self.class_name} can't be trained: it runs other pipelines one after the other; give the one of "
                f"them that draws from a prompt ({', '.join(inner)}) as _class_name in model_index.json"
            )
        self.arguments = Arguments(type(pipeline), rollout)
        self.arguments.read_rate(pipeline.components.values())
        self.shares = True  # whether rows share a forward
        self.decodes_together = False  # whether small samples are the same, decoded together
        self._moving = (*self.names, *self.experts)  # networks whose outputs are no constants of a prompt
        self._questions: LruCache[Question] = LruCache(LATEST)
        self._verified: set[Any] = set()
        # whether steps at times between the pipeline's own are what a run at them is: it may read times unseen (tolist)
        self.retimes = True
        self._reads_alike = False  # whether tokens that were written have the same log-probs once they are read
        # checks run single rows, for which each block would be compiled once more
        self._as_it_is = partial(torch.compiler.set_stance, "force_eager") if options.compile else nullcontext
        self.forwards = Forwards(self.compute)
        with explained(self):
            self._run = Runner(pipeline, self.names, lambda: self.device, self.rollout)
        self._latent_layouts: LruCache[LatentLayout] = LruCache(LATEST)
        self._tapes: LruCache[EncoderCache] = LruCache(ENCODED, lambda tape: tape.bytes)
        self._masks: LruCache[Tensor | None] = LruCache(LATEST)
        self.forget_programs()

    def forget_programs(self) -> None:
        """Have runs recorded anew, by what is known of networks now."""
        self._programs: LruCache[Program] = LruCache(KEPT, lambda program: program.bytes)
        self._known: dict[Any, dict[Any, Program]] = {}  # that may be those of other prompts, too, by their signatures

    def key(self, request: Requests) -> Any:
        """What decides on schedule, states and masks: for prompts with images, the prompt too."""
        prompt = request.prompts[0]
        with_images = bool(prompt.images or prompt.inputs)
        return request.height, request.width, request.steps, prompt.uid if with_images else ""

    @classmethod
    def check_options(cls, path: Path, index: dict[str, Any], rollout: RolloutOptions) -> None:
        """Refuse options that the pipeline's own call doesn't take, before any weight is loaded.

        Raises:
            UserError: a class is unknown, or an option has nothing to act on.
        """
        kinds, encoders = classes_of(index, path), [name for name in index if name.startswith("text_encoder")]
        if encoders and cls.own is None and not kinds.keys() & set(encoders):
            raise UserError(
                f"model.path is {path}, which has no text encoder to read prompts with ({', '.join(encoders)}); give a "
                "folder that has one, or a class of yours whose encode_prompt does without: model.family=FILE.py:Class"
            )
        refuse_guiders(kinds)
        Arguments.of_index(index, rollout, cls.own).check()
        try:
            check_scheduler(kinds.get("scheduler"), path, rollout)
        except Unsupported as error:
            raise UserError(f"model.path is {path}: a {index['_class_name']} can't be trained: {error}") from error

    @classmethod
    def draws(cls, index: dict[str, Any], rollout: RolloutOptions) -> Kind:
        return Arguments.of_index(index, rollout, cls.own).draws

    @classmethod
    def check_inputs(cls, index: dict[str, Any], rollout: RolloutOptions, prompts: Sequence[Prompt]) -> None:
        Arguments.of_index(index, rollout, cls.own).check_prompts(prompts)

    @cached_property
    def lora_targets(self) -> list[str]:
        """Full names of the linear layers of attention modules."""
        inside = [
            name for name, module in self.network.named_modules()
            if "attn" in name.rpartition(".")[2] or "attention" in type(module).__name__.lower()
        ]  # fmt: skip
        return [
            name for name, module in self.network.named_modules()
            if isinstance(module, nn.Linear) and any(name == outer or name.startswith(f"{outer}.") for outer in inside)
        ]  # fmt: skip

    def condition(self, prompts: Sequence[Prompt], **size: Any) -> Requests:
        return Requests(prompts=list(prompts), **size)

    def start(self, conditioning: Requests, keys: Sequence[tuple[random.Part, ...]]) -> Tensor:
        requests = conditioning.each()
        return torch.stack(
            [self.initial_latents(one, random.key(*key)) for one, key in zip(requests, keys, strict=True)]
        )

    def write(
        self, network: nn.Module, conditioning: Requests, keys: Sequence[tuple[random.Part, ...]], size: int
    ) -> tuple[Requests, list[Tensor]]:
        part = by_name(network, self.names)[self.writer]
        found: list[tuple[tuple[int, ...], Tensor]] = []
        for rows in self._of_a_prompt(conditioning, size):
            question = self._question(conditioning.select(rows[:1]))
            found += write(part, question, [keys[row] for row in rows], self.compute)
            if not self._reads_alike:
                with torch.no_grad(), explained(self):
                    check_tokens(part, question, *found[0], compute=self.compute)
                self._reads_alike = True
        return replace(conditioning, written=[ids for ids, _ in found]), [logprob for _, logprob in found]

    def token_logprobs(self, network: nn.Module, conditioning: Requests, *, agree: Agree | None = None) -> Tensor:
        part, parts = by_name(network, self.names)[self.writer], list[Tensor]()
        longest, prompts = max(map(len, conditioning.written)), [*self._of_a_prompt(conditioning, len(conditioning))]
        here = {self.writer: len(prompts)}
        more = (here if agree is None else agree(here))[self.writer] - len(prompts)
        for rows in (*prompts, *[prompts[0]] * more):
            some = conditioning.select(rows)
            found = token_logprobs(part, self._question(some), some.written, self.compute)
            parts.append(torch.nn.functional.pad(found, (0, longest - found.shape[1])))
        own = torch.cat(parts[: len(prompts)])
        return own + sum(part.sum() * 0 for part in parts[len(prompts) :]) if more else own

    def _of_a_prompt(self, requests: Requests, size: int) -> Iterator[list[int]]:
        """Rows of the same prompt, neighbours, ``size`` at most at once."""
        for _, group in groupby(range(len(requests)), lambda row: requests.prompts[row].uid):
            rows = list(group)
            yield from (rows[start : start + size] for start in range(0, len(rows), size))

    def _question(self, requests: Requests) -> Question:
        """What the writer is asked for the prompt of the first row."""
        request = replace(requests.select([0]), written=[()])
        guidance = self.rollout.guidance_scale

        def asked() -> Question:
            with explained(self), torch.no_grad():
                try:
                    self._run(self.arguments.of(request, guidance), Asking(0), PipelineRun(self.forwards))
                except RunDone as done:
                    return Question.of(self.networks[self.writer], done.args[0])
                raise Unsupported(
                    f"its {self.writer} writes nothing with these options; leave it out of model.networks, or turn it "
                    "on in rollout.call"
                )

        return self._questions.get((request.prompts[0].uid, request.height, request.width), asked)

    def decode(self, latents: Tensor, conditioning: Requests) -> list[Any]:
        size = max(TOGETHER // latents[0].numel(), 1) if self.decodes_together else 1
        requests, states, samples = conditioning.each(), latents.split(1), list[Any]()
        with torch.no_grad():
            for start in range(0, len(states), size):
                some = states[start : start + size]
                pairs = zip(some, self.outputs(requests[start : start + size], some), strict=True)
                samples += [self.arguments.sample(returned, finite=x.isfinite().all()) for x, returned in pairs]
        return samples

    def decode_tensor(self, latents: Tensor, conditioning: Requests) -> Tensor:
        rows = zip(conditioning.each(), latents.split(1), strict=True)
        try:
            return torch.cat([self.arguments.tensor(self.output(request, x)) for request, x in rows])
        except RuntimeError as error:
            if "numpy() on Tensor that requires grad" not in str(error):
                raise
            raise UserError(
                f"a {self.class_name} decodes its samples to arrays, which no gradient of a reward goes back through; "
                "choose an algorithm that follows none, as flow_grpo or diffusion_nft"
            ) from error

    def encode_images(self, images: Sequence[np.ndarray], conditioning: Requests) -> Tensor:
        request = conditioning.select([0])
        try:
            arranged = self._latent_layouts.get(self.key(request), lambda: self._latent_layout(request))
            return arranged.encoded(self.pipeline.vae, images)
        except Unsupported as error:
            who = f"a {type(self.pipeline).__name__} can't learn from finished images"
            raise UserError(f"{who}: {error}; learn from its own samples") from error

    def _latent_layout(self, request: Requests) -> LatentLayout:
        if getattr(self.pipeline, "vae", None) is None:
            raise Unsupported("it has no VAE")
        shape = self.initial_latents(request, 0).shape
        return LatentLayout.of(lambda x, decode: self.output(request, x, decode), shape, self.device)

    def schedule(self, conditioning: Requests) -> Tensor:
        return self.program(conditioning.select([0]), self.rollout.guidance_scale).table.times

    def streams(self, conditioning: Requests) -> Streams:
        return self.program(conditioning.select([0]), self.rollout.guidance_scale).streams(SOUNDS)

    def encode(self, now: Requests, later: Requests, scales: Collection[float]) -> None:
        if not self.away or all(self._is_encoded(one, scale) for one in now.each() for scale in scales):
            return
        for part in (*self.bases, *(one for one in self.away if one.part in self.experts.values())):
            part.leave()
        total, self.forwards.computes = 0, False
        try:
            for request, scale in product(later.each(), scales):
                if total < KEPT and not self._is_encoded(request, scale):
                    with suppress(RunDone):
                        total += self.program(request, scale).bytes
        finally:
            self.forwards.computes = True
            self.leave(decoders=False)

    def _is_encoded(self, request: Requests, guidance: float) -> bool:
        program, tape = self._keys(request, guidance)
        return self._programs.find(program) is not None or bool(self._tapes.find(tape))

    def visitors(self, conditioning: Requests, times: Sequence[float]) -> list[frozenset[str]]:
        if not (self.away and self.experts):
            return [frozenset()] * len(times)
        program = self.program(conditioning.select([0]), self.rollout.guidance_scale)
        steps = [program.steps[program.before(time)] for time in times]
        return [step.networks.intersection(self.experts) if step else frozenset() for step in steps]

    def predict(
        self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Requests,
        *, guidance: float, agree: Agree | None = None,
    ) -> Tensor:  # fmt: skip
        rows = list(zip(conditioning.each(), x.split(1), time.tolist(), strict=True))
        computed = [self._velocity(request, guidance, state, at) for request, state, at in rows]
        places = [(request.prompts[0], at) for request, _, at in rows]
        order = [places.index(place) for place in places]  # rows of a prompt at one time are neighbours
        networks = self._run.answering | dict(by_name(network, self.names))
        velocity = torch.cat(
            self.forwards.answered(networks, computed, agree, self.names, shares=self.shares, order=order)
        )
        mask = self.noised(conditioning)
        return velocity if mask is None else torch.where(mask, velocity, 0.0)

    def _velocity(
        self, request: Requests, guidance: float, x: Tensor, time: float
    ) -> Generator[list[Call], list[Any], Tensor]:
        """The velocity at a state [1, ...] of a prompt at a time."""
        with explained(self):
            program = self.program(request, guidance)
        k, scheduler = program.before(time), self._run.scheduler
        if self.retimes or float(program.table.times[k]) == time:
            with suppress(ControlFlowChanged):
                return (yield from program.velocity(scheduler, x, time))
        with explained(self):  # recorded anew, with this time in the place of its own
            program = self.program(request, guidance, time, (program.table, k))
        return (yield from program.velocity(scheduler, x, time, k))

    def verify(self, conditioning: Requests, *, guidance: float) -> None:
        # not the job's own steps where they are fewer: with one of them, nothing would be compared
        full = replace(conditioning.select([0]), steps=max(conditioning.steps, self.rollout.num_inference_steps))
        way = full.height, full.width, full.steps, guidance > 1
        if way in self._verified:
            return
        with self._as_it_is(), explained(self), torch.no_grad():
            check_steps(self, full, guidance)
            check_samples(self, full, guidance)
            if guidance > 1:
                with suppress(UserError), explained(self):  # what needs no guidance is checked by itself
                    check_samples(self, full, 1.0)
            check_arguments(self, full, guidance)
        self._verified.add(way)

    def run(self, request: Requests, guidance: float, run: PipelineRun) -> Any:
        """A run of the pipeline. What is random in a condition is drawn from the prompt's seed, for all its samples."""
        return self._run(self.arguments.of(request, guidance), self._tape(request, guidance), run)

    def recorded(
        self, request: Requests, guidance: float, time: float = 0.0, step: tuple[NoiseSchedule, int] | None = None
    ) -> Program:
        """A run that is recorded; see ``program``."""
        tables = None if step is None else partial(step[0].placed, k=step[1], time=time)
        run = RecordedRun(self.forwards, self.device, tables, self._moving)
        with torch.no_grad(), explained(self):
            return Program(run, self.run(request, guidance, run), None if step is None else step[0])

    def program(
        self, request: Requests, guidance: float, time: float | None = None,
        step: tuple[NoiseSchedule, int] | None = None,
    ) -> Program:  # fmt: skip
        """The pipeline's run for a prompt, or one in which a ``step`` of its schedule begins at another time."""
        key = self._keys(request, guidance, time)[0]

        def made() -> Program:
            if request.prompts[0].images or request.prompts[0].inputs or step is not None:
                return self.recorded(request, guidance, time or 0.0, step)
            known = self._known.setdefault(key[-1], {})
            answers, tape = next((one.answers for one in known.values()), 0), self._tape(request, guidance)
            if len(tape) < answers:
                with torch.no_grad(), suppress(RunDone), explained(self):
                    self.run(request, guidance, PipelineRun(self.forwards, encoded=answers))
            leaves = tape.leaves(answers)
            like = known.get(signature_of(leaves)) if known else None
            if like is not None and like.confirmed:
                with suppress(ControlFlowChanged):
                    return like.of(leaves)
            program = self.recorded(request, guidance)
            if like is not None:
                like.confirmed = alike(like.parts, program.parts)
            elif program.generic and len(known) < LATEST:
                known[program.signature] = program.bound_to({})  # without what is this prompt's own
            return program

        return self._programs.get(key, made)

    @staticmethod
    def _keys(request: Requests, guidance: float, time: float | None = None) -> tuple[tuple[Any, ...], Any]:
        """What tells programs apart, last what those of several prompts have in common; and what encoders give."""
        size, own = (request.height, request.width), (request.prompts[0].uid, request.written[0])
        return (*own, (*size, request.steps, guidance, time)), (*own, *size, guidance > 1)

    def _tape(self, request: Requests, guidance: float) -> EncoderCache:
        uid, written = request.prompts[0].uid, request.written[0]
        return self._tapes.get(self._keys(request, guidance)[1], lambda: EncoderCache(int(uid, 16) >> 2, written))

    def initial_latents(self, request: Requests, seed: int) -> Tensor:
        """The pipeline's own first state for a seed: [...] float32."""
        program = self.program(request, self.rollout.guidance_scale)
        with torch.no_grad(), explained(self):
            x = program.begin(seed)
        return x[0].float() / program.table.scale(float(program.table.times[0]))

    def output(self, request: Requests, x: Tensor, decode: Callable[..., Any] | None = None) -> Any:
        """What the pipeline returns for a final state [1, ...]; ``decode`` is in place of the VAE's method."""
        return self.outputs([request], [x], decode)[0]

    def outputs(
        self, requests: Sequence[Requests], states: Sequence[Tensor], decode: Callable[..., Any] | None = None
    ) -> list[Any]:
        """``output`` of several states, which are decoded together."""
        programs = [self.program(request, self.rollout.guidance_scale) for request in requests]
        if any(program.end is None for program in programs):
            return [self.end(request, x, decode) for request, x in zip(requests, states, strict=True)]
        runs = [program.returned(x) for program, x in zip(programs, states, strict=True)]
        answering = self._run.answering if decode is None else self._run.answering | {DECODE: decode}
        return self.forwards.answered(answering, runs, shares=True)

    def end(self, request: Requests, x: Tensor, decode: Callable[..., Any] | None = None) -> Any:
        """``output`` by the pipeline's own run, in which no network computes."""
        program = self.program(request, self.rollout.guidance_scale)
        parts = frozenset().union(*(step.networks for step in program.steps if step))
        end = program.split(x * program.table.scale(float(program.table.times[-1])))
        run = PipelineRun(self.forwards, parts, end=end, count=len(program.steps), decode=decode)
        return self.run(request, self.rollout.guidance_scale, run)

    def noised(self, conditioning: Requests) -> Tensor | None:
        found = [self._masks.get(self.key(one), partial(self._reached, one)) for one in conditioning.each()]
        some = next((mask for mask in found if mask is not None), None)
        return None if some is None else torch.stack([torch.ones_like(some) if one is None else one for one in found])

    def _reached(self, request: Requests) -> Tensor | None:
        x, guidance = self.initial_latents(request, 0)[None].requires_grad_(), self.rollout.guidance_scale
        program = self.program(request, guidance)
        times = program.table.times[:-1].tolist()
        at = times[-1]
        for time, step in zip(times, program.steps, strict=False):
            if step and not step.networks.isdisjoint(self.names):
                at = time  # of the last step that calls networks that are trained
        draw = torch.Generator().manual_seed(0)  # weights that no sum of elements cancels
        with torch.enable_grad():
            if (calls := next(self._velocity(request, guidance, x, at), None)) is None:
                raise UserError(
                    f"a {self.class_name} can't be trained: its step calls {' and '.join(self.names)} nowhere as a "
                    "whole, but layers of it; have its code call the network itself"
                )
            inputs = [tensor for tensor in tensors_in([call.leaves for call in calls]) if tensor.requires_grad]
            weights = [torch.randn(leaf.shape, generator=draw).to(leaf) for leaf in inputs]
            reached = torch.autograd.grad(inputs, x, weights)[0][0] != 0
        return None if bool(reached.all()) else reached


def family_of_class(given: Any) -> Any:
    """What reads pipelines of a class of the user's; any other class as it is."""
    if not isinstance(given, type) or not issubclass(given, DiffusionPipeline):
        return given
    about = {"__module__": given.__module__, "__qualname__": given.__qualname__}  # as paths name it
    return type(given.__name__, (PipelineModel,), about | {"own": given})
