"""What teachers think of the student's responses: distributions over tokens, from networks here and from servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from burnish.language.algorithms.base import in_parts
from burnish.language.batches import Asked
from burnish.language.encode import Encoder
from burnish.language.logprobs import (
    Head,
    ResponseStates,
    TokenScores,
    response_logprobs,
    response_states,
    rows_at_once,
    scaled_logits,
    score,
)
from burnish.language.model.universal import LanguageModel
from burnish.language.offline import offline_completion
from burnish.language.spans import Aligned, Vocabularies, align, summed
from burnish.language.teacher_inputs import load_teacher, privileged, with_hindsight
from burnish.options.language import LanguageModelOptions, TokenTeacher
from burnish.rl.preference import another_success
from burnish.rl.surrogates import LEAST
from burnish.types.batch import to_device
from burnish.types.completion import Completion
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from burnish.utils.http import HttpError, Servers, read_token, request
from burnish.utils.json_text import parse_json

if TYPE_CHECKING:
    from burnish.language.roles import LanguageRoles
    from burnish.types.rollout import ScoredResponses

RETRIES, PATIENCE = 3, 120.0  # of a request, and seconds that one may take
Answer = tuple[Tensor, Tensor]  # ids [T, K] and log-probs [T, K] of the tokens of a response
# ids [n, W] of a server's tokens, or which tokens both have; None where they have the same
Known = Tensor | Vocabularies | None
Measure = Callable[[Tensor, Tensor, Known], Tensor]  # of student's and teacher's log-probs, [n, V] and [n, W]


def distribution(states: Tensor, *, head: Head | None, temperature: float, banned: Tensor, vocabulary: int) -> Tensor:
    """Log-probs [n, V] of the first V tokens, from states [n, D], or from logits where there is no head.

    Args:
        states: of which each is read.
        head: of the language.
        temperature: divides the logits.
        banned: [K] long, tokens without probability.
        vocabulary: V.
    """
    if head is None:
        logits = states.float() / temperature
    else:
        logits = scaled_logits(states, head.weight, temperature / head.scale, banned[:0], head.cap)
    logits = logits[:, :vocabulary]
    return (logits.index_fill(-1, banned, -torch.inf) if len(banned) else logits).log_softmax(-1)


@dataclass(frozen=True)
class Seen:
    """Responses as a teacher reads them."""

    rows: Tensor  # [b] long: of the micro-batch
    responses: Completion  # [b], in its own tokens
    spans: Aligned | None = None  # where its tokens are others than the student's


@dataclass(frozen=True)
class Reading:
    """What a teacher thinks of the R tokens of a micro-batch, or of the spans of text that begin with them."""

    teacher: Teacher
    place: Tensor  # [R] long: its state that a token is compared at; -1 where none is
    theirs: Callable[[Tensor], tuple[Tensor, Known]]  # log-probs [n, W] at some of these states, and of which tokens
    spans: Aligned | None = None
    rest: Tensor | None = None  # [R] its log-prob of what a span goes on with


class ServedTeacher:
    """Asks a server about responses, several at once, and remembers what it was asked in this update."""

    def __init__(self, teacher: TokenTeacher, option: str, student: LanguageModel) -> None:
        """Refuse a server that does not answer, returns no log-probs of a prompt, or has another tokenizer.

        Raises:
            UserError: naming the option.
        """
        assert teacher.url is not None, "a teacher with a path is loaded"
        self.url, self.option, self.student = teacher.url.rstrip("/"), option, student
        token = read_token(teacher.token_variable, f"{option}.token_variable")
        self._server = Servers([self.url], token=token, largest=256 << 20)  # bytes of a reply
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="teacher")  # requests under way
        self.asked: dict[tuple[Any, ...], Future[Answer]] = {}  # in this update
        self.served_as = teacher.served_as or self._first_listed()
        ids = student.response_ids("The quick brown fox jumps over 13 lazy dogs.")
        for number, entry in zip(ids[1:], self._entries(ids, 1)[1:], strict=True):
            theirs, ours = entry[str(number)].get("decoded_token"), student.decode([number])
            if isinstance(theirs, str) and ours and "�" not in ours + theirs and theirs != ours:
                raise UserError(
                    f"{option}.url is {self.url}, whose {self.served_as} reads token {number} as {theirs!r}, but "
                    f"model.path as {ours!r}: its tokenizer is another one. Serve a model with the student's tokenizer"
                )

    def _first_listed(self) -> str:
        """Name of the first model on the server."""
        try:
            reply = request("GET", f"{self.url}/models", content=None, seconds=PATIENCE, token=self._server.token)
            listed = parse_json(reply).get("data") or []
        except (HttpError, ValueError) as error:
            raise self._silent(error) from error
        if not listed or not isinstance(listed[0].get("id"), str):
            raise UserError(f"{self.option}.url is {self.url}, which lists no model; give {self.option}.served_as")
        return str(listed[0]["id"])

    def read(self, seen: Completion, top_k: int) -> Answer:
        """What the server thinks of the tokens of responses, whose prompts are those that it reads: [R, K] both."""
        answers = [future.result() for future in self.ask(seen, top_k)]
        ids, values = (torch.cat(side) for side in zip(*answers, strict=True))
        # what the student can't write counts with all the rest
        return ids, values.masked_fill(torch.isin(ids, self.student.banned), LEAST)

    def ask(self, seen: Completion, top_k: int) -> list[Future[Answer]]:
        """Ask about responses in the background."""
        keys = []
        for prompt, ids, length in zip(seen.prompts.index.tolist(), seen.ids, seen.length.tolist(), strict=True):
            key = (tuple(seen.prompts.table.ids[prompt].tolist()), tuple(ids[:length].tolist()), top_k)
            keys.append(key)
            if key not in self.asked:
                self.asked[key] = self._pool.submit(self._answer, *key)
        return [self.asked[key] for key in keys]

    def _answer(self, before: Sequence[int], response: Sequence[int], top_k: int) -> Answer:
        """The ``top_k`` likeliest tokens at each of a response's; with 0 the response's own."""
        ids, values, width = [], [], max(top_k, 1)
        entries = self._entries([*before, *response], width)[len(before) :] if response else []
        for number, entry in zip(response, entries, strict=True):
            own = {int(token): float(known["logprob"]) for token, known in entry.items()}
            kept = sorted(own, key=lambda token: -own[token])[:top_k] if top_k else [number]
            if len(kept) < top_k or max(own) >= self.student.vocabulary:
                raise UserError(
                    f"{self.option}.url is {self.url}, which answers with {len(own)} log-probs of a token, ids up to "
                    f"{max(own)}; {top_k} were asked for (vLLM: --max-logprobs), of {self.student.vocabulary} tokens"
                )
            ids.append(kept)
            values.append([max(own[token], LEAST) for token in kept])
        return torch.tensor(ids, dtype=torch.long).view(len(ids), width), torch.tensor(values).view(len(ids), width)

    def _entries(self, ids: Sequence[int], count: int) -> list[dict[str, Any]]:
        """For each token of a text, log-probs of ``count`` likely ones and its own, by id; none for the first."""
        asked = {
            "model": self.served_as, "prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": count,
        }  # fmt: skip
        try:
            answer = self._server.post_json(
                asked, path="/completions", retries=RETRIES, patience=PATIENCE, deadline=(RETRIES + 2) * PATIENCE
            )
        except HttpError as error:
            raise self._silent(error) from error
        found: Any = (answer.get("choices") or [{}])[0].get("prompt_logprobs") or answer.get("prompt_logprobs")
        if (
            not isinstance(found, list)
            or len(found) != len(ids)
            or any(
                not isinstance(entry, dict) or str(token) not in entry
                for token, entry in zip(ids[1:], found[1:], strict=True)
            )
        ):
            raise UserError(
                f"{self.option}.url is {self.url}, which returns no prompt_logprobs; serve the teacher with vLLM "
                "(vllm serve MODEL), or give its directory as path"
            )
        return [one or {} for one in found]

    def _silent(self, error: Exception) -> UserError:
        return UserError(f"{self.option}.url is {self.url}, which does not answer: {error}; look after the server")


class Teacher:
    """One of a run's teachers: a network of this process, a server, or the policy itself."""

    def __init__(self, roles: LanguageRoles, student: LanguageModelOptions, options: TokenTeacher, option: str) -> None:
        self.roles, self.options, self.model = roles, options, roles.model
        self.server: ServedTeacher | None = None
        self.vocabularies: Vocabularies | None = None  # where texts are compared, and not tokens
        unknown = set[int]()
        if options.path is not None:
            self.model, unknown = load_teacher(student, options, option, aligned=roles.needs.aligned)
            if roles.needs.aligned:
                self.vocabularies = Vocabularies.of(roles.model, self.model, options.shared_weight, roles.device)
            elif odd := [one for one in roles.model.stop if one in unknown]:
                raise UserError(
                    f"{option}.path is {options.path}, to which token {odd[0]}, by which the student's "
                    "responses end, means something else; take a teacher with the same chat template"
                )
        elif options.url is not None:
            self.server = ServedTeacher(options, option, roles.model)
        self.encode = Encoder(self.model)
        both = (roles.model, self.model)
        # of student and teacher: ids without probability, and how many are compared
        self.compared = [(model.banned, model.vocabulary) for model in both]
        if self.vocabularies is None:
            vocabulary = min(model.vocabulary for model in both)
            without = unknown.union(*(model.banned.tolist() for model in both))
            banned = torch.tensor(sorted(one for one in without if one < vocabulary), dtype=torch.long)
            self.compared = [(banned, vocabulary)] * 2

    def distributions(self, side: int, head: Head | None, device: torch.device) -> Callable[[Tensor], Tensor]:
        """What the student (0) or the teacher (1) makes of states, by its language head."""
        banned, size = self.compared[side]
        how: Any = {"temperature": self.roles.temperature, "banned": to_device(banned, device), "vocabulary": size}
        return partial(distribution, head=head, **how)

    def asked(self, scored: ScoredResponses) -> list[Prompt | None]:
        """What it reads in place of each prompt, [B]; None where it teaches nothing."""
        own, key = self.options, self.options.prompt_key
        asked = [prompt if own.label in (None, prompt.label) else None for prompt in scored.prompts]
        if key is not None:
            return [prompt and privileged(prompt, key) for prompt in asked]
        if not own.reads_more:
            return asked
        trace, scores = scored.trace, scored.scores
        least = math.inf if own.solution is None else own.solution
        shown = another_success(scores.reward, scored.group, scores.missing, least).tolist()
        texts = {row: self.roles.model.decode(trace.ids[row, trace.mask[row]].tolist()) for row in {*shown} - {-1}}
        notes = scores.notes if own.feedback else [""] * len(asked)
        return [
            prompt and with_hindsight(prompt, texts.get(row, ""), note[: scored.limit])
            for prompt, row, note in zip(asked, shown, notes, strict=True)
        ]

    def seen(self, asked: Sequence[Prompt | None], trace: Completion) -> Seen:
        """The responses that it teaches about behind what it reads, by its own processor."""
        rows = [row for row, prompt in enumerate(asked) if prompt is not None]
        encoded, taught = self.encode([prompt for prompt in asked if prompt is not None]), trace.select(rows)
        if self.vocabularies is None:
            same = Completion.of_text(encoded, taught.ids, taught.length, axes=self.model.axes)
            return Seen(torch.tensor(rows), same)
        own, theirs = self.roles.model, self.model
        both = [
            align(own.decode, ids[mask].tolist(), theirs.decode, theirs.response_ids)
            for ids, mask in zip(taught.ids, taught.mask, strict=True)
        ]
        same = offline_completion(theirs, encoded, [ids for ids, _ in both])
        ends, starts = trace.mask.sum(1).cumsum(0).tolist(), [0, *same.length.cumsum(0).tolist()]
        parts = [slice(ends[row] - int(trace.mask[row].sum()), ends[row]) for row in rows]
        spans = Aligned.of([pairs for _, pairs in both], parts, starts[:-1], ends[-1])
        return Seen(torch.tensor(rows), same, spans)

    def chosen(self, seen: Completion) -> Tensor:
        """Its log-prob of each token that the student chose: [B, T]."""
        if self.server is not None:
            return torch.zeros(seen.mask.shape).masked_scatter(seen.mask, self.server.read(seen, 0)[1])

        def run(network: nn.Module) -> Tensor:
            return response_logprobs(self.model, network, seen, temperature=self.roles.temperature).logprob

        return self._run(run)  # type: ignore[no-any-return]

    def read(self, seen: Seen, trace: Completion, top_k: int) -> Reading:
        """What it thinks of the tokens of a micro-batch, of which it has seen some responses."""
        model, roles, spans = self.model, self.roles, seen.spans
        taught = torch.isin(trace.mask.nonzero()[:, 0], seen.rows)
        place = torch.where(taught, taught.cumsum(0) - 1, -1)
        if self.server is not None:
            ids, values = (to_device(one, roles.device) for one in self.server.read(seen.responses, top_k))
            return Reading(self, place, lambda rows: (values.index_select(0, rows), ids.index_select(0, rows)))

        def run(network: nn.Module) -> tuple[Tensor, ...]:
            states, chosen = response_states(model, network, seen.responses), torch.zeros(0)
            if spans is not None:
                scores = score(model, network, states, seen.responses, temperature=roles.temperature)
                chosen = flat(scores.logprob, seen.responses)
            if states.logits is not None:
                return chosen, states.logits
            return chosen, states.hidden, model.head(network).weight.detach()

        with torch.no_grad():
            chosen, states, *weights = self._run(run)
        head = Head(weights[0], model.capabilities.scale, model.capabilities.cap) if weights else None
        over = self.distributions(1, head, states.device)

        def theirs(rows: Tensor) -> tuple[Tensor, Known]:
            return over(states.index_select(0, rows)), self.vocabularies

        if spans is None:
            return Reading(self, place, theirs)
        return Reading(self, spans.place, theirs, spans, summed(chosen, spans.their_rest, len(place)))

    def _run(self, function: Callable[[nn.Module], Any]) -> Any:
        """What a function makes of its network."""
        if not self.options.is_policy:
            return function(self.model.network)
        return self.roles.run("policy" if self.options.weights == "current" else "reference", function)


class Teachers:
    """All teachers of a run."""

    def __init__(self, roles: LanguageRoles, student: LanguageModelOptions) -> None:
        self.roles, self.student = roles, student

    @cached_property
    def all(self) -> list[Teacher]:
        """Each, loaded or found to answer."""
        return [
            Teacher(self.roles, self.student, options, f"algorithm.teachers[{number}]")
            for number, options in enumerate(self.roles.needs.teachers)
        ]

    def asked(self, scored: ScoredResponses) -> list[Asked]:
        """What each reads in place of each prompt: [B]."""
        return list(zip(*(teacher.asked(scored) for teacher in self.all), strict=True))

    def _each(self, asked: Sequence[Asked]) -> Iterator[tuple[Teacher, Sequence[Prompt | None]]]:
        """Those that teach about any response of a batch, with what they read of it."""
        columns = zip(self.all, zip(*asked, strict=True), strict=bool(asked))
        return ((teacher, column) for teacher, column in columns if any(column))

    def begin(self, asked: Sequence[Asked], trace: Completion, top_k: int) -> None:
        """Servers are asked about all responses at once, while the policy begins to learn.

        Networks of this process are asked when their answer is needed, and of several ranks each asks about its own
        responses alone.
        """
        for teacher in self.all:
            if teacher.server is not None:
                teacher.server.asked.clear()
        for teacher, column in self._each(asked):
            if teacher.server is not None and self.roles.shards.ranks.size == 1:
                teacher.server.ask(teacher.seen(column, trace).responses, top_k)

    def worth(self, asked: Sequence[Asked], trace: Completion, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A measure of the sampler's and of the teachers' log-probs of each token, summed by weight: [B, T]."""

        def run(rows: list[int]) -> list[Tensor]:
            part = trace.select(rows)
            total = torch.zeros(part.mask.shape)
            for teacher, column in self._each([asked[row] for row in rows]):
                seen = teacher.seen(column, part)
                own = seen.rows
                worth = measure(part.logprob[own], teacher.chosen(seen.responses).cpu()) * part.mask[own]
                total[own] += teacher.options.weight * worth
            return [total]

        return in_parts(run, trace, self.roles)[0] if len(trace) else torch.zeros(trace.mask.shape)

    def compare(
        self, asked: Sequence[Asked], trace: Completion, measure: Measure, top_k: int
    ) -> tuple[TokenScores, Tensor]:
        """What the policy thinks of responses, and how far it is from the teachers, [B, T], with gradients."""
        roles = self.roles
        readings = [teacher.read(teacher.seen(column, trace), trace, top_k) for teacher, column in self._each(asked)]

        def run(network: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
            states = roles.states(network, trace)
            scores = roles.score(network, states, trace)
            total = torch.zeros(len(states.hidden), device=states.hidden.device)
            for reading in readings:
                here, apart = self._apart(network, states, reading, measure, trace, scores)
                total = total.index_add(0, here, reading.teacher.options.weight * apart)
            return scores.logprob, scores.entropy, states.scatter(total)

        logprob, entropy, apart = roles.run("policy", run)
        return TokenScores(logprob, entropy), apart

    def _apart(
        self,
        network: nn.Module,
        states: ResponseStates,
        reading: Reading,
        measure: Measure,
        trace: Completion,
        scores: TokenScores,
    ) -> tuple[Tensor, Tensor]:
        """The states [n] at which a teacher compares, and the measure there, by chunks whose logits are computed again
        in the backward pass."""
        head = None if states.logits is not None else self.roles.model.head(network)
        source = states.hidden if states.logits is None else states.logits
        student = reading.teacher.distributions(0, head, source.device)
        size = rows_at_once(len(head.weight) if head is not None else source.shape[1], source.device)
        place, spans = states.own(reading.place), reading.spans
        begin = (place >= 0).nonzero()[:, 0]
        read, here = to_device(place[begin], source.device), to_device(begin, source.device)
        chunks = here.split(size)
        further: Sequence[Tensor | None] = [None] * len(chunks)
        if spans is not None and reading.rest is not None:  # log-probs of what spans go on with
            goes_on = summed(flat(scores.logprob, trace), spans.rest, len(reading.place)), reading.rest
            further = torch.stack([states.own(one) for one in goes_on], 1).index_select(0, here).split(size)

        def piece(hidden: Tensor, rows: Tensor, more: Tensor | None) -> Tensor:
            with torch.no_grad():
                theirs, known = reading.theirs(rows)
            own = student(hidden)
            if more is not None:
                own, theirs = own + more[:, :1], theirs + more[:, 1:]
            return measure(own, theirs, known)

        found = [source.new_zeros(0, dtype=torch.float32)]
        for at, rows, more in zip(chunks, read.split(size), further, strict=True):
            given = (source.index_select(0, at), rows, more)
            found.append(checkpoint(piece, *given, use_reentrant=False) if torch.is_grad_enabled() else piece(*given))
        apart = torch.cat(found)
        if spans is not None:
            apart = apart * to_device(states.own(spans.scale)[begin], source.device)
        return here, apart


def flat(values: Tensor, trace: Completion) -> Tensor:
    """Values [R] of the tokens that the policy chose, from those [B, T] of all."""
    return values.flatten().index_select(0, to_device(trace.mask.flatten().nonzero()[:, 0], values.device))
