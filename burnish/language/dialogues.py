"""Dialogues of the policy with an environment: sampled turn by turn, all of a batch together, by either engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.environments.base import Environment, Episode, Observation, answers
from burnish.language.decoding import Past, Turn
from burnish.language.encode import CACHED, Encoder
from burnish.language.engine import LanguageEngine, Respond, ResponseEngine, ResponseJob
from burnish.language.model.base import Shown, Video, decoded
from burnish.language.packing import placed
from burnish.rewards.text.base import POLICY, Dialogue, Response
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features, append_turn
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.user_code import awaited, place_of

log = logging.getLogger(__name__)


class Dialogues(ResponseEngine):
    """An engine whose responses an environment answers, until it is done or a limit is reached.

    A dialogue depends on its prompt, its seeds, the environment and the weights, never on its neighbours. An
    environment that fails breaks its own dialogue alone.
    """

    def __init__(self, engine: ResponseEngine, environment: Environment, *, cached: int = CACHED) -> None:
        """Args: ``engine`` says what the policy says, ``cached`` bytes of encoded prompts are kept."""
        self.engine, self.environment, self.roles, self.seed = engine, environment, engine.roles, engine.seed
        self.metrics = engine.metrics
        self.tools = environment.tools()
        if isinstance(engine, LanguageEngine) and environment.max_turns > 1 and not self.roles.model.keeps_turns:
            name = type(self.roles.model.network).__name__
            if environment.kept_gb:
                raise UserError(
                    f"environment.kept_gb is {environment.kept_gb:g}, but nothing of {name} is kept between turns, as "
                    "Burnish's own decoder does not sample for it; leave it out"
                )
            if environment.kept_gb is None:
                log.warning("%s keeps nothing between turns: each reads its conversation from the beginning", name)
        self.encode = Encoder(self.roles.model, self.tools, cached=cached)
        for role in environment.roles:  # a template that refuses one would do so in the middle of a run
            self.roles.model.turn((), [{"role": role, "content": [{"type": "text", "text": "?"}]}], tools=self.tools)

    def sample(self, job: ResponseJob) -> tuple[Completion, list[Response]]:
        """Dialogues in the order of the job's rows: all turns of a row are one response of the completion."""
        alike: dict[Any, Encoded] = {}  # what is said again goes through the processor once
        rows = self._begin(job, alike)
        told: set[int] = set()
        with self.engine.responding(job) as respond:
            for turn in range(self.environment.max_turns):
                waiting = [row for row in rows if row.episode is not None]
                if not waiting:
                    break
                last = turn + 1 == self.environment.max_turns
                going = Turn([row.computed for row in waiting], self.environment.kept_bytes, last)
                self._respond(respond, waiting, job, turn, alike, going)
                over = [number for number, row in enumerate(rows) if row.episode is None and number not in told]
                told.update(over)
                if over and job.finished is not None:
                    job.finished(over, [rows[number].response() for number in over])
        return joined(rows), [row.response() for row in rows]

    def sync_weights(self, version: int) -> None:
        self.engine.sync_weights(version)

    def entropy(self, trace: Completion, temperature: float) -> Tensor | None:
        return self.engine.entropy(trace, temperature)

    def rest(self) -> None:
        self.engine.rest()

    def close(self) -> None:
        """End what the engine and the environment run beside this process."""
        super().close()
        try:
            self.engine.close()
        finally:
            self.environment.close()

    def _begin(self, job: ResponseJob, alike: dict[Any, Encoded]) -> list[DialogueRow]:
        encoded = self.encode(job.prompts)
        rows, starts = [], []
        first: dict[int, int] = {}  # sample of each group
        for number, (prompt, group, sample) in enumerate(
            zip(job.prompts, job.group.tolist(), job.sample.tolist(), strict=True)
        ):
            starts.append(random.key(self.seed, "environment", job.update, prompt.uid, first.setdefault(group, sample)))
            opening = alike.setdefault(prompt.uid, encoded.table.select([int(encoded.index[number])]))
            key = (self.seed, job.purpose, job.update, prompt.uid, sample)
            rows.append(DialogueRow(prompt, key, opening, opening, prompt.chat(), None))
        asked = [partial(_start, self.environment, row.prompt, one) for row, one in zip(rows, starts, strict=True)]
        for row, begun in zip(rows, self._answers(asked, job), strict=True):
            if isinstance(begun, BaseException):
                row.end(_reason(begun))
                continue
            row.episode, observation = begun
            row.observe(observation)
            if observation.content:
                same = (row.prompt.uid, _fingerprint(observation))
                try:
                    with _readable(observation):
                        if same not in alike:
                            opened = _opened(row.prompt, observation)
                            alike[same] = self._written(row.prompt, opened, observation.pictures, observation.videos)
                except UnreadableError as error:
                    row.end(_reason(error))
                    continue
                row.opening = row.conversation = alike[same]
                row.chat, row.opened = _opened(row.prompt, observation), row.shown
            if self._room(row) < 1:
                row.end(f"it begins with {row.opening.lengths[0]} tokens, all that the model reads")
        return rows

    def _answers(self, asked: Sequence[Callable[[], Any]], job: ResponseJob) -> list[Any]:
        """What the environment says to each, or the exception that it raised."""
        environment = self.environment
        return answers(
            asked,
            concurrency=environment.concurrency,
            deadline=environment.deadline,
            check_cancelled=job.check_cancelled,
        )

    def _written(
        self, prompt: Prompt, chat: list[dict[str, Any]], pictures: Sequence[Any], videos: Sequence[Any]
    ) -> Encoded:
        """A conversation as the template writes it, with pictures and videos behind those of the prompt."""
        shown = decoded(prompt, self.roles.model.audio_rate)
        so_far = Shown([*shown.images, *pictures], [*shown.videos, *map(_whole, videos)], shown.audios)
        return self.roles.model.encode(chat, so_far, prompt.told(self.tools))

    def _respond(
        self,
        respond: Respond,
        rows: Sequence[DialogueRow],
        job: ResponseJob,
        turn: int,
        alike: dict[Any, Encoded],
        going: Turn,
    ) -> None:
        """Let the policy say something in every one of these dialogues, and the environment after it."""
        distinct = {id(row.conversation): row.conversation for row in rows}
        place = {number: i for i, number in enumerate(distinct)}
        longest = job.sampling.max_new_tokens
        part = respond(
            Encoded.cat(list(distinct.values())),
            [place[id(row.conversation)] for row in rows],
            # the first turn is what it would be without an environment
            [random.key(*row.key, *([turn] if turn else [])) for row in rows],
            limits=[min(longest, self._room(row) - row.length) for row in rows],
            turn=going,
        )
        words = [
            self.roles.model.decode(ids[:n].tolist()) for ids, n in zip(part.ids, part.length.tolist(), strict=True)
        ]
        asked = [partial(_step, row, said) for row, said in zip(rows, words, strict=True)]
        for i, (row, observation) in enumerate(zip(rows, self._answers(asked, job), strict=True)):
            own = slice(int(part.length[i]))
            row.said.append((POLICY, words[i]))
            row.chat.append({"role": "assistant", "content": words[i]})
            self._answer(row, part.ids[i, own], part.logprob[i, own], observation, alike, last=going.last)
            if row.episode is None and not row.failed:
                row.finished = row.finished and bool(part.finished[i])

    def _answer(
        self,
        row: DialogueRow,
        response: Tensor,
        logprob: Tensor,
        observation: Any,
        alike: dict[Any, Encoded],
        *,
        last: bool,
    ) -> None:
        """What becomes of a dialogue after one response, and what the environment made of it."""
        silence = nothing(self.roles.model.axes)
        if isinstance(observation, BaseException):
            row.rewards.append(None)
            row.append(response, logprob, silence)
            row.end(_reason(observation))
            return
        row.rewards.append(observation.reward)
        row.observe(observation)
        failed = ""
        if observation.done or last:
            row.finished = True
        else:
            try:
                with _readable(observation):
                    if self._go_on(row, response, logprob, observation, alike):
                        return
            except UnreadableError as error:
                failed = _reason(error)
        row.append(response, logprob, silence)
        row.end(failed)

    def _go_on(
        self, row: DialogueRow, response: Tensor, logprob: Tensor, observation: Observation, alike: dict[Any, Encoded]
    ) -> bool:
        """Add a response and what was said after it, where that leaves room for another response."""
        rest: Encoded | None
        if self.environment.history == "template":
            row.chat += observation.messages
            whole = self._written(row.prompt, row.chat, row.pictures, row.videos)
            rest = None if observation.pictures or observation.videos else row.rest(response, whole)
        else:
            whole = rest = self._turn(response, observation, alike)
        length = whole.lengths[0] if rest is None else row.conversation.lengths[0] + len(response) + rest.lengths[0]
        if length - row.opening.lengths[0] >= self._room(row):
            return False
        if rest is None:
            row.begin_anew(response, logprob, whole)
        else:
            row.append(response, logprob, rest)
        return True

    def _room(self, row: DialogueRow) -> int:
        """Tokens of a dialogue at most, behind what it begins with: those that the model has positions for."""
        most, positions = self.environment.max_length, self.roles.model.max_positions - row.opening.lengths[0]
        return positions if most is None else min(most, positions)

    def _turn(self, response: Tensor, observation: Observation, alike: dict[Any, Encoded]) -> Encoded:
        """What the environment says after a response, as the template writes it there."""
        end = response[-1:].tolist()  # a turn depends on how the response before it ends, and on nothing else of it
        same = (*end, _fingerprint(observation))
        if same not in alike:
            shown = Shown(observation.pictures, list(map(_whole, observation.videos)))
            alike[same] = self.roles.model.turn(end, observation.messages, shown, self.tools)
        return alike[same]


class UnreadableError(Exception):
    """An environment shows what the model's processor can't read: a picture 300 times as long as it is wide."""


@contextmanager
def _readable(observation: Observation) -> Iterator[None]:
    """Tell what a processor raises of an observation's pictures and videos, which may be any error."""
    try:
        yield
    except UserError:  # of the template, or of all pictures
        raise
    except Exception as error:
        if not (observation.pictures or observation.videos):
            raise
        raise UnreadableError(f"the model's processor can't read what it shows: {error}") from error


def _opened(prompt: Prompt, observation: Observation) -> list[dict[str, Any]]:
    """The messages of a prompt and of what the environment adds; one of its own only where the last one is not its."""
    chat = prompt.chat()
    if chat[-1]["role"] == observation.role:
        chat[-1] = chat[-1] | {"content": [*chat[-1]["content"], *observation.parts]}
    else:
        chat.append({"role": observation.role, "content": observation.parts})
    return chat


def _start(environment: Environment, prompt: Prompt, seed: int) -> tuple[Episode, Observation]:
    """Begin a dialogue."""
    episode = environment.episode()
    observation = awaited(episode.reset(prompt, seed))
    _check_first(observation)
    return episode, observation


def _step(row: DialogueRow, words: str) -> Observation:
    """Have a response answered."""
    assert row.episode is not None, "the dialogue is over"
    observation: Observation = awaited(row.episode.step(words))
    _check_next(observation)
    return observation


def try_out(environment: Environment, prompt: Prompt, response: str) -> None:
    """Begin a dialogue and answer it once with a placeholder.

    Raises:
        UserError: the environment fails.
    """
    try:
        episode, _ = _start(environment, prompt, 0)
        _check_next(awaited(episode.step(response)))
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{_reason(error)}, for a made-up response to {prompt.name}, which is tried before a run begins; put the "
            "environment right, or, if it can answer only what a model has made, start with scoring.probe=false"
        ) from error


def _check_next(observation: Any) -> None:
    if not isinstance(observation, Observation):
        raise TypeError(f"step returned {type(observation).__name__}; it must be an Observation")


def _check_first(observation: Any) -> None:
    if not isinstance(observation, Observation):
        raise TypeError(f"reset returned {type(observation).__name__}; it must be an Observation")
    if observation.done or observation.reward is not None:
        raise ValueError("reset gave a reward or was done before any response")


def _whole(frames: Any) -> Video:
    """A video of which every frame is shown."""
    return Video(frames, chosen=True)


def _fingerprint(observation: Observation) -> tuple[Any, ...]:
    """Equal for observations that say the same."""
    return (
        observation.role,
        *(part if isinstance(part, str) else (np.asarray(part).shape, part.tobytes()) for part in observation.content),
    )


def _reason(error: BaseException) -> str:
    return f"the environment failed: {type(error).__name__}: {error}{place_of(error)}"


@dataclass
class DialogueRow:
    """A dialogue under way."""

    prompt: Prompt
    key: tuple[random.Part, ...]
    opening: Encoded  # what the first response answers
    conversation: Encoded  # what is answered next; rows that begin alike share one object
    chat: list[dict[str, Any]]  # the same as messages, kept where the template writes it anew for every turn
    episode: Episode | None  # None where there is nothing to wait for any more
    opened: int = 0  # pictures and videos of the opening that are the environment's
    computed: Past = field(default_factory=Past)
    past: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # ids and positions before it was written anew
    mask: list[Tensor] = field(default_factory=list)
    logprob: list[Tensor] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)
    pictures: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    finished: bool = False
    failed: str = ""

    @property
    def length(self) -> int:
        """Tokens of the conversation behind the opening, the policy's and the environment's."""
        return self.conversation.lengths[0] - self.opening.lengths[0]

    @property
    def _last(self) -> tuple[Tensor, Tensor]:
        start = 0 if self.past else self.opening.lengths[0]
        return self.conversation.ids[0][start:], self.conversation.positions[0][:, start:]

    @property
    def tokens(self) -> tuple[Tensor, Tensor]:
        """Ids [T] and positions [A, T] behind the opening; those of a conversation that was written anew begin at 0."""
        parts = [*self.past, self._last]
        return torch.cat([ids for ids, _ in parts]), torch.cat([positions for _, positions in parts], 1)

    def observe(self, observation: Observation) -> None:
        """Add what the environment said."""
        if observation.content:
            self.said.append((observation.role, observation.words))
        self.pictures += observation.pictures
        self.videos += observation.videos

    @property
    def shown(self) -> int:
        """Pictures and videos of the environment so far."""
        return len(self.pictures) + len(self.videos)

    def end(self, failed: str = "") -> None:
        """The dialogue is over."""
        self.failed, self.episode, self.computed = failed, None, Past()

    def append(self, response: Tensor, logprob: Tensor, turn: Encoded) -> None:
        """Go on with a response, and with what the environment says after it, as tokens."""
        self.conversation = append_turn(self.conversation, response, turn)
        self._said(response, logprob, turn.lengths[0], turn.features[0])

    def rest(self, response: Tensor, whole: Encoded) -> Encoded | None:
        """What a conversation without further media has after a response; None if it was written otherwise."""
        before = torch.cat([self.conversation.ids[0], response])
        if not torch.equal(whole.ids[0][: len(before)], before):
            return None
        ids = whole.ids[0][len(before) :]
        positions = torch.arange(len(ids)).expand(len(whole.positions[0]), -1)
        return Encoded(ids=[ids], positions=[positions], features=[Features.none()])

    def begin_anew(self, response: Tensor, logprob: Tensor, whole: Encoded) -> None:
        """Go on with a conversation that the template has written anew."""
        self.conversation = append_turn(self.conversation, response, nothing(len(whole.positions[0])))
        self.past.append(self._last)
        # those of the opening are known
        features = whole.features[0] if self.shown > self.opened else Features(kinds=whole.features[0].kinds)
        self._said(response, logprob, whole.lengths[0], placed(features, sum(len(ids) for ids, _ in self.past)))
        self.conversation, self.computed = whole, Past()

    def _said(self, response: Tensor, logprob: Tensor, added: int, features: Features) -> None:
        self.mask.append(torch.arange(len(response) + added) < len(response))
        self.logprob.append(F.pad(logprob, (0, added)))
        self.computed.added = Features.joined([Features.none(), features], [len(response), added])
        self.features.append(self.computed.added)

    def response(self) -> Response:
        """What rewards get to see."""
        dialogue = Dialogue(tuple(self.said), tuple(self.rewards), self.failed, tuple(self.pictures))
        return Response(["", *dialogue.responses][-1], self.finished, dialogue)


def nothing(axes: int) -> Encoded:
    """No tokens."""
    none = torch.zeros(0, dtype=torch.long)
    return Encoded(ids=[none], positions=[none.expand(axes, 0)], features=[Features.none()])


def joined(rows: Sequence[DialogueRow]) -> Completion:
    """Dialogues as one batch."""
    openings = {id(row.opening): row.opening for row in rows}
    place = {number: i for i, number in enumerate(openings)}
    said = [row.tokens for row in rows]
    length = torch.tensor([len(ids) for ids, _ in said], dtype=torch.long)
    longest = int(length.max()) if len(rows) else 0

    def padded(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([F.pad(part, (0, longest - part.shape[-1])) for part in parts])

    return Completion(
        prompts=Gathered(
            table=Encoded.cat(list(openings.values())),
            index=torch.tensor([place[id(row.opening)] for row in rows], dtype=torch.long),
        ),
        ids=padded([ids for ids, _ in said]),
        mask=padded([torch.cat([*row.mask, torch.zeros(0, dtype=torch.bool)]) for row in rows]),
        logprob=padded([torch.cat([*row.logprob, torch.zeros(0)]) for row in rows]),
        positions=padded([positions for _, positions in said]),
        length=length,
        finished=torch.tensor([row.finished for row in rows]),
        features=[Features.joined(row.features, list(map(len, row.mask))) for row in rows],
    )
