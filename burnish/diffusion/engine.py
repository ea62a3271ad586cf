"""Samples images with the trainer's own weights. Each one depends on its seeds alone, never on its neighbours."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.diffusion.algorithms.base import Recording, Role
from burnish.diffusion.options import RolloutOptions
from burnish.diffusion.roles import FlowRoles
from burnish.diffusion.steps import Plan, denoise, thinned
from burnish.models.lora import merging_rounds
from burnish.rollout.sources import Job, group_starts
from burnish.training.ranks import Lockstep
from burnish.types.batch import first_of_each, to_device
from burnish.types.prompt import Prompt
from burnish.types.rollout import Denoising, Requests, Streams, all_noised, share_of, stream_shares
from burnish.utils import random
from burnish.utils.errors import UserError

CHANGED = "num_inference_steps", "guidance_scale", "solver", "height", "width"  # options that a validation may change
LEAST = 4  # rows of a forward for a tree: kernels for fewer round otherwise, and no sample may depend on other trees


@dataclass(frozen=True, kw_only=True)
class FlowJob(Job):
    """Which images to make, and how."""

    recording: Recording | None = None
    role: str = "policy"
    streams: frozenset[str] = frozenset()  # that have advantages of their own
    changes: Mapping[str, Any] = field(default_factory=dict)  # options of rollout in place of the run's, but for null
    cache_interval: int = 1  # deterministic steps of which the network computes one; the others are forecast
    fp8: bool = False  # whether steps that are not recorded multiply in fp8


def branches_of(job: FlowJob, recorded: Tensor) -> Tensor:
    """Which rows of a job share a state before each step, by that of them whose noise moved it there: [B, N + 1] long.

    Every sample is on its own path; with shared noise, the samples of a group are together until they split. Without
    splits, the first recorded step splits a group into its samples. In a tree, each split divides a path by the
    branching factor, and the recorded steps in between move the samples of a path alike.
    """
    rows, how = torch.arange(len(recorded)), job.recording
    own = rows[:, None].expand(-1, recorded.shape[1] + 1)
    if how is None or not how.shared_noise:
        return own.contiguous()
    starts, group = first_of_each(job.group)
    first = starts[group]
    split = torch.cat([recorded.new_zeros(len(rows), 1), recorded.cumsum(1) > 0], 1)
    node = torch.where(split, own, first[:, None])
    if how.splits:
        place, size = rows - first, torch.bincount(group)[group]
        for i in range(recorded.shape[1] + 1):
            together = size // how.branching ** sum(step < i for step in how.splits)
            node[:, i] = first + place // together * together
    return node


def in_groups(job: FlowJob, branches: Tensor) -> Tensor:
    """Rows of a job, counted from the first one of their group, whatever else is in the job."""
    first, group = first_of_each(job.group)
    return branches - first[group][:, None]


def with_tokens(path: Denoising, logprobs: list[Tensor]) -> Denoising:
    """Samples with the log-probs [T] of what was written for each; nothing was where there are none."""
    if not logprobs:
        return path
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    mask = pad([torch.ones_like(one, dtype=torch.bool) for one in logprobs])
    return replace(path, token_logprob=pad(logprobs), token_mask=mask)


class FlowEngine:
    """The default engine: the trainer's network itself, so that no weights have to be published."""

    def __init__(self, roles: FlowRoles, options: RolloutOptions, *, seed: int) -> None:
        self.roles, self.model, self.options, self.seed = roles, roles.model, options, seed
        # whether adapters are folded in; weights that leave the device would lose them
        may = not (merging_rounds(self.model.network) or self.model.bases)
        self.merges = may if options.merge_lora == "auto" else options.merge_lora

    def sample(self, job: FlowJob) -> Generator[tuple[slice, Denoising, list[np.ndarray]]]:
        """Denoise and decode, ``batch_size`` images at a time, in order: rows, trajectories, images uint8."""
        if not self.model.denoises:
            job = replace(job, recording=None)  # of steps there is nothing to learn
        guidance, conditioning = self.options_of(job).guidance_scale, self.condition(job.prompts, job)
        self.prepare(job.prompts, job)
        with (
            Lockstep(self.roles.context) as step, self.roles.sampling(job.role, merge=self.merges) as network,
            self.roles.fp8(job.role, network) if job.fp8 else nullcontext(network) as rounded,
        ):  # fmt: skip
            around = partial(step.forward, job.check_cancelled)
            role, rounded = (replace(one, guidance=guidance, around=around) for one in (network, rounded))
            logprobs = list[Tensor]()
            if self.model.writer:
                keys = zip(job.keys(self.seed), job.sample.tolist(), strict=True)
                names: list[tuple[random.Part, ...]] = [(*key, sample, "tokens") for key, sample in keys]
                conditioning, logprobs = role.write(conditioning, names, self.options.batch_size)
            with step.forward():
                self.model.verify(conditioning, guidance=guidance)
                schedule = self.model.schedule(conditioning)
            plan = self.plan(job, schedule)
            branches = branches_of(job, plan.recorded)
            shared = job.recording is not None and job.recording.shared_noise
            plan = replace(plan, branch=branches if shared else None, streams=self._streams(job, conditioning))
            step_size, count = self.options.batch_size, len(job.prompts)
            batches = [slice(start, min(start + step_size, count)) for start in range(0, count, step_size)]
            # steps at which a network takes over that is not always on the device
            experts = self.model.visitors(conditioning, plan.times[:-1].tolist())
            pauses = [i for i in range(1, len(experts)) if experts[i] != experts[i - 1]]
            # all rows by one network, and then by the next, and decoded after that: each comes once
            pauses += [len(experts)] if pauses else []
            runs = [
                self._denoise(job, rows, (role, rounded), plan.select(rows), branches, conditioning, schedule, pauses)
                for rows in batches
            ]
            for run in runs * len(pauses):
                next(run)
            for rows, run in zip(batches, runs, strict=True):
                part = with_tokens((yield from run), logprobs[rows])  # it pauses no more
                yield rows, part, self.model.decode(part.latents, part.conditioning)

    def options_of(self, job: FlowJob | None = None) -> RolloutOptions:
        """How a job samples, or the run."""
        changes = {} if job is None else {name: value for name, value in job.changes.items() if value is not None}
        return replace(self.options, **changes)

    def condition(self, prompts: Sequence[Prompt], job: FlowJob | None = None) -> Requests:
        """What samples of prompts are drawn from, those of a job or of the run."""
        how = self.options_of(job)
        return self.model.condition(prompts, height=how.height, width=how.width, steps=how.num_inference_steps)

    def prepare(self, prompts: Sequence[Prompt], job: FlowJob | None = None) -> None:
        """Encode prompts of a job, or of the run, before networks are gathered; see ``FlowModel.encode``."""
        self.encode(conditioning := self.condition(prompts, job), conditioning, job)

    def encode(self, now: Requests, later: Requests, job: FlowJob | None) -> None:
        """Encode what is drawn from next, and later, by a job or the run."""
        if not self.model.writer:  # which runs before
            scales = {self.options_of(job).guidance_scale, self.options.guidance_scale}
            self.model.encode(now, later, sorted(scales | ({1.0} if self.roles.needs.unguided else set())))

    def schedule(self, prompt: Prompt) -> Tensor:
        """Times of the run's denoising steps, [N + 1]."""
        with self.roles.sampling("policy", merge=False):
            return self.model.schedule(self.condition([prompt]))

    def latent_shape(self, prompt: Prompt, job: FlowJob | None = None) -> tuple[int, ...]:
        """Shape of a sample's latents, of a job or of the run."""
        with self.roles.sampling("policy", merge=False):
            return tuple(self.model.start(self.condition([prompt], job), [("shape",)]).shape[1:])

    def _denoise(
        self,
        job: FlowJob,
        rows: slice,
        roles: tuple[Role, Role],
        plan: Plan,
        branches: Tensor,
        conditioning: Requests,
        schedule: Tensor,
        pauses: Sequence[int] = (),
    ) -> Generator[Any, None, Denoising]:
        device, rest = self.model.device, conditioning.select(range(rows.start, len(conditioning)))
        conditioning = conditioning.select(rows)
        self.encode(conditioning, rest, job)
        keys = job.select(rows).keys(self.seed)
        starts = [
            (*key, "shared", "start") if plan.branch is not None else (*key, sample, "start")
            for key, sample in zip(keys, job.sample[rows].tolist(), strict=True)
        ]

        x = to_device(self.model.start(conditioning, starts), device)
        shape, mask = x.shape[1:], self.model.noised(conditioning)
        noised = all_noised(x) if mask is None else to_device(mask, device)
        kept_noise = None if mask is None else to_device(mask, "cpu")

        def velocity(x: Tensor, time: Tensor, index: Tensor, role: Role = roles[0]) -> Tensor:
            count = len(index)
            if plan.branch is not None and count < LEAST:
                padded = torch.arange(LEAST).clamp(max=count - 1)
                there = to_device(padded, device)
                x, time, index = x[there], time[padded], index[padded]
            return role(x, time, conditioning.select(index))[:count]

        def rounded(x: Tensor, time: Tensor, index: Tensor) -> Tensor:
            learned = ((time[:, None] == plan.times[:-1]) & plan.recorded[index]).any(1)
            if learned.all() or not learned.any():
                return velocity(x, time, index, roles[not learned[0]])
            found = torch.empty_like(x)
            for role, chosen in zip(roles, (learned, ~learned), strict=True):
                some = chosen.nonzero().flatten()
                there = to_device(some, device)
                found[there] = velocity(x[there], time[some], index[some], role)
            return found

        def noise_at(step: int) -> Tensor:
            sources = job.sample[branches[rows, step + 1]].tolist()
            noise = random.normal(shape, [(*key, sample, step) for key, sample in zip(keys, sources, strict=True)])
            return noise if kept_noise is None else noise * kept_noise

        each = stream_shares(noised, plan.streams) if plan.streams else None
        chosen, share = rounded if job.fp8 else velocity, share_of(noised)
        path = yield from denoise(chosen, x, plan, noise_at, share=share, stream_share=each, pauses=pauses)
        node = in_groups(job, branches)[rows, 1:][plan.recorded].view_as(path.time)
        return Denoising(
            **vars(path), conditioning=conditioning, node=node, noised=noised, schedule=schedule, streams=plan.streams
        )

    def _streams(self, job: FlowJob, conditioning: Requests) -> Streams:
        """The streams of states, if any of them has an advantage of its own.

        Raises:
            UserError: the model doesn't have it.
        """
        streams = self.model.streams(conditioning) if job.streams else ()
        if absent := sorted(job.streams - {name for name, _ in streams}):
            raise UserError(
                f"a reward has stream {absent[0]}, but what {self.model.class_name} denoises is a single stream; leave "
                "stream out"
            )
        return streams

    def plan(self, job: FlowJob, times: Tensor) -> Plan:
        """How all rows of a job are denoised, but for what they share."""
        how, recorded = job.recording, self._recorded(job, len(times) - 1)
        solver = self.options_of(job).solver
        if how is None:
            return Plan(times, "ode", 0.0, recorded, solver=solver, interval=job.cache_interval)
        if how.steps_after < 1:
            assert bool((recorded == recorded[:1]).all()), "the schedule of a job is one, so its windows must be"
            times = thinned(times, int(recorded[0].nonzero().max()) + 1, how.steps_after)
            recorded = recorded[:, : len(times) - 1]
        return Plan(times, how.kind, how.noise, recorded, how.density, solver, interval=job.cache_interval)

    def _recorded(self, job: FlowJob, steps: int) -> Tensor:
        """[B, N] bool: which of N steps of which rows are recorded; the rows of a prompt agree."""
        chosen = torch.zeros(len(job.prompts), steps, dtype=torch.bool)
        if job.recording is None:
            return chosen
        window, stochastic = job.recording.window, job.recording.kind != "ode"
        for start, stop in pairwise(group_starts(job.group)):
            parts = (job.prompts[start].uid,) if window.shared_by == "group" else ()
            key = random.key(self.seed, "window", job.update, *parts)
            try:
                chosen[start:stop, window.choose(steps, update=job.update - 1, key=key, stochastic=stochastic)] = True
            except ValueError as error:
                # options were checked against their own number of steps; some pipelines take fewer (strength)
                raise UserError(
                    f"algorithm.window: {error}: of rollout.num_inference_steps {self.options.num_inference_steps} the "
                    f"pipeline takes {steps} (rollout.call: strength); raise rollout.num_inference_steps, or lower "
                    "algorithm.window.size"
                ) from error
        return chosen
