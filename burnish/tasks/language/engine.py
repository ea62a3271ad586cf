"""Samples responses with the trainer's own weights. Each one depends on its seeds alone, never on its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from burnish.language.cost import token_budget_batches
from burnish.language.decoding import Ended, decode
from burnish.language.kept import Turn
from burnish.language.logprobs import response_logprobs
from burnish.language.media import decoded
from burnish.language.model import LanguageModel
from burnish.language.sampling import Sampling
from burnish.rewards.text.base import Response
from burnish.tasks.job import Job
from burnish.tasks.language.roles import LanguageRoles
from burnish.training.ranks import Ranks
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import LruCache

if TYPE_CHECKING:
    from burnish.tasks.language.readers import Readers

Finished = Callable[[Sequence[int], Sequence[Response]], None]

CACHED = 4 << 30  # bytes of tokens and pixels of prompts that are kept
OVERHEAD = 1024  # of a prompt's tensors, beside their numbers


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


class Respond(Protocol):
    """Samples one response to each of some conversations; see :func:`burnish.language.decoding.decode`."""

    def __call__(
        self,
        prompts: Encoded,
        index: Sequence[int],
        keys: Sequence[int],
        *,
        limits: Sequence[int] | None = None,
        on_ended: Ended | None = None,
        turn: Turn | None = None,
    ) -> Completion: ...


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


class Encoder:
    """Prompts as tokens and pixels; the processor sees each of them once, however many responses it gets."""

    def __init__(
        self, model: LanguageModel, tools: Sequence[dict[str, Any]] = (), *, bounded: bool = True, cached: int = CACHED
    ) -> None:
        """Make one for a model.

        Args:
            model: whose processor reads them.
            tools: JSON schemas of functions that the prompts tell of.
            bounded: refuse prompts that leave the model no position for a response.
            cached: bytes of prompts that are kept, at most.
        """
        self.model, self.tools, self.bounded = model, tools, bounded
        self.readers: Readers | None = None  # processes that read what prompts show, in place of this one
        self._encoded: LruCache[Encoded] = LruCache(cached, _bytes_of)

    def __call__(self, prompts: Sequence[Prompt]) -> Gathered[Encoded]:
        """Rows by reference to a table of the distinct prompts."""
        unique = {prompt.uid: prompt for prompt in prompts}
        if self.readers is not None:
            self.readers.want(self.unread(prompts))
        table = Encoded.cat([self._encoded.get(uid, partial(self._encode, one)) for uid, one in unique.items()])
        row = {uid: i for i, uid in enumerate(unique)}
        return Gathered(table=table, index=torch.tensor([row[prompt.uid] for prompt in prompts], dtype=torch.long))

    def unread(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Those prompts, each once, whose media are to be read for the next encoding."""
        unique = {prompt.uid: prompt for prompt in prompts if prompt.media}
        return [prompt for uid, prompt in unique.items() if self._encoded.find(uid) is None]

    def _encode(self, prompt: Prompt) -> Encoded:
        if self.readers is not None and self.readers.reads(prompt):
            return self.readers.result(prompt)
        try:
            shown = decoded(prompt, self.model.audio_rate)
            encoded = self.model.encode(prompt.chat(), shown, prompt.told(self.tools))
        except (
            OSError,
            ImportError,
            ValueError,
        ) as error:  # of decoders and processors, where a file broke in the course of a run
            if isinstance(error, UserError) and not prompt.media:  # it names the model, or what the template misses
                raise
            told = f"{prompt.name}{' shows what' if prompt.media else ''} can't be read: {error}"
            raise UserError(f"{told}; put it right or take it out") from error
        last = int(encoded.ids[0].max()) if len(encoded.ids[0]) else 0
        if last >= self.model.readable_ids:
            raise UserError(
                f"{prompt.name} has token {last}, but the model knows only {self.model.readable_ids}: its tokenizer is "
                "another model's; fetch the model again"
            )
        if self.bounded and encoded.lengths[0] >= self.model.max_positions:
            raise UserError(
                f"{prompt.name} has {encoded.lengths[0]} tokens with what it shows and plays, but the model has only "
                f"{self.model.max_positions} ({self.model.position_limit}); shorten it, or set data.max_prompt_length "
                "and data.overlong=filter"
            )
        return replace(encoded, features=[one.in_precision(self.model.compute) for one in encoded.features])


def prompt_lengths(encode: Encoder, prompts: Sequence[Prompt], ranks: Ranks) -> list[int]:
    """Tokens of prompts with what they show and play, shared out over ranks.

    Pictures are not decoded where a processor tells their tokens from their size; of others nothing is kept.
    """
    own = [_length(encode, prompt) for prompt in prompts[ranks.rank :: ranks.size]]
    found = ranks.gather(own)
    return [found[i % ranks.size][i // ranks.size] for i in range(len(prompts))]


def _length(encode: Encoder, prompt: Prompt) -> int:
    found = length_unread(encode.model, prompt, encode.tools)
    return encode([prompt]).table.lengths[0] if found is None else found


def length_unread(model: LanguageModel, prompt: Prompt, tools: Sequence[dict[str, Any]]) -> int | None:
    """Tokens of a prompt with its pictures, of which only the sizes are read; None where that doesn't tell."""
    if prompt.videos or prompt.audios:
        return None
    with suppress(OSError, ValueError):  # which are told of, with the prompt's name, where it is encoded
        each = [model.picture_tokens(*picture.size()) for picture in prompt.images]
        if None not in each:
            length = model.count_tokens(prompt.chat(), prompt.told(tools))
            return length - len(each) + sum(tokens or 0 for tokens in each)
    return None


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


def _bytes_of(encoded: Encoded) -> int:
    tensors = [*encoded.ids, *encoded.positions]
    for features in encoded.features:
        tensors += [*features.tensors.values(), *features.kinds.values()]
    return OVERHEAD + sum(tensor.nbytes for tensor in tensors)


class LanguageEngine(ResponseEngine):
    """The default engine: the trainer's network itself, so that no weights have to be published."""

    def __init__(self, roles: LanguageRoles, *, batch_size: int, seed: int, cached: int = CACHED) -> None:
        super().__init__()
        self.roles, self.batch_size, self.seed = roles, batch_size, seed
        self.encode = Encoder(roles.model, cached=cached)

    @contextmanager
    def responding(self, job: ResponseJob) -> Iterator[Respond]:
        with self.roles.sampling() as network:

            def respond(
                prompts: Encoded, index: Sequence[int], keys: Sequence[int], *,
                limits: Sequence[int] | None = None, on_ended: Ended | None = None, turn: Turn | None = None,
            ) -> Completion:  # fmt: skip
                return decode(
                    self.roles.model, network, prompts, index, keys, job.sampling, batch_size=self.batch_size,
                    limits=limits, check_cancelled=job.check_cancelled, on_ended=on_ended, turn=turn,
                )  # fmt: skip

            yield respond

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
        some = [Response(self._model.decode(own), finished=one) for own, one in zip(ids, finished, strict=True)]
        self._responses |= zip(rows, some, strict=True)
        self._finished(rows, some)

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
