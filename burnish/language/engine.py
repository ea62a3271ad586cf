"""Samples responses with the trainer's own weights. Each one depends on its seeds alone, never on its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from burnish.language.algorithms.base import token_budget_batches
from burnish.language.decoding import decode
from burnish.language.encode import CACHED, Encoder
from burnish.language.logprobs import response_logprobs
from burnish.language.model.universal import LanguageModel
from burnish.language.roles import LanguageRoles
from burnish.language.sampling import Sampling
from burnish.rewards.text.base import Response
from burnish.tasks.job import Job
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError

Finished = Callable[[Sequence[int], Sequence[Response]], None]


@dataclass(frozen=True, kw_only=True)
class ResponseJob(Job):
    """Which responses to make, and how."""

    sampling: Sampling
    finished: Finished | None = None  # gets rows and their responses as soon as they end, while others go on

    def greedy(self) -> ResponseJob:
        """The greedy response to each of the prompts, once."""
        first = [row for row, g in enumerate(self.group.tolist()) if row == 0 or g != int(self.group[row - 1])]
        sampling = replace(self.sampling, temperature=0.0, first_temperature=None)
        prompts = [self.prompts[row] for row in first]
        return replace(
            self, prompts=prompts, group=self.group[first], sample=self.sample[first], purpose="greedy",
            sampling=sampling, finished=None,
        )  # fmt: skip


# samples a response to each of some conversations: prompts, index, keys, and limits, on_ended and turn of ``decode``
Respond = Callable[..., Completion]


class ResponseEngine:
    """Samples responses; by default with the trainer's own weights, in this process."""

    seed: int
    roles: LanguageRoles  # whose tokens responses are made of
    encode: Callable[[Sequence[Prompt]], Gathered[Encoded]]  # tokens and pixels by reference, each distinct prompt once

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}  # of the last weight sync

    def sample(self, job: ResponseJob) -> tuple[Completion, list[Response]]:
        """Responses in the order of the job's rows, as tokens and as text."""
        prompts = self.encode(job.prompts)
        _refuse_long(prompts, job, self.roles.model)
        keys = [random.key(*key, sample) for key, sample in zip(job.keys(self.seed), job.sample.tolist(), strict=True)]
        told = Told(self.roles.model, job.finished)
        with self.responding(job) as respond:
            completion = respond(
                prompts.table, prompts.index.tolist(), keys, on_ended=None if job.finished is None else told
            )
        return completion, told.all(completion)

    def ahead(self, prompts: Sequence[Prompt]) -> None:
        """Have processes beside this one, if there are any, read what prompts show that will be encoded later."""
        if isinstance(self.encode, Encoder) and self.encode.readers is not None:
            self.encode.readers.ahead(self.encode.unread(prompts))

    def close(self) -> None:
        """End what runs beside this process."""
        if isinstance(self.encode, Encoder) and self.encode.readers is not None:
            self.encode.readers.close()

    @contextmanager
    def responding(self, job: ResponseJob) -> Iterator[Respond]:
        """Who answers for a job with the policy's present weights, as often as it is asked in this context."""
        raise NotImplementedError
        yield

    def entropy(self, trace: Completion, temperature: float) -> Tensor | None:
        """Entropy of the policy before every token of responses, [B, T]; None where another program has its weights."""
        return None

    def publish(self, version: int) -> None:
        """Sample with the policy's present weights from now on."""

    def rest(self) -> None:
        """Nothing is sampled until weights are published again."""


class LanguageEngine(ResponseEngine):
    """The default engine: the trainer's network itself, so that no weights have to be published."""

    def __init__(self, roles: LanguageRoles, *, batch_size: int, seed: int, cached: int = CACHED) -> None:
        super().__init__()
        self.roles, self.batch_size, self.seed = roles, batch_size, seed
        self.encode = Encoder(roles.model, cached=cached)

    @contextmanager
    def responding(self, job: ResponseJob) -> Iterator[Respond]:
        with self.roles.sampling() as network:
            yield partial(
                decode, self.roles.model, network, sampling=job.sampling, batch_size=self.batch_size,
                check_cancelled=job.check_cancelled,
            )  # fmt: skip

    def entropy(self, trace: Completion, temperature: float) -> Tensor:
        model, size = self.roles.model, self.roles.micro_batch_size
        with self.roles.sampling() as network:
            batches = list(token_budget_batches(trace, size))
            parts = [response_logprobs(model, network, trace.select(one), temperature=temperature) for one in batches]
        order = torch.tensor([row for rows in batches for row in rows]).argsort()
        return torch.cat([part.entropy.cpu() for part in parts])[order]


class Told:
    """Tells of responses as they end, as text."""

    def __init__(self, model: LanguageModel, finished: Finished | None) -> None:
        self._model, self._finished = model, finished
        self._responses: dict[int, Response] = {}

    def __call__(self, rows: Sequence[int], ids: Sequence[Sequence[int]], finished: Sequence[bool]) -> None:
        assert self._finished is not None, "nobody wants to be told"
        # of those that an engine tells of again, as it had to begin anew, the first word holds
        new = {
            row: Response(self._model.decode(own), finished=one)
            for row, own, one in zip(rows, ids, finished, strict=True)
            if row not in self._responses
        }
        self._responses |= new
        self._finished(list(new), list(new.values()))

    def all(self, completion: Completion) -> list[Response]:
        """Every response: as it was told of, or as it stands in the completion."""
        if not self._responses:
            return texts(self._model, completion)
        rest = [row for row in range(len(completion)) if row not in self._responses]
        self._responses |= zip(rest, texts(self._model, completion.select(rest)), strict=True)
        return [self._responses[row] for row in range(len(completion))]


def texts(model: LanguageModel, completion: Completion) -> list[Response]:
    """What a reward gets to see: the tokens that the policy chose, as text."""
    rows = zip(completion.ids, completion.mask, completion.finished.tolist(), strict=True)
    return [Response(model.decode(ids[mask].tolist()), finished=finished) for ids, mask, finished in rows]


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
