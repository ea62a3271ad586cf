"""Samples images with the trainer's own weights. Each one depends on its seeds alone, never on its neighbours."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from burnish.diffusion.algorithms.base import Recording, Role
from burnish.diffusion.options import RolloutOptions
from burnish.diffusion.pipeline.base import SampleSize
from burnish.diffusion.roles import FlowRoles
from burnish.diffusion.steps import Plan, denoise, finished, thinned
from burnish.models.lora import merging_rounds
from burnish.options import Solver
from burnish.rollout.sources import Job, group_starts
from burnish.training.ranks import Lockstep
from burnish.types.batch import Gathered, to_device
from burnish.types.prompt import Prompt
from burnish.types.rollout import Conditioning, Denoising, all_noised, share_of
from burnish.utils import random
from burnish.utils.errors import UserError

LEAST = 4  # rows of a forward for a tree: kernels for fewer round otherwise, and no sample may depend on other trees


@dataclass(frozen=True, kw_only=True)
class FlowJob(Job):
    """Which images to make, and how."""

    recording: Recording | None = None
    role: str = "policy"
    guidance: float | None = None  # None takes the run's
    steps: int | None = None  # denoising steps; None takes the run's, as the options below do
    solver: Solver | None = None
    cache_interval: int = 1  # deterministic steps of which the network computes one; the others are forecast
    height: int | None = None  # in pixels
    width: int | None = None


@dataclass(frozen=True)
class BranchIds:
    """Which rows of a job share a state before each step, and which sample's noise moved them there."""

    node: Tensor  # [B, N + 1] long: equal in rows that share a state
    source: Tensor  # [B, N + 1] long: the sample whose seeds drew the noise that led there
    first: Tensor  # [B] long: the first row of the row's group

    @classmethod
    def of(cls, job: FlowJob, recorded: Tensor) -> BranchIds:
        """Every sample on its own path; with shared noise, the samples of a group together until they split.

        Without splits, the first recorded step splits a group into its samples. In a tree, each split divides a path
        by the branching factor, and the recorded steps in between move the samples of a path alike.
        """
        rows, how = torch.arange(len(recorded)), job.recording
        own = rows[:, None].expand(-1, recorded.shape[1] + 1)
        source = job.sample[:, None].expand_as(own)
        first = torch.full((int(job.group.max()) + 1,), len(rows)).scatter_reduce(0, job.group, rows, "amin")[job.group]
        if how is None or not how.shared_noise:
            return cls(own.contiguous(), source.contiguous(), first)
        split = torch.cat([recorded.new_zeros(len(rows), 1), recorded.cumsum(1) > 0], 1)
        node = torch.where(split, own, first[:, None])
        if how.splits:
            place, size = rows - first, torch.bincount(job.group)[job.group]
            for i in range(recorded.shape[1] + 1):
                together = size // how.branching ** sum(step < i for step in how.splits)
                node[:, i] = first + place // together * together
        return cls(node, job.sample[node], first)


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
        # whether adapters are folded in
        self.merges = not merging_rounds(self.model.network) if options.merge_lora == "auto" else options.merge_lora

    def sample(self, job: FlowJob) -> Generator[tuple[slice, Denoising, list[np.ndarray]]]:
        """Denoise and decode, ``batch_size`` images at a time, in order: rows, trajectories, images uint8."""
        size = self.sample_size(job)
        if not self.model.denoises:
            job = replace(job, recording=None)  # of steps there is nothing to learn
        with Lockstep(self.roles.context) as step, self.roles.sampling(job.role, merge=self.merges) as network:
            role = replace(network, around=partial(step.forward, job.check_cancelled))
            conditioning = self.model.condition(job.prompts, size, job.check_cancelled)
            keys = zip(job.keys(self.seed), job.sample.tolist(), strict=True)
            names: list[tuple[random.Part, ...]] = [(*key, sample, "tokens") for key, sample in keys]
            conditioning, logprobs = role.write(conditioning, names, self.options.batch_size)
            with step.forward():
                self.model.verify(conditioning, guidance=self.roles.guidance if job.guidance is None else job.guidance)
                schedule = self.model.schedule(conditioning, size)
            plan = self.plan(job, schedule)
            branches = BranchIds.of(job, plan.recorded)
            shared = job.recording is not None and job.recording.shared_noise
            plan = replace(plan, branch=branches.node if shared else None)
            step_size, count = self.options.batch_size, len(job.prompts)
            batches = [slice(start, min(start + step_size, count)) for start in range(0, count, step_size)]
            # steps at which a network takes over that is not always on the device
            experts = self.model.visitors(conditioning, plan.times[:-1].tolist())
            pauses = [i for i in range(1, len(experts)) if experts[i] != experts[i - 1]]
            runs = [
                self._denoise(job, rows, role, plan.select(rows), branches, conditioning, schedule, pauses)
                for rows in batches
            ]
            for run in runs * len(pauses):
                next(run)
            # all rows by one network, and then by the next, and decoded after that: each comes once
            parts = [finished(run) for run in runs] if pauses else map(finished, runs)
            for rows, part in zip(batches, parts, strict=True):
                part = with_tokens(part, logprobs[rows])
                yield rows, part, self.model.decode(part.latents, part.conditioning.rows())

    def sample_size(self, job: FlowJob | None = None) -> SampleSize:
        """The size of samples, and their steps: a job's, or the run's."""
        options = self.options
        height, width, steps = (None, None, None) if job is None else (job.height, job.width, job.steps)
        return SampleSize(
            height=height or options.height, width=width or options.width, steps=steps or options.num_inference_steps
        )

    def condition(self, prompts: Sequence[Prompt]) -> Gathered[Conditioning]:
        """What the run's samples of prompts are drawn from."""
        return self.model.condition(prompts, self.sample_size())

    def schedule(self, prompt: Prompt) -> Tensor:
        """Times of the run's denoising steps, [N + 1]."""
        with self.roles.sampling("policy", merge=False):
            return self.model.schedule(self.condition([prompt]), self.sample_size())

    def latent_shape(self, prompt: Prompt, job: FlowJob | None = None) -> tuple[int, ...]:
        """Shape of a sample's latents, of a job or of the run."""
        size = self.sample_size(job)
        with self.roles.sampling("policy", merge=False):
            conditioning = self.model.condition([prompt], size)
            return tuple(self.model.start(conditioning, size, [("shape",)]).shape[1:])

    def _denoise(
        self,
        job: FlowJob,
        rows: slice,
        role: Role,
        plan: Plan,
        branches: BranchIds,
        conditioning: Gathered[Conditioning],
        schedule: Tensor,
        pauses: Sequence[int] = (),
    ) -> Generator[None, None, Denoising]:
        device = next(self.model.network.parameters()).device
        kept = conditioning.select(rows)
        conditioning = kept.to(device)
        keys = job.select(rows).keys(self.seed)
        starts = [
            (*key, "shared", "start") if plan.branch is not None else (*key, sample, "start")
            for key, sample in zip(keys, job.sample[rows].tolist(), strict=True)
        ]

        x = to_device(self.model.start(conditioning, self.sample_size(job), starts), device)
        shape, mask = x.shape[1:], self.model.noised(conditioning)
        noised = all_noised(x) if mask is None else to_device(mask, device)
        kept_noise = None if mask is None else to_device(mask, "cpu")

        def velocity(x: Tensor, time: Tensor, index: Tensor) -> Tensor:
            count = len(index)
            if plan.branch is not None and count < LEAST:
                padded = torch.arange(LEAST).clamp(max=count - 1)
                there = to_device(padded, device)
                x, time, index = x[there], time[padded], index[padded]
            found = role(x, time, conditioning.select(index), guidance=job.guidance)
            return found[:count]

        def noise_at(step: int) -> Tensor:
            sources = branches.source[rows, step + 1].tolist()
            noise = random.normal(shape, [(*key, sample, step) for key, sample in zip(keys, sources, strict=True)])
            return noise if kept_noise is None else noise * kept_noise

        path = yield from denoise(velocity, x, plan, noise_at, share=share_of(noised), pauses=pauses)
        # counted from the first row of the group, whatever else is in the job
        node = (branches.node - branches.first[:, None])[rows, 1:][plan.recorded].view_as(path.time)
        return Denoising(**vars(path), conditioning=kept, node=node, noised=noised, schedule=schedule)

    def plan(self, job: FlowJob, times: Tensor) -> Plan:
        """How all rows of a job are denoised, but for what they share."""
        how, recorded = job.recording, self._recorded(job, len(times) - 1)
        solver = job.solver or self.options.solver
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
                    f"algorithm has {error}: of rollout.num_inference_steps {self.options.num_inference_steps} the "
                    f"pipeline takes {steps} (rollout.call: strength); raise rollout.num_inference_steps, or lower "
                    "algorithm.window.size"
                ) from error
        return chosen
