"""Engines that sample responses, and rollouts: requested responses, sampled and scored in this process.

A response depends on its seeds alone, never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.environments.base import Environment
from burnish.language.algorithms.base import LanguageNeeds, token_budget_batches
from burnish.language.batches import response_stats
from burnish.language.config import LanguageConfig
from burnish.language.decoders import decode
from burnish.language.encode import Encoder
from burnish.language.logprobs import response_logprobs
from burnish.language.model.universal import LanguageModel
from burnish.language.offline import token_ends
from burnish.language.roles import LanguageRoles
from burnish.language.sampling import Sampling
from burnish.metrics import Stopwatch
from burnish.options.cluster import AsyncRolloutOptions
from burnish.options.language import SamplingOptions
from burnish.rewards.base import fields_required
from burnish.rewards.scoring import Collector, Scorer
from burnish.rewards.text.base import Response, turn_rewards
from burnish.rollout.sources import Job, RolloutRequest, collector, group_starts
from burnish.tasks.drawings import GLIMPSES, write_sample
from burnish.tasks.evaluate import TOKENS
from burnish.tasks.sample_files import SampleFiles
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, PartialResponse
from burnish.types.prompt import Prompt
from burnish.types.rollout import ScoredResponses, Scores, StepRewards, failures_of, settled
from burnish.types.samples import Quote
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.images import thumbnail


@dataclass(frozen=True, kw_only=True)
class ResponseJob(Job):
    """Which responses to make, and how."""

    sampling: Sampling
    # gets rows and their responses as soon as they end, while others go on; again where an engine begins anew
    finished: Callable[[Sequence[int], Sequence[Response]], None] | None = None
    limits: Sequence[int] | None = None  # [B] largest length of each response, where there is ``partial``
    partial: Sequence[PartialResponse] = ()  # [B] what there is of responses that go on, where any do

    def keys(self, seed: int) -> list[tuple[random.Part, ...]]:
        if not self.partial:
            return super().keys(seed)
        return [
            (seed, self.purpose, own.update, prompt.uid) for prompt, own in zip(self.prompts, self.partial, strict=True)
        ]

    def greedy(self) -> ResponseJob:
        """The greedy response to each of the prompts, once."""
        first = group_starts(self.group)[:-1]
        sampling = replace(self.sampling, temperature=0.0, first_temperature=None)
        prompts = [self.prompts[row] for row in first]
        return replace(
            self, prompts=prompts, group=self.group[first], sample=self.sample[first], purpose="greedy",
            sampling=sampling, finished=None,
        )  # fmt: skip


# samples a response to each of some conversations: prompts, index, keys, and limits, on_ended, turn and partial of
# ``decode``
Respond = Callable[..., Completion]


class ResponseEngine:
    """Samples responses; by default with the trainer's own weights, in this process."""

    seed: int
    roles: LanguageRoles  # whose tokens responses are made of
    encode: Callable[[Sequence[Prompt]], Gathered[Encoded]]  # tokens and pixels by reference, each distinct prompt once
    metrics: dict[str, float]  # of the last weight sync
    # who has an environment answer what the policy says (``Dialogues``); None: prompts are answered once
    dialogues: Any = None

    def sample(self, job: ResponseJob) -> tuple[Completion, list[Response]]:
        """Responses in the order of the job's rows, as tokens and as text; of a dialogue all turns are one."""
        if self.dialogues is not None:
            return self.dialogues.sample(job)  # type: ignore[no-any-return]
        prompts = self.encode(job.prompts)
        _refuse_long(prompts, job, self.roles.model)
        keys = [random.key(*key, sample) for key, sample in zip(job.keys(self.seed), job.sample.tolist(), strict=True)]

        known: dict[int, Response] = {}

        def response(row: int, ids: Sequence[int], ended: bool) -> Response:
            if row not in known:
                known[row] = self.roles.model.response(ids, ended)
            return known[row]

        more: dict[str, Any] = {"limits": job.limits, "partial": job.partial} if job.partial else {}
        if (finished := job.finished) is not None:
            more["on_ended"] = lambda rows, ids, ended: finished(rows, list(map(response, rows, ids, ended)))
        with self.responding(job) as respond:
            completion = respond(prompts.table, prompts.index.tolist(), keys, **more)
        ids = [row[mask].tolist() for row, mask in zip(completion.ids, completion.mask, strict=True)]
        return completion, list(map(response, range(len(ids)), ids, completion.finished.tolist()))

    def ahead(self, prompts: Sequence[Prompt]) -> None:
        """Have processes beside this one, if there are any, read what prompts show that will be encoded later."""
        if isinstance(self.encode, Encoder) and self.encode.readers is not None:
            self.encode.readers.ahead(self.encode.unread(prompts))

    def close(self) -> None:
        """End what runs beside this process."""
        if isinstance(self.encode, Encoder) and self.encode.readers is not None:
            self.encode.readers.close()

    def responding(self, job: ResponseJob) -> AbstractContextManager[Respond]:
        """Who answers for a job with the policy's present weights, as often as it is asked in this context."""
        raise NotImplementedError

    def entropy(self, trace: Completion, temperature: float) -> Tensor | None:
        """Entropy of the policy before every token of responses, [B, T]; None where another program has its weights."""
        return None

    def sync_weights(self, version: int) -> None:
        """Sample with the policy's present weights from now on."""

    def rest(self) -> None:
        """Nothing is sampled until weights are published again."""


class LanguageEngine(ResponseEngine):
    """The default engine: the trainer's network itself, so that no weights have to be published."""

    def __init__(self, roles: LanguageRoles, *, batch_size: int, seed: int) -> None:
        self.roles, self.batch_size, self.seed, self.metrics = roles, batch_size, seed, {}
        self.encode = Encoder(roles.model)

    @contextmanager
    def responding(self, job: ResponseJob) -> Iterator[Respond]:
        with self.roles.sampling() as network:
            yield partial(
                decode, self.roles.model, network, sampling=job.sampling, batch_size=self.batch_size,
                check_cancelled=job.check_cancelled, fused=[],
                routers=self.roles.routers if job.purpose == "rollout" else None,
            )  # fmt: skip

    def entropy(self, trace: Completion, temperature: float) -> Tensor:
        model, size = self.roles.model, self.roles.micro_batch_size
        with self.roles.sampling() as network:
            batches = list(token_budget_batches(trace, size))
            parts = [response_logprobs(model, network, trace.select(one), temperature=temperature) for one in batches]
        order = torch.tensor([row for rows in batches for row in rows]).argsort()
        return torch.cat([part.entropy.cpu() for part in parts])[order]


def _refuse_long(prompts: Gathered[Encoded], job: ResponseJob, model: LanguageModel) -> None:
    """Refuse a prompt that leaves too few positions for its response, which nobody has measured before."""
    positions, lengths = model.max_positions, prompts.table.lengths
    room = positions - job.sampling.max_new_tokens
    for prompt, row in zip(job.prompts, prompts.index.tolist(), strict=True):
        if lengths[row] > room:
            raise UserError(
                f"{prompt.name} has {lengths[row]} tokens and rollout.max_new_tokens is {job.sampling.max_new_tokens}, "
                f"but the model has {positions} positions ({model.position_limit}); shorten the prompt, or lower "
                f"rollout.max_new_tokens{f' to {positions - lengths[row]}' if lengths[row] < positions else ''}"
            )


LONGEST = 600  # characters of a response that is shown


@dataclass
class ResponseRollouts:
    """Samples and scores responses."""

    engine: ResponseEngine
    scorer: Scorer
    needs: LanguageNeeds
    _: KW_ONLY
    sampling: Sampling
    environment: Environment | None
    watch: Stopwatch
    ahead: AsyncRolloutOptions
    files: SampleFiles | None = None  # where samples are kept
    check_cancelled: Callable[[], None] = lambda: None  # called again and again; what it raises ends the work

    def generate(self, request: RolloutRequest) -> ScoredResponses:
        self.check_cancelled()  # an engine in another process gets all of it at once
        longest, turns = self.sampling.max_new_tokens, 0
        if self.environment is not None:
            longest, turns = self.environment.longest(longest), self.environment.max_turns
        if request.ahead:
            self.engine.ahead(request.ahead)
        put_aside: list[RolloutRequest] = []
        with self.watch("gen"):
            if self.ahead.partial is None and not any(request.partial):
                trace, responses, scoring = sampled_for(self._job(request), self.engine, self.scorer)
            else:
                request, trace, responses, put_aside = self._sampled_in_parts(request)
                scoring = collector(self._job(request), self.scorer, one_by_one=True)
                submit(scoring, self.scorer, trace, responses)
        job, older = self._job(request), [own for own in request.partial if own is not None]
        with self.watch("reward"):
            scores = scoring.scores(self.check_cancelled)
        scores, ran = settled(scores, job.group)
        if self.files is not None:
            kept = [row for row, group in enumerate(job.group.tolist()) if self.files.wanted(job.update, group)]
            tokens = said_tokens(trace, kept, self.engine, self.sampling.scored_at)
            self.files.keep(
                job.update, job.prompts, job.group, job.sample, scores,
                lambda folder, row: response_columns(responses[row], int(trace.lengths.response[row]))
                | drawn_columns(responses[row], folder, int(job.sample[row]))
                | tokens[row] | chosen_columns(trace, row) | begun_columns(request.partial[row]),
                version=request.version, drawn=job.seeds(self.engine.seed),
            )  # fmt: skip
        aged = {} if self.ahead.partial is None else ages(request, trace, put_aside)
        spoken = {f"train/{name}": value for name, value in dialogue_metrics(responses).items()}
        dialogues = float(sum(response.dialogue is not None for response in responses))
        return ScoredResponses(
            prompts=job.prompts,
            group=job.group,
            sample=job.sample,
            trace=trace,
            scores=scores,
            greedy=self._greedy(job),
            turn_rewards=turn_rewards(self.scorer.rewards, responses, job.prompts, turns, job.update),
            steps=self._steps(trace, responses, scores),
            limit=longest,
            update=request.update,
            version=min([request.version, *(int(own.version[0]) for own in older)]),
            seed=self.engine.seed,
            metrics=self.engine.metrics | spoken | {name: value for name, (value, _) in aged.items()},
            counts={name: dialogues for name in spoken if not name.endswith(("/max", "/min"))}
            | {name: count for name, (_, count) in aged.items()},
            failures=failures_of(job.prompts, job.sample, scores),
            execution=ran,
            stats=response_stats(trace, [response.full_text for response in responses]),
            quotes=list(_quotes(job, responses, scores)),
            glimpses=[thumbnail(responses[row].image) for row in _shown(job) if responses[row].image is not None],
            put_aside=put_aside,
        )

    def _job(self, request: RolloutRequest) -> ResponseJob:
        return ResponseJob(
            prompts=request.prompts, group=request.group, sample=request.sample, purpose="rollout",
            update=request.update, sampling=self.sampling, check_cancelled=self.check_cancelled,
        )  # fmt: skip

    def _sampled_in_parts(
        self, request: RolloutRequest
    ) -> tuple[RolloutRequest, Completion, list[Response], list[RolloutRequest]]:
        """The complete groups of a request with their responses, and what goes on later."""
        job, longest = self._job(request), self.sampling.max_new_tokens
        written = [own or PartialResponse(update=request.update) for own in request.partial]
        limits = [self._limit(request, own) for own in written]
        trace, responses = self.engine.sample(replace(job, partial=written, limits=limits))
        goes_on = torch.isin(job.group, job.group[~trace.finished & (trace.length < longest)])
        rest, rows = goes_on.nonzero().flatten().tolist(), (~goes_on).nonzero().flatten().tolist()
        now: list[PartialResponse | None] = [so_far(written[row], trace, row, request.version) for row in rest]
        put_aside = [replace(request.select(rest), partial=now, ahead=[])] if rest else []
        return request.select(rows), trace.select(rows), [responses[row] for row in rows], put_aside

    def _limit(self, request: RolloutRequest, written: PartialResponse) -> int:
        """Tokens of a response at the end of a batch.

        They are a number of its own, and not what others need: so it is the same whoever samples it beside which
        others. It is written to its end where it would be too old for the next update.
        """
        longest, partial = self.sampling.max_new_tokens, self.ahead.partial
        if written.finished:
            return len(written.ids)
        oldest = min([request.version, *written.version[:1].tolist()])
        if partial is None or request.update - oldest > self.ahead.staleness:
            return longest
        return min(len(written.ids) + partial, longest)

    def _steps(self, trace: Completion, responses: Sequence[Response], scores: Scores) -> list[StepRewards]:
        """What of the rewards belongs to steps, by the number of tokens up to the end of each."""
        found: list[StepRewards] = []
        decode = self.engine.roles.model.decode
        for row, (response, steps, tokens) in enumerate(zip(responses, scores.steps, scores.tokens, strict=True)):
            if not steps and not tokens:
                found.append(())
                continue
            own = chosen_last(trace, row)  # of a dialogue, steps are those of the last response
            each = [(int(place) + 1, value) for place, value in zip(own, tokens, strict=bool(tokens))]
            ends = token_ends(decode, trace.ids[row, own].tolist(), response.text, [end for end, _ in steps])
            found.append(
                (*((int(own[max(end, 1) - 1]) + 1, value) for end, (_, value) in zip(ends, steps, strict=True)), *each)
            )
        return found

    def _greedy(self, job: ResponseJob) -> torch.Tensor:
        """Reward of the greedy response to each row's prompt, [B]; NaN where it is missing or not needed."""
        if not self.needs.greedy or not job.prompts:
            return torch.full((len(job.prompts),), torch.nan)
        with self.watch("gen"):
            _, _, scoring = sampled_for(job.greedy(), self.engine, self.scorer)
        with self.watch("reward"):
            scores = scoring.scores(self.check_cancelled)
        place = torch.unique_consecutive(job.group, return_inverse=True)[1]
        return scores.reward.masked_fill(scores.missing, torch.nan)[place]


def _quotes(job: ResponseJob, responses: Sequence[Response], scores: Scores) -> Iterator[Quote]:
    """The first response to each of the first prompts, but images."""
    for row in _shown(job):
        if responses[row].image is None:
            prompt = job.prompts[row]
            asked = prompt.turns[-1].text
            reward = None if scores.missing[row] else float(scores.reward[row])
            yield Quote(asked[:LONGEST], responses[row].full_text[:LONGEST], reward)


def _shown(job: ResponseJob) -> list[int]:
    """Rows of the first response to each of the first prompts."""
    return [row for row in group_starts(job.group)[:-1] if int(job.group[row]) < GLIMPSES]


def chosen_last(trace: Completion, row: int) -> Tensor:
    """Places of the tokens that the policy chose in a response; of a dialogue in its last one."""
    chosen = trace.mask[row].nonzero().flatten()
    apart = (chosen.diff() > 1).nonzero().flatten()
    return chosen[int(apart[-1]) + 1 :] if len(apart) else chosen


NO_TOKENS: dict[str, list[Any]] = {"token_texts": [], "token_logprobs": [], "token_entropies": []}


def said_tokens(
    trace: Completion, rows: Sequence[int], engine: ResponseEngine, temperature: float
) -> dict[int, dict[str, list[Any]]]:
    """The first tokens that the policy chose in some responses, as columns of a record, by row.

    Log-probs and entropies are those at the sampling ``temperature``; the latter take a forward pass of their own.
    """
    if not rows:
        return {}
    some, decode = trace.select(rows), engine.roles.model.decode
    entropy = engine.entropy(some, temperature)
    found: dict[int, dict[str, list[Any]]] = {}
    for own, row in enumerate(rows):
        chosen = some.mask[own].nonzero().flatten()[:TOKENS]
        entropies = [] if entropy is None else entropy[own, chosen].tolist()
        found[row] = {
            "token_texts": [decode([token]) for token in some.ids[own, chosen].tolist()],
            "token_logprobs": [round(value, 4) for value in some.logprob[own, chosen].tolist()],
            "token_entropies": [round(value, 4) for value in entropies],
        }
    return found


def chosen_columns(trace: Completion, row: int) -> dict[str, Any]:
    """All tokens that the policy chose in a response, with their log-probs, as columns of a record to learn from."""
    mask = trace.mask[row]
    return {"token_ids": trace.ids[row, mask].tolist(), "logprobs": trace.logprob[row, mask].tolist()}


def begun_columns(written: PartialResponse | None) -> dict[str, Any]:
    """When a response that went on was begun, as columns of a record: the update, and the version of the weights."""
    return {} if written is None else {"drawn_for": written.update, "version": int(written.version[0])}


def response_columns(response: Response, tokens: int) -> dict[str, Any]:
    """A response as columns of a record."""
    return {
        "response": response.full_text, "finished": response.finished, "tokens": tokens,
        "turns": 1 if response.dialogue is None else len(response.dialogue.responses),
    }  # fmt: skip


def drawn_columns(response: Response, folder: Path, sample: int) -> dict[str, str]:
    """The image of a response, which is written to a folder, as a column of a record."""
    return {} if response.image is None else {"file_name": write_sample(folder, f"{sample:03d}", response.image)}


def sampled_for(
    job: ResponseJob,
    engine: ResponseEngine,
    scorer: Scorer,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[Completion, list[Response], Collector]:
    """Responses, which are submitted as they end, while others are still written."""
    scoring, asked = collector(job, scorer, one_by_one=True, tell=tell), fields_required(scorer.rewards)
    # what some rewards ask for is only known when all have ended
    trace, responses = engine.sample(job if asked else replace(job, finished=partial(_add, scoring)))
    submit(scoring, scorer, trace, responses)
    return trace, responses, scoring


def submit(scoring: Collector, scorer: Scorer, trace: Completion, responses: Sequence[Response]) -> None:
    """Give responses to whoever scores them, with what rewards ask for beside."""
    inputs: dict[str, list[Any]] = {}
    if "response_ids" in fields_required(scorer.rewards):
        inputs["response_ids"] = [trace.ids[row, chosen_last(trace, row)].tolist() for row in range(len(trace))]
    _add(scoring, range(len(responses)), responses, inputs)


def _add(
    scoring: Collector, rows: Sequence[int], responses: Sequence[Response], inputs: dict[str, list[Any]] | None = None
) -> None:
    """Give finished responses to whoever scores them: their text, or their images."""
    scoring.add(rows, [response.sample for response in responses], inputs)


def so_far(written: PartialResponse, trace: Completion, row: int, version: int) -> PartialResponse:
    """What there is of a response that has been written on by weights of a version."""
    length = int(trace.length[row])
    return replace(
        written, ids=trace.ids[row, :length].clone(), logprob=trace.logprob[row, :length].clone(),
        version=F.pad(written.version, (0, length - len(written.version)), value=version),
        finished=bool(trace.finished[row]),
    )  # fmt: skip


def ages(
    request: RolloutRequest, trace: Completion, put_aside: Sequence[RolloutRequest]
) -> dict[str, tuple[float, float]]:
    """Metrics of responses that weights of several versions wrote, and the number of values behind each."""
    older = [own for own in request.partial if own is not None]
    tokens, rows = float(trace.length.sum()), float(len(request) + sum(map(len, put_aside)))
    updates = sum(float((request.version - own.version).sum()) for own in older)
    resumed = sum(len(own.ids) for own in older)
    return {
        "pipeline/staleness/mean": (request.update - 1 - request.version + updates / max(tokens, 1), tokens),
        "pipeline/partial/resumed": (resumed / max(tokens, 1), tokens),
        "pipeline/partial/put_aside": (1 - len(request) / rows, rows),
    }


def rollout_sampling(config: LanguageConfig) -> Sampling:
    """How responses to learn from are sampled."""
    rollout = config.rollout
    return sampling_of(
        config, rollout,
        min_new_tokens=rollout.min_new_tokens, first_temperature=rollout.fire_temperature,
        repetition_penalty=rollout.repetition_penalty,
    )  # fmt: skip


def sampling_of(config: LanguageConfig, section: SamplingOptions, **more: Any) -> Sampling:
    """How responses are sampled with the options of a section, such as those of validation."""
    rollout = config.rollout
    return Sampling(
        max_new_tokens=rollout.max_new_tokens, stop=tuple(rollout.stop), temperature=section.temperature,
        top_k=section.top_k, top_p=section.top_p, min_p=section.min_p, **more,
    )  # fmt: skip


def dialogue_metrics(responses: Sequence[Response]) -> dict[str, float]:
    """How dialogues went; nothing where there are none."""
    dialogues = [response.dialogue for response in responses if response.dialogue is not None]
    if not dialogues:
        return {}
    turns = [len(dialogue.rewards) for dialogue in dialogues]
    return {
        "dialogue/turns/mean": sum(turns) / len(turns),
        "dialogue/turns/max": float(max(turns)),
        "dialogue/turns/min": float(min(turns)),
        "dialogue/broken_ratio": sum(bool(dialogue.error) for dialogue in dialogues) / len(dialogues),
    }
