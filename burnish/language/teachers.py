"""What teachers think of the student's responses: distributions over tokens, from networks here and from servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from burnish.language.algorithms.base import in_parts
from burnish.language.encode import Encoder
from burnish.language.logprobs import (
    Head,
    ResponseStates,
    TokenScores,
    response_states,
    rows_at_once,
    scaled_logits,
    score,
)
from burnish.language.model.loading import check_files, load_language_model, read_config
from burnish.language.model.tokenizer import read_tokenizer
from burnish.language.model.universal import LanguageModel
from burnish.options.language import LanguageModelOptions, TokenTeacher
from burnish.rl.surrogates import LEAST
from burnish.types.batch import to_device
from burnish.types.completion import Completion
from burnish.types.prompt import Part, Prompt
from burnish.utils.errors import UserError
from burnish.utils.http import HttpError, Servers, read_token, request
from burnish.utils.json_text import parse_json

if TYPE_CHECKING:
    from burnish.language.roles import LanguageRoles

Measure = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Load = Callable[[TokenTeacher, str], tuple[LanguageModel, set[int]]]


@dataclass(frozen=True)
class Distributions:
    """Distributions over all tokens that student and teacher share, from states, or what a server knows of them."""

    states: Tensor  # [R, D]; logits [R, V] where the head is more than a product; of a server log-probs of ``ids``
    head: Head | None
    temperature: float
    banned: Tensor  # [K] long
    vocabulary: int  # tokens that both have
    ids: Tensor | None = None  # [R, K]

    def logprobs(self, rows: Tensor) -> Tensor:
        states = self.states.index_select(0, rows)
        return self.of(states) if self.ids is None else states

    def of(self, hidden: Tensor) -> Tensor:
        """Log-probs [n, V] from states, or from logits."""
        if self.head is None:
            logits = hidden.float() / self.temperature
        else:
            none = self.banned[:0]
            logits = scaled_logits(hidden, self.head.weight, self.temperature / self.head.scale, none, self.head.cap)
        logits = logits[:, : self.vocabulary]
        if len(self.banned):
            logits = logits.index_fill(-1, self.banned, -torch.inf)
        return logits.log_softmax(-1)


class Teacher:
    """One of a run's teachers: a network of this process, a server, or the policy itself."""

    def __init__(self, roles: LanguageRoles, options: TokenTeacher, option: str, load: Load) -> None:
        self.roles, self.options = roles, options
        self.model, self.unknown = roles.model, set[int]()
        self.server: ServedTeacher | None = None
        if options.path is not None:
            self.model, self.unknown = load(options, option)
            if odd := [one for one in roles.model.stop if one in self.unknown]:
                raise UserError(
                    f"{option}.path is {options.path}, to which token {odd[0]}, by which the student's "
                    "responses end, means something else; take a teacher with the same chat template"
                )
        elif options.url is not None:
            self.server = ServedTeacher(options, option, roles.model)
            self.server.check()
        self.encode = Encoder(self.model)

    def own(self, prompts: Sequence[Prompt]) -> Tensor:
        """Rows of the prompts that it is for, in order."""
        own = [i for i, prompt in enumerate(prompts) if self.options.label in (None, prompt.label)]
        return torch.tensor(own, dtype=torch.long)

    def seen(self, prompts: Sequence[Prompt], trace: Completion, rows: Tensor) -> Completion:
        """Some of the responses behind the prompts that it reads, by its own processor."""
        key, trace = self.options.prompt_key, trace.select(rows)
        own = [prompts[row] for row in rows.tolist()]
        encoded = self.encode(own if key is None else [privileged(prompt, key) for prompt in own])
        same = Completion.of_text(encoded, trace.ids, trace.length, axes=self.model.axes, finished=trace.finished)
        return replace(same, mask=trace.mask)

    def chosen(self, seen: Completion) -> Tensor:
        """Its log-prob of each token that the student chose: [B, T]."""
        if self.server is not None:
            return self.server.chosen(seen)

        def run(network: nn.Module) -> Tensor:
            states = response_states(self.model, network, seen)
            return score(self.model, network, states, seen, temperature=self.roles.temperature).logprob

        logprob: Tensor = self._run(run)
        return logprob

    def read(self, seen: Completion, top_k: int) -> Distributions:
        """What it thinks of the tokens of responses."""
        model, roles = self.model, self.roles
        if self.server is not None:
            ids, values = (to_device(one, roles.device) for one in self.server.read(seen, top_k))
            banned = to_device(model.banned, roles.device)
            return Distributions(values, None, 1.0, banned, model.vocabulary, ids)

        def run(network: nn.Module) -> tuple[Tensor, ...]:
            states = response_states(model, network, seen)
            if states.logits is not None:
                return (states.logits,)
            return states.hidden, model.head(network).weight.detach()

        with torch.no_grad():
            states, *weights = self._run(run)
        vocabulary = min(model.vocabulary, roles.model.vocabulary)
        without = {*model.banned.tolist(), *roles.model.banned.tolist(), *self.unknown}
        shared = torch.tensor(sorted(one for one in without if one < vocabulary), dtype=torch.long)
        head = Head(weights[0], model.capabilities.scale, model.capabilities.cap) if weights else None
        return Distributions(states, head, roles.temperature, to_device(shared, states.device), vocabulary)

    def _run(self, function: Callable[[nn.Module], Any]) -> Any:
        """What a function makes of its network."""
        if not self.options.is_policy:
            return function(self.model.network)
        return self.roles.run("policy" if self.options.weights == "current" else "reference", function)


class Teachers:
    """All teachers of a run."""

    def __init__(self, roles: LanguageRoles, teachers: Sequence[TokenTeacher], load: Load) -> None:
        self.roles, self.teachers, self._load = roles, teachers, load

    @cached_property
    def all(self) -> list[Teacher]:
        """Each, loaded or found to answer."""
        return [
            Teacher(self.roles, options, f"algorithm.teachers[{number}]", self._load)
            for number, options in enumerate(self.teachers)
        ]

    def begin(self, prompts: Sequence[Prompt], trace: Completion, top_k: int) -> None:
        """Servers are asked about all responses at once, while the policy begins to learn.

        Networks of this process are asked when their answer is needed, and of several ranks each asks about its own
        responses alone.
        """
        for teacher in self.all:
            if teacher.server is not None:
                teacher.server.forget()
                own = teacher.own(prompts)
                if len(own) and self.roles.shards.ranks.size == 1:
                    teacher.server.ask(teacher.seen(prompts, trace, own), top_k)

    def worth(
        self, prompts: Sequence[Prompt], trace: Completion, measure: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """A measure of the sampler's and of the teachers' log-probs of each token, summed by weight: [B, T]."""

        def run(rows: list[int]) -> list[Tensor]:
            part, asked = trace.select(rows), [prompts[i] for i in rows]
            total = torch.zeros(part.mask.shape)
            for teacher in self.all:
                own = teacher.own(asked)
                if len(own):
                    logprob = teacher.chosen(teacher.seen(asked, part, own))
                    worth = measure(part.logprob[own], logprob.cpu()) * part.mask[own]
                    total[own] += teacher.options.weight * worth
            return [total]

        return in_parts(run, trace, self.roles)[0] if len(trace) else torch.zeros(trace.mask.shape)

    def compare(
        self, prompts: Sequence[Prompt], trace: Completion, measure: Measure, top_k: int
    ) -> tuple[TokenScores, Tensor]:
        """What the policy thinks of responses, and how far it is from the teachers, [B, T], with gradients."""
        roles = self.roles
        readings = [
            (teacher.options.weight, own, teacher.read(teacher.seen(prompts, trace, own), top_k))
            for teacher in self.all
            if len(own := teacher.own(prompts))
        ]

        def run(network: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
            states = roles.states(network, trace)
            scores = roles.score(network, states, trace)
            row, device = trace.mask.nonzero()[:, 0], states.hidden.device
            total = torch.zeros(len(states.hidden), device=device)
            for weight, own, reading in readings:
                taught = torch.isin(row, own)
                here = states.own(taught).nonzero()[:, 0]
                read = to_device(states.own(taught.cumsum(0) - 1)[here], device)
                apart = self._apart(network, states, here := to_device(here, device), read, reading, measure)
                total = total.index_add(0, here, weight * apart)
            return scores.logprob, scores.entropy, states.scatter(total)

        logprob, entropy, apart = roles.run("policy", run)
        return TokenScores(logprob, entropy), apart

    def _apart(
        self,
        network: nn.Module,
        states: ResponseStates,
        here: Tensor,
        read: Tensor,
        reading: Distributions,
        measure: Measure,
    ) -> Tensor:
        """The measure at the states ``here`` [n], of which the teacher read its tokens ``read`` [n], by chunks whose
        logits are computed again in the backward pass."""
        head = None if states.logits is not None else self.roles.model.head(network)
        source = states.hidden if states.logits is None else states.logits
        student = Distributions(source, head, self.roles.temperature, reading.banned, reading.vocabulary)
        size = rows_at_once(len(head.weight) if head is not None else source.shape[1], source.device)

        def piece(hidden: Tensor, rows: Tensor) -> Tensor:
            with torch.no_grad():
                theirs = reading.logprobs(rows)
                ids = None if reading.ids is None else reading.ids.index_select(0, rows)
            return measure(student.of(hidden), theirs, ids)

        found = [source.new_zeros(0, dtype=torch.float32)]
        for place, rows in zip(here.split(size), read.split(size), strict=True):
            hidden = source.index_select(0, place)
            found.append(checkpoint(piece, hidden, rows, use_reentrant=False) if torch.is_grad_enabled()
                         else piece(hidden, rows))  # fmt: skip
        return torch.cat(found)


def privileged(prompt: Prompt, key: str) -> Prompt:
    """A prompt whose last message says what the record has under a key; its images stay.

    Raises:
        UserError: the record has no such text.
    """
    found: object = prompt.info
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, str) or not found:
        raise UserError(
            f"{prompt.name} has no text under {key}, which a teacher is to read (prompt_key); add it to the record, "
            "and the key to data.extra_keys"
        )
    if not prompt.messages:
        return replace(prompt, text=found)
    *before, last = prompt.messages
    media = tuple(part for part in last.parts if part.kind != "text")
    return replace(prompt, messages=(*before, replace(last, parts=(*media, Part("text", found)))))


def check_taught(teachers: Sequence[TokenTeacher], prompts: Sequence[Prompt]) -> None:
    """Refuse prompts that no teacher is for, or that lack what a teacher reads.

    Raises:
        UserError: naming the first such prompt.
    """
    for prompt in prompts:
        own = [teacher for teacher in teachers if teacher.label in (None, prompt.label)]
        if not own:
            known = ", ".join(sorted({str(teacher.label) for teacher in teachers}))
            raise UserError(
                f"no teacher is for {prompt.name} with label {prompt.label!r}; algorithm.teachers have labels {known}. "
                "Add a teacher with this label, or one without"
            )
        for teacher in own:
            if teacher.prompt_key is not None:
                privileged(prompt, teacher.prompt_key)
            if teacher.url is not None and (prompt.images or prompt.videos):
                raise UserError(
                    f"{prompt.name} has images or videos, but the teacher at {teacher.url} is sent tokens alone; "
                    "give its directory as path instead of url"
                )


def options_of(student: LanguageModelOptions, teacher: TokenTeacher) -> LanguageModelOptions:
    """How a teacher is loaded: as the student, without what is about training."""
    return replace(
        student, path=str(teacher.path), tokenizer=None, chat_template=None, family="auto", lora=None, freeze=[],
        router_aux_loss_coef=0.0, gradient_checkpointing=False, quantization=None, attention="auto", compile=False,
    )  # fmt: skip


def check_teacher_files(student: LanguageModelOptions, teacher: TokenTeacher, option: str) -> None:
    """Refuse a teacher whose directory is incomplete.

    Raises:
        UserError: naming the option.
    """
    with _named(option):
        check_files(options_of(student, teacher))


def check_tokens(student: LanguageModelOptions, teacher: TokenTeacher, option: str) -> set[int]:
    """Refuse a teacher that reads other tokens than the student writes.

    Args:
        student: the model that is trained.
        teacher: with a path.
        option: the teacher's option in the configuration.

    Returns:
        Ids of added tokens that mean something else, or nothing, to one of them.

    Raises:
        UserError: a token that no one has added has another id.
    """
    with _named(option):
        theirs = read_tokenizer(read_config(options_of(student, teacher))[0])
    ours = read_tokenizer(read_config(student)[0])
    added = ours.get_added_vocab().keys() | theirs.get_added_vocab().keys()
    mine, other = ours.get_vocab(), theirs.get_vocab()
    plain = [token for token in mine.keys() | other.keys() if token not in added]
    if odd := sorted(token for token in plain if mine.get(token) != other.get(token)):
        shown = ", ".join(f"{token!r} ({mine.get(token)} and {other.get(token)})" for token in odd[:3])
        raise UserError(
            f"{option}.path is {teacher.path}, whose tokenizer is another one: of {len(plain)} tokens {len(odd)} have "
            f"other ids than in model.path, such as {shown}. A teacher has to read the student's tokens: take one of "
            "the same family, or imitate its responses with algorithm=sft"
        )
    return {number for token in added for number in (mine.get(token), other.get(token))
            if number is not None and mine.get(token) != other.get(token)}  # fmt: skip


def load_teacher(student: LanguageModelOptions, teacher: TokenTeacher, option: str) -> tuple[LanguageModel, set[int]]:
    """A frozen teacher in the precision of the student's forward pass, and the ids that mean something else to it."""
    unknown = check_tokens(student, teacher, option)
    options = options_of(student, teacher)
    with _named(option):
        return load_language_model(options, frozen=True), unknown


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Messages about ``model.`` are about a teacher's options."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("model.", f"{option}.")) from error


RETRIES, PATIENCE = 3, 120.0  # of a request, and seconds that one may take
Answer = tuple[Tensor, Tensor]  # ids [T, K] and log-probs [T, K] of the tokens of a response


class ServedTeacher:
    """Asks a server about responses, several at once, and remembers what it was asked in this update."""

    def __init__(self, teacher: TokenTeacher, option: str, student: LanguageModel) -> None:
        assert teacher.url is not None, "a teacher with a path is loaded"
        self.url, self.option, self.student = teacher.url.rstrip("/"), option, student
        self._served_as, token = teacher.served_as, read_token(teacher.token_variable, f"{option}.token_variable")
        self._server = Servers([self.url], token=token, largest=256 << 20)  # bytes of a reply
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="teacher")  # requests under way
        self._asked: dict[tuple[Any, ...], Future[Answer]] = {}

    @cached_property
    def served_as(self) -> str:
        """Name of the model on the server."""
        if self._served_as is not None:
            return self._served_as
        try:
            reply = request("GET", f"{self.url}/models", content=None, seconds=PATIENCE, token=self._server.token)
            listed = parse_json(reply).get("data") or []
        except (HttpError, ValueError) as error:
            raise self._silent(error) from error
        if not listed or not isinstance(listed[0].get("id"), str):
            raise UserError(f"{self.option}.url is {self.url}, which lists no model; give {self.option}.served_as")
        return str(listed[0]["id"])

    def check(self) -> None:
        """Refuse a server that does not answer, returns no log-probs of a prompt, or has another tokenizer.

        Raises:
            UserError: naming the option.
        """
        ids = self.student.response_ids("The quick brown fox jumps over 13 lazy dogs.")
        for number, entry in zip(ids[1:], self._entries(ids, 1)[1:], strict=True):
            theirs, ours = entry[str(number)].get("decoded_token"), self.student.decode([number])
            if isinstance(theirs, str) and ours and "�" not in ours + theirs and theirs != ours:
                raise UserError(
                    f"{self.option}.url is {self.url}, whose {self.served_as} reads token {number} as {theirs!r}, but "
                    f"model.path as {ours!r}: its tokenizer is another one. Serve a model with the student's tokenizer"
                )

    def forget(self) -> None:
        """Another update begins: what was asked before isn't asked again."""
        for future in self._asked.values():
            future.cancel()
        self._asked.clear()

    def read(self, seen: Completion, top_k: int) -> Answer:
        """What the server thinks of the tokens of responses, whose prompts are those that it reads: [R, K] both."""
        answers = [future.result() for future in self.ask(seen, top_k)]
        mask = [seen.mask[row, : int(seen.length[row])] for row in range(len(seen))]
        ids = torch.cat([one[keep] for (one, _), keep in zip(answers, mask, strict=True)])
        values = torch.cat([one[keep] for (_, one), keep in zip(answers, mask, strict=True)])
        # what the student can't write counts with all the rest
        return ids, values.masked_fill(torch.isin(ids, self.student.banned), LEAST)

    def chosen(self, seen: Completion) -> Tensor:
        """Log-prob of each token of the responses: [B, T]."""
        found = torch.zeros(seen.mask.shape)
        for row, future in enumerate(self.ask(seen, 0)):
            _, values = future.result()
            found[row, : len(values)] = values[:, 0]
        return found

    def ask(self, seen: Completion, top_k: int) -> list[Future[Answer]]:
        """Ask about responses in the background."""
        found = []
        for row, prompt in enumerate(seen.prompts.index.tolist()):
            before = seen.prompts.table.ids[prompt].tolist()
            response = seen.ids[row, : int(seen.length[row])].tolist()
            key = (top_k, tuple(before), tuple(response))
            if key not in self._asked:
                self._asked[key] = self._pool.submit(self._answer, before, response, top_k)
            found.append(self._asked[key])
        return found

    def _answer(self, before: Sequence[int], response: Sequence[int], top_k: int) -> Answer:
        """The ``top_k`` likeliest tokens at each of a response's; with 0 the response's own."""
        if not response:
            return torch.zeros(0, max(top_k, 1), dtype=torch.long), torch.zeros(0, max(top_k, 1))
        ids, values = [], []
        entries = self._entries([*before, *response], max(top_k, 1))[len(before) :]
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
        return torch.tensor(ids), torch.tensor(values)

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
        choices = answer.get("choices") or [{}]
        found: Any = choices[0].get("prompt_logprobs") or answer.get("prompt_logprobs")
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
