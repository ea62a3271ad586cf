"""The batches that travel through the loop: one type per stage, with no field that is filled in later."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.types.batch import Batch, heavy, on_host, shared, to_device
from burnish.types.columns import CHUNK, Column, read, states_once
from burnish.types.completion import Completion, Lengths, ResponseRows
from burnish.types.prompt import Prompt
from burnish.types.samples import DROPS, UNKNOWN, Quote, Ran, ResponseStats
from burnish.utils.random import Part

__all__ = [
    "Collected",
    "Denoising",
    "Failure",
    "Loss",
    "OfflineJudgements",
    "OfflineResponses",
    "OfflineSamples",
    "Path",
    "Prompt",
    "RemoteBatch",
    "Requests",
    "Rollouts",
    "Scored",
    "ScoredResponses",
    "Scores",
    "Steps",
    "failures_of",
    "settled",
]

Streams = tuple[tuple[str, int], ...]  # of states [N], one behind the other: name and elements; () where all is one
StepRewards = tuple[tuple[int, float], ...]  # where steps of a response end, and what each is worth
# of a sample of which nothing is said
NOTHING: dict[str, Callable[[], Any]] = {
    "faults": str, "steps": tuple, "ran": dict, "tokens": tuple, "further": dict, "answers": dict,
    "kl_factor": lambda: 1.0,
}  # fmt: skip
REASONS = 20  # distinct reasons for missing rewards that are kept of a batch


@dataclass(kw_only=True)
class Requests(Batch):
    """What samples are drawn from: prompts, and the size and the steps of their samples."""

    prompts: list[Prompt]  # [B]
    height: int | None = shared()  # in pixels; None takes the model's default
    width: int | None = shared()
    steps: int = shared()  # of the schedule that times are of
    # [B] ids of what was written for a sample before it was drawn; () where samples of a prompt share that
    written: list[tuple[int, ...]] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.written is None:
            self.written = [()] * len(self.prompts)

    def each(self) -> list[Requests]:
        """Every row on its own."""
        return [self.select([i]) for i in range(len(self))]


def unprompted(requests: Requests) -> Requests:
    """The same by the negative prompts: what guidance leads away from."""
    return replace(requests, prompts=[prompt.unconditional for prompt in requests.prompts])


def all_noised(latents: Tensor) -> Tensor:
    """Which elements of latents [B, ...] are noised if all are: [B, 1, ...] bool, which broadcasts to them.

    Others, such as those of a given first frame, are the same in every state and take no part in any loss.
    """
    return torch.ones(len(latents), *[1] * (latents.ndim - 1), dtype=torch.bool, device=latents.device)


def share_of(noised: Tensor) -> Tensor:
    """Share of the elements that are noised, [B], of what ``all_noised`` describes."""
    if isinstance(noised, Column):
        chunks = [share_of(chunk.values()) for chunk in noised.split(CHUNK)]
        return torch.cat(chunks) if chunks else torch.zeros(0)
    return noised.flatten(1).float().mean(1)


def columns(streams: Streams, number: int) -> slice:
    """The elements of a stream in a state."""
    start = sum(size for _, size in streams[:number])
    return slice(start, start + streams[number][1])


def stream_shares(noised: Tensor, streams: Streams) -> Tensor:
    """Share of the elements of each stream that are noised, [B, S], of what ``all_noised`` describes."""
    every = read(noised).expand(len(noised), sum(size for _, size in streams))
    return torch.stack([share_of(every[:, columns(streams, i)]) for i in range(len(streams))], 1)


@dataclass(kw_only=True)
class Path(Batch):
    """Trajectories of states. K steps are recorded per sample; K = 0 where none are needed.

    Columns may stand in for what is heavy, until rows are moved to the device where they are learned.
    """

    latents: Tensor = heavy()  # [B, ...] final, t = 0
    state: Tensor = heavy()  # [B, K, ...] where a recorded step began
    next_state: Tensor = heavy()  # [B, K, ...] where it ended
    time: Tensor = on_host()  # [B, K] t of state, in (0, 1]
    time_next: Tensor = on_host()  # [B, K] t of next_state
    logprob: Tensor  # [B, K] under the weights that sampled; 0 where a step has no noise
    stream_logprob: Tensor = None  # type: ignore[assignment]  # [B, K, S] the same of each stream
    forecast_error: Tensor = None  # type: ignore[assignment]  # [B] relative, of rollout.cache_interval; 0 where exact


@dataclass(kw_only=True)
class Denoising(Path):
    """Trajectories of a flow model."""

    conditioning: Requests
    # [B, K] long, branch ids: samples of a prompt with equal ids share this step, in a tree of samples
    node: Tensor = on_host()
    noised: Tensor = heavy(default=None)  # see ``all_noised``, which stands in where it is not given
    schedule: Tensor = shared()  # [N + 1] times of the denoising steps, decreasing from 1 to 0
    streams: Streams = shared(default=())  # S that have advantages of their own
    token_logprob: Tensor = on_host(default=None)  # [B, T] of tokens that were written first, by the sampling weights
    token_mask: Tensor = on_host(default=None)  # [B, T] bool: where there are some

    def __post_init__(self) -> None:
        if self.token_logprob is None:
            self.token_logprob = torch.zeros(len(self.latents), 0)
            self.token_mask = self.token_logprob.bool()
        if self.noised is None:
            self.noised = all_noised(self.latents)
        if self.stream_logprob is None:
            self.stream_logprob = self.logprob.new_zeros(*self.logprob.shape, 0)
        if self.forecast_error is None:
            self.forecast_error = self.logprob.new_zeros(len(self.logprob))

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        if len({batch.noised.shape[1:] for batch in batches}) > 1:
            batches = [replace(batch, noised=read(batch.noised).expand(batch.latents.shape)) for batch in batches]
        longest = max(batch.token_mask.shape[1] for batch in batches)
        return super().cat([batch._with_tokens(longest) for batch in batches])

    def _with_tokens(self, count: int) -> Self:
        """The same in tensors of as many tokens."""
        missing = (0, count - self.token_mask.shape[1])
        logprob, mask = (F.pad(one, missing) for one in (self.token_logprob, self.token_mask))
        return replace(self, token_logprob=logprob, token_mask=mask)

    @property
    def share(self) -> Tensor:
        """Share of a state's elements that are noised: [B]."""
        return share_of(self.noised)

    def nats(self, density: str, std: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Factor [B, K] that makes a recorded step's log-prob, a mean over elements, that of the whole step.

        A squared error is in nats once it is divided by twice the variance; ``std`` gives the standard deviation of
        steps from their times and the schedule.
        """
        elements = self.share[:, None] * (math.prod(self.state.shape[2:]) if self.time.numel() else 0)
        if density == "gaussian":
            return elements.expand_as(self.time)
        found = std(self.time.flatten(), self.time_next.flatten(), self.schedule)
        return elements / to_device(2 * found.square().view_as(self.time), elements.device)

    def put_away(self) -> Denoising:
        """The same in the host's memory, each state once."""
        state, next_state = states_once(read(self.state).cpu(), read(self.next_state).cpu(), self.time, self.time_next)
        there = replace(self, state=self.time, next_state=self.time).to("cpu")
        return replace(there, state=state, next_state=next_state)

    def steps(self) -> Steps:
        """Every recorded step as a row of its own: [B * K], the steps of a sample adjacent."""
        count, recorded = self.time.shape
        repeat = torch.arange(count).repeat_interleave(recorded)
        each = stream_shares(self.noised, self.streams) if self.streams else self.logprob.new_zeros(count, 0)
        return Steps(
            conditioning=self.conditioning.select(repeat),
            state=self.state.flatten(0, 1),
            next_state=self.next_state.flatten(0, 1),
            time=self.time.flatten(),
            time_next=self.time_next.flatten(),
            logprob=self.logprob.flatten(),
            stream_logprob=self.stream_logprob.flatten(0, 1),
            share=self.share[to_device(repeat, self.share.device)],
            stream_share=each[to_device(repeat, each.device)],
            time_max=float(self.schedule[1]),
            streams=self.streams,
        )


@dataclass(kw_only=True)
class Steps(Batch):
    """Stochastic denoising steps of any samples: one per row of a forward pass."""

    conditioning: Requests
    state: Tensor  # [M, ...]
    next_state: Tensor  # [M, ...]
    time: Tensor = on_host()  # [M]
    time_next: Tensor = on_host()  # [M]
    logprob: Tensor  # [M] under the weights that sampled
    stream_logprob: Tensor  # [M, S] the same of each stream
    share: Tensor  # [M] of a state's elements that are noised
    stream_share: Tensor  # [M, S] of those of each stream
    time_max: float = shared()  # the schedule's second time: replaces t = 1 in the SDE's noise level
    streams: Streams = shared(default=())

    def stream(self, number: int) -> Self:
        """One stream of them."""
        there = columns(self.streams, number)
        return replace(
            self, state=self.state[:, there], next_state=self.next_state[:, there],
            logprob=self.stream_logprob[:, number], share=self.stream_share[:, number], streams=(),
        )  # fmt: skip


@dataclass(kw_only=True)
class Scores(Batch):
    """Rewards of a batch. A component that could not be computed is missing, never zero."""

    reward: Tensor  # [B] weighted sum; undefined where missing
    missing: Tensor  # [B] bool: a component with a non-zero weight could not be computed
    components: Tensor  # [B, R] one column per name; NaN where missing
    names: tuple[str, ...] = shared()
    weights: tuple[float, ...] = shared(default=())  # of each column in the sum; 0 is logged only
    streams: tuple[str | None, ...] = shared(default=())  # which each teaches; None all, as where it is not given
    notes: list[str]  # [B] notes of the rewards on the sample, e.g. the text that OCR read
    faults: list[str] = field(default_factory=list)  # [B] which reward failed, why, and its traceback; "" if none
    # [B] what of the reward belongs to steps of a response, by the character where each ends
    steps: list[StepRewards] = field(default_factory=list)
    ran: list[dict[str, Ran]] = field(default_factory=list)  # [B] how each reward was computed, by its label
    tokens: list[tuple[float, ...]] = field(default_factory=list)  # [B] and what to its tokens; () if nothing does
    further: list[dict[str, float]] = field(default_factory=list)  # [B] values that only single samples have, by name
    answers: list[dict[str, str]] = field(default_factory=list)  # [B] of responses, by the reward that reads them
    kl_factor: list[float] = field(default_factory=list)  # [B] of the KL to the reference; see ``Hold``
    counted: Tensor = None  # type: ignore[assignment]  # [B, R] float64: components as they count, capped and gated
    applied: Tensor = None  # type: ignore[assignment]  # [B, R] float64: their weights; 0 where one doesn't apply

    def __post_init__(self) -> None:
        count = len(self.notes)
        for name, nothing in NOTHING.items():
            setattr(self, name, getattr(self, name) or [nothing() for _ in range(count)])
        if self.counted is None:
            self.counted = self.components.double()
        if self.applied is None:
            each = self.weights or (1.0,) * self.components.shape[1]
            self.applied = torch.tensor(each, dtype=torch.float64).expand(count, -1).contiguous()

    def of_stream(self, name: str) -> Scores:
        """With the sum of the rewards that teach a stream; 0 for a sample that none of them applies to."""
        own = torch.tensor([stream in (None, name) for stream in self.streams])
        applied = torch.where(own, self.applied, 0.0)
        reward = torch.where(applied != 0, applied * self.counted, 0.0).sum(1).float()
        return replace(self, reward=reward, applied=applied)

    @classmethod
    def given(cls, components: Sequence[Sequence[float]], weights: Mapping[str, float]) -> Scores:
        """Of samples that are scored already: their components, by the names of ``weights``, and their weighted sum."""
        values, each = torch.tensor(components), torch.tensor([*weights.values()], dtype=torch.float64)
        reward = torch.where(each != 0, values.double() * each, 0.0).sum(1).float()
        return cls(
            reward=reward, missing=reward.isnan(), components=values, names=tuple(weights),
            weights=tuple(weights.values()), notes=[""] * len(values),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Samples whose rewards are missing for the same reason: the first of them, and how many there are."""

    prompt: str  # Prompt.name
    sample: int  # number of the sample within its prompt
    why: str
    traceback: str  # where a reward raised
    count: int = 1


def failures_of(prompts: Sequence[Prompt], sample: Tensor, scores: Scores) -> list[Failure]:
    """Why rewards of a batch are missing: each reason once, in order of its first sample."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row in scores.missing.nonzero().flatten().tolist():
        rows[scores.faults[row].partition("\n")[0] or scores.notes[row]].append(row)
    return [
        Failure(
            prompt=prompts[first].name, sample=int(sample[first]), why=why,
            traceback=scores.faults[first].partition("\n")[2], count=1 + len(others),
        )
        for why, (first, *others) in list(rows.items())[:REASONS]
    ]  # fmt: skip


def settled(scores: Scores, group: Tensor) -> tuple[Scores, list[dict[str, Ran]]]:
    """Scores without those of groups that a reward's on_failure leaves out, and how they were computed."""
    drops = torch.tensor([any(outcome & DROPS for _, outcome in row.values()) for row in scores.ran], dtype=torch.bool)
    dropped = torch.isin(group, group[drops])
    notes = list(scores.notes)
    for row in (dropped & ~scores.missing).nonzero().flatten().tolist():
        notes[row] = f"left out with its group, of which a sample has no value (on_failure: drop_group); {notes[row]}"
    ran = [
        {label: (seconds, outcome | (DROPS if gone else 0)) for label, (seconds, outcome) in row.items()}
        for row, gone in zip(scores.ran, dropped.tolist(), strict=True)
    ]
    return replace(scores, missing=scores.missing | dropped, notes=notes, ran=[]), ran


@dataclass(kw_only=True)
class ForUpdate(Batch):
    """What a source gives for a policy update."""

    update: int = shared()
    version: int = shared()  # policy updates behind the weights that sampled, the oldest ones
    seed: int = shared()  # of the run: with update, prompt and sample it seeds every further draw

    @property
    def lengths(self) -> Lengths | None:
        """In tokens; None for images."""
        return None


@dataclass(kw_only=True)
class Rollouts(ForUpdate):
    """Scored samples of either kind. Samples of one prompt share a group id."""

    prompts: list[Prompt]  # [B]
    group: Tensor  # [B] long
    sample: Tensor  # [B] long: number of the sample within its prompt, part of its seeds
    scores: Scores
    metrics: dict[str, float] = shared(default_factory=dict)  # of the rollout
    counts: dict[str, float] = shared(default_factory=dict)  # number of values behind each metric that is a mean
    failures: list[Failure] = shared(default_factory=list)  # of all samples, those that were filtered out included
    glimpses: list[bytes] = shared(default_factory=list)  # small PNG files of one sample of each of the first prompts
    quotes: list[Quote] = shared(default_factory=list)  # of responses, the same
    execution: list[dict[str, Ran]] = shared(default_factory=list)  # of all samples: how each reward was computed
    put_aside: list[Any] = shared(default_factory=list)  # requests of responses that go on with a later batch

    def keys(self, purpose: str) -> list[tuple[Part, ...]]:
        """What seeds a draw for every sample, whatever else is in the batch."""
        samples = zip(self.prompts, self.sample.tolist(), strict=True)
        return [(self.seed, purpose, self.update, prompt.uid, sample) for prompt, sample in samples]


@dataclass(kw_only=True)
class Scored(Rollouts):
    """Sampled images with rewards."""

    trace: Denoising


@dataclass(kw_only=True)
class ScoredResponses(Rollouts):
    """Sampled responses with rewards."""

    trace: Completion
    greedy: Tensor  # [B] reward of the greedy response to the prompt; NaN where it is missing or was not sampled
    turn_rewards: Tensor  # [B, S] weighted rewards of the environment for single turns; 0 where it gave none
    # [B] what of the reward belongs to steps of a response, by the number of tokens up to the end of each
    steps: list[StepRewards] = field(default_factory=list)
    limit: int = shared()  # longest response allowed, in tokens
    stats: list[ResponseStats] = field(default_factory=list)  # [B] what is watched of each response

    @property
    def lengths(self) -> Lengths:
        return self.trace.lengths

    def __post_init__(self) -> None:
        self.steps = self.steps or [()] * len(self.prompts)
        self.stats = self.stats or [UNKNOWN] * len(self.prompts)

    @property
    def step_rewards(self) -> Tensor:
        """Rewards [B, T] of the steps that end with a token; NaN where none does."""
        found = torch.full(self.trace.mask.shape, torch.nan)
        for row, steps in enumerate(self.steps):
            for tokens, reward in steps:
                found[row, tokens - 1] = found[row, tokens - 1].nan_to_num(0.0) + reward
        return found


@dataclass(kw_only=True)
class OfflineSamples(ForUpdate):
    """Images from a data set, M to a row: a single one (SFT), or a chosen and a rejected one (DPO)."""

    conditioning: Requests
    latents: Tensor  # [B, M, ...]
    noised: Tensor = None  # type: ignore[assignment]  # [B, ...] of every member, as ``all_noised`` where not given
    uid: list[str]  # [B] hash of the image or the pair: with seed and update it seeds every draw
    schedule: Tensor = shared()  # [N + 1] times of the denoising steps that the policy samples with

    def __post_init__(self) -> None:
        if self.noised is None:
            self.noised = all_noised(self.latents[:, 0])


@dataclass(kw_only=True)
class GivenResponses(ForUpdate):
    """Responses of a data set."""

    answers: ResponseRows  # [B] rows

    @property
    def lengths(self) -> Lengths:
        """In tokens, of every response."""
        return self.answers.trace.lengths


@dataclass(kw_only=True)
class OfflineResponses(GivenResponses):
    """Responses from a data set: single ones (SFT, KTO), or a chosen and a rejected one (DPO)."""

    good: Tensor  # [B] bool: the label of single responses, true = desirable


@dataclass(kw_only=True)
class OfflineJudgements(GivenResponses):
    """Responses of a data set, M to a row, with labels of S steps by H heads; S is 1 where whole responses are judged.

    Every response has one more token than was written, which nothing reads: the state that would predict it is that of
    the last token. The mask is true there, or behind each step that is judged.
    """

    target: Tensor  # [B, S, H]: a score, or of pairs 1, 0 or -1: the first was preferred, neither, the second; else nan
    margin: Tensor  # [B, S, H] that the preferred one should be ahead by

    def at_labels(self, values: Tensor) -> Tensor:
        """Values [B * M, T, H] of tokens as [B * M, S, H] of the steps, in order; 0 for steps that there are not."""
        mask = self.answers.trace.mask
        # a stable sort puts the tokens that count first
        order = mask.long().argsort(dim=1, descending=True, stable=True)[:, : self.target.shape[1]]
        order = to_device(order, values.device)
        found = values.gather(1, order[:, :, None].expand(-1, -1, values.shape[2]))
        there = to_device(torch.arange(order.shape[1]) < mask.sum(1, keepdim=True), values.device)
        return found * there[:, :, None]


@dataclass(frozen=True, kw_only=True)
class RemoteBatch:
    """A batch that the trainer ranks hold; the driver knows its size only."""

    rows: int
    lengths: Lengths | None  # of every response, in tokens; None for images
    version: int
    metrics: dict[str, float]  # of its samples

    def __len__(self) -> int:
        return self.rows


Collected = (
    Rollouts | OfflineSamples | OfflineResponses | OfflineJudgements | RemoteBatch
)  # what a source returns for an update


@dataclass
class Loss:
    """A sum over the terms of a micro-batch, and metrics as (sum, count); the trainer divides once, globally."""

    total: Tensor
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    extremes: dict[str, Tensor] = field(default_factory=dict)  # names end in _max or _min; of all terms of a step
