"""What travels through the loop: one type per stage, complete when it exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from burnish.types.batch import Batch, Gathered, shared
from burnish.types.completion import Completion, Lengths, Together
from burnish.types.prompt import Prompt

__all__ = [
    "Collected",
    "Conditioning",
    "Denoising",
    "Failure",
    "Loss",
    "OfflineResponses",
    "OfflineSamples",
    "Prompt",
    "RemoteBatch",
    "Rollouts",
    "Scored",
    "ScoredResponses",
    "Scores",
    "Steps",
    "failures_of",
]

REASONS = 20  # why rewards of one batch are missing, that are kept


@dataclass(kw_only=True)
class Conditioning(Batch):
    """What a flow model is told about a prompt: token embeddings [B, L, D] and a pooled embedding [B, P]."""

    tokens: Tensor
    pooled: Tensor


@dataclass(kw_only=True)
class Denoising(Batch):
    """Trajectories of a flow model. K steps are recorded per sample; K = 0 where none are needed."""

    conditioning: Gathered[Conditioning]
    unconditional: Gathered[Conditioning]  # what guidance steers away from; the same rows without guidance
    latents: Tensor  # [B, ...] final, t = 0
    state: Tensor  # [B, K, ...] where a recorded step began
    next_state: Tensor  # [B, K, ...] where it ended
    time: Tensor  # [B, K] t of state, in (0, 1]
    time_next: Tensor  # [B, K] t of next_state
    logprob: Tensor  # [B, K] under the weights that sampled; 0 where a step has no noise
    node: Tensor  # [B, K] long: samples of a prompt with equal numbers took this step as one, in a tree of samples
    schedule: Tensor = shared()  # [N + 1] times of the denoising steps, falling from 1 to 0

    def steps(self) -> Steps:
        """Every recorded step as a row of its own: [B * K], the steps of a sample next to each other."""
        count, recorded = self.time.shape
        repeat = torch.arange(count).repeat_interleave(recorded)
        return Steps(
            conditioning=self.conditioning.select(repeat),
            unconditional=self.unconditional.select(repeat),
            state=self.state.flatten(0, 1),
            next_state=self.next_state.flatten(0, 1),
            time=self.time.flatten(),
            time_next=self.time_next.flatten(),
            logprob=self.logprob.flatten(),
            time_max=float(self.schedule[1]),
        )


@dataclass(kw_only=True)
class Steps(Batch):
    """Stochastic denoising steps, whatever samples they belong to: what one row of a forward is about."""

    conditioning: Gathered[Conditioning]
    unconditional: Gathered[Conditioning]
    state: Tensor  # [M, ...]
    next_state: Tensor  # [M, ...]
    time: Tensor  # [M]
    time_next: Tensor  # [M]
    logprob: Tensor  # [M] under the weights that sampled
    time_max: float = shared()  # the schedule's second time: where the SDE's noise is read at t = 1


@dataclass(kw_only=True)
class Scores(Batch):
    """Rewards of a batch of pictures. A component that could not be computed is missing, never zero."""

    reward: Tensor  # [B] weighted sum; meaningless where missing
    missing: Tensor  # [B] bool: a component that counts could not be computed
    components: Tensor  # [B, R] one column per name; NaN where missing
    names: tuple[str, ...] = shared()
    weights: tuple[float, ...] = shared(default=())  # of each column in the sum; 0 is watched only
    notes: list[str]  # [B] what a reward has to say about the sample, e.g. the text that it read
    faults: list[str] = field(default_factory=list)  # [B] a reward that failed, why, and its traceback; else empty

    def __post_init__(self) -> None:
        self.faults = self.faults or [""] * len(self.notes)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Samples whose rewards are missing for the same reason: the first of them, and how many there are."""

    prompt: str  # its name for messages
    sample: int  # its number among those of the prompt
    why: str
    traceback: str  # where a reward raised
    count: int = 1


def failures_of(prompts: Sequence[Prompt], sample: Tensor, scores: Scores) -> list[Failure]:
    """Why rewards of a batch are missing, each reason once, in the order in which they are met."""
    found: dict[str, Failure] = {}
    for row in scores.missing.nonzero().flatten().tolist():
        fault, _, trace = scores.faults[row].partition("\n")
        why = fault or scores.notes[row]
        if why not in found:
            name = prompts[row].name
            found[why] = Failure(prompt=name, sample=int(sample[row]), why=why, traceback=trace, count=0)
        found[why] = replace(found[why], count=found[why].count + 1)
    return list(found.values())[:REASONS]


@dataclass(kw_only=True)
class Rollouts(Batch):
    """What every sample is known by. Samples of one prompt share a group id."""

    prompts: list[Prompt]  # [B]
    group: Tensor  # [B] long
    sample: Tensor  # [B] long: number of the sample among those of its prompt, part of its seeds
    scores: Scores
    update: int = shared()  # the policy update that this batch was collected for
    version: int = shared()  # policy updates behind the weights that sampled
    seed: int = shared()  # of the run: with update, prompt and sample it names every further draw
    metrics: dict[str, float] = shared(default_factory=dict)  # of its collection
    counts: dict[str, float] = shared(default_factory=dict)  # what those that are means were taken over
    failures: list[Failure] = shared(default_factory=list)  # of all that was sampled, also what is left out here

    @property
    def lengths(self) -> Lengths | None:
        """In tokens, where samples have some."""
        return None


@dataclass(kw_only=True)
class Scored(Rollouts):
    """Sampled pictures with rewards."""

    trace: Denoising


@dataclass(kw_only=True)
class ScoredResponses(Rollouts):
    """Sampled responses with rewards."""

    trace: Completion
    greedy: Tensor  # [B] reward of the likeliest response to the prompt; NaN where it is missing or not asked for
    turn_rewards: Tensor  # [B, S] what the environment gave for single turns, as part of the reward; 0 for nothing
    limit: int = shared()  # tokens that a response could have at most

    @property
    def lengths(self) -> Lengths:
        return self.trace.lengths


@dataclass(kw_only=True)
class OfflineSamples(Batch):
    """Finished pictures that nobody sampled: M to a row, one to imitate, or a chosen and a rejected one."""

    conditioning: Gathered[Conditioning]
    unconditional: Gathered[Conditioning]
    latents: Tensor  # [B, M, ...]
    uid: list[str]  # [B] what the picture or the pair is: with seed and update it names every draw
    schedule: Tensor = shared()  # [N + 1] times of the denoising steps that the policy samples in
    update: int = shared()
    version: int = shared()
    seed: int = shared()

    @property
    def lengths(self) -> None:
        """Pictures have none in tokens."""
        return None


@dataclass(kw_only=True)
class OfflineResponses(Batch):
    """Finished responses that nobody sampled: one to imitate or to judge, or a chosen and a rejected one."""

    answers: Together  # [B] rows
    good: Tensor  # [B] bool: false where somebody found the response bad
    update: int = shared()
    version: int = shared()
    seed: int = shared()

    @property
    def lengths(self) -> Lengths:
        """In tokens, of every response."""
        return self.answers.trace.lengths


@dataclass(frozen=True, kw_only=True)
class RemoteBatch:
    """A batch that those who learn from it hold themselves: whoever leads them knows its size."""

    rows: int
    lengths: Lengths | None  # of every response, in tokens, where there are responses
    version: int

    def __len__(self) -> int:
        return self.rows


Collected = Rollouts | OfflineSamples | OfflineResponses | RemoteBatch  # what a source may give for an update


@dataclass
class Loss:
    """A sum over the terms of a micro-batch, and metrics as (sum, count); the worker divides, once, globally."""

    total: Tensor
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
