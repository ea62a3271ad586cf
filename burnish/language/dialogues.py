"""Dialogues of the policy with an environment: sampled turn by turn, all of a batch together, by either engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.environments.base import Environment, Episode, Observation, answers
from burnish.language.encode import Encoder, bytes_of
from burnish.language.engine import LanguageEngine, Respond, ResponseEngine, ResponseJob
from burnish.language.model.base import Shown, Video, decoded
from burnish.language.sampling import Past, Turn
from burnish.rewards.text.base import POLICY, Dialogue, Response
from burnish.types.batch import Gathered
from burnish.types.completion import UNROUTED, Completion, Encoded, Features, append_turn
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.addresses import redacted
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import ENCODED, LruCache
from burnish.utils.user_code import awaited, place_of

log = logging.getLogger(__name__)

KEPT = 1 << 30  # bytes of keys and values that stay on the device from one turn to the next; more is computed again


class Dialogues:
    """Has an environment answer an engine's responses, until it is done or a limit is reached.

    A dialogue depends on its prompt, its seeds, the environment and the weights, never on its neighbours. An
    environment that fails breaks its own dialogue alone.
    """

    def __init__(self, engine: ResponseEngine, environment: Environment) -> None:
        """Args: ``engine`` says what the policy says, and gets prompts that tell of the environment's tools."""
        self.engine, self.environment, self.model = engine, environment, engine.roles.model
        self.tools = environment.tools()
        if isinstance(engine, LanguageEngine) and environment.max_turns > 1 and not self.model.keeps_turns:
            name = type(self.model.network).__name__
            log.warning("%s keeps nothing between turns: each reads its conversation from the beginning", name)
        engine.encode = Encoder(self.model, self.tools)
        # what is said again goes through the processor once
        self._said: LruCache[Encoded] = LruCache(ENCODED, bytes_of)
        for role in environment.roles:  # a template that refuses one would do so in the middle of a run
            for tools in self.tools.values() or [()]:
                self.model.turn((), [{"role": role, "content": [{"type": "text", "text": "?"}]}], tools=tools)

    def sample(self, job: ResponseJob) -> tuple[Completion, list[Response]]:
        """As the engine does it."""
        rows = self._begin(job)
        with self.engine.responding(job) as respond:
            for turn in range(self.environment.max_turns):
                waiting = [number for number, row in enumerate(rows) if row.episode is not None]
                if not waiting:
                    break
                self._respond(respond, [rows[number] for number in waiting], job, turn)
                over = [number for number in waiting if rows[number].episode is None]
                if over and job.finished is not None:
                    job.finished(over, [rows[number].response() for number in over])
        return joined(rows), [row.response() for row in rows]

    def _begin(self, job: ResponseJob) -> list[DialogueRow]:
        encoded, seed = self.engine.encode(job.prompts), self.engine.seed
        openings = [encoded.table.select([number]) for number in range(len(encoded.table))]
        rows, asked = [], []
        first: dict[int, int] = {}  # sample of each group
        for prompt, place, group, sample in zip(
            job.prompts, encoded.index.tolist(), job.group.tolist(), job.sample.tolist(), strict=True
        ):
            key = (seed, job.purpose, job.update, prompt.uid, sample)
            rows.append(DialogueRow(prompt, key, openings[place], openings[place], prompt.chat()))
            drawn = random.key(seed, "environment", job.update, prompt.uid, first.setdefault(group, sample))
            asked.append(partial(_start, self.environment, prompt, drawn))
        for row, begun in zip(rows, answers(self.environment, asked, job.check_cancelled), strict=True):
            try:
                row.episode, observation = _unbroken(begun)
                row.observe(observation)
                row.media = row.prompt.media
                if observation.content or observation.prompt:
                    if observation.prompt is None:
                        row.chat, row.opened = _opened(row.prompt, observation), len(row.images) + len(row.videos)
                    row.opening = self._read(observation, partial(self._written, row), row.prompt.uid)
                    row.conversation = row.opening
                if self._room(row) < 1:
                    raise Broken(f"it begins with {row.opening.lengths[0]} tokens, all that the model reads")
            except Broken as error:
                row.end(str(error))
        return rows

    def _read(self, observation: Observation, encode: Callable[[], Encoded], *key: Any) -> Encoded:
        """What an environment says as tokens.

        Raises:
            Broken: they can't be had, as of an image 300 times as long as it is wide.
        """
        try:
            return self._said.get((*key, _fingerprint(observation)), encode) if key else encode()
        except Exception as error:
            own = isinstance(error, UserError)  # of the template, or of all images
            if observation.prompt is None and (own or not (observation.images or observation.videos)):
                raise
            raise Broken(_reason(ValueError(f"the model's processor can't read what it shows: {error}"))) from error

    def _written(self, row: DialogueRow) -> Encoded:
        """A conversation as the template writes it, with images and videos behind those of the prompt."""
        shown = decoded(row.prompt, self.model.audio_rate)
        videos = [*shown.videos, *(Video(frames, chosen=True) for frames in row.videos)]
        so_far = Shown([*shown.images, *row.images], videos, shown.audios)
        return self.model.encode(row.chat, so_far, row.prompt.told(self.tools))

    def _respond(self, respond: Respond, rows: Sequence[DialogueRow], job: ResponseJob, turn: int) -> None:
        """Let the policy say something in every one of these dialogues, and the environment after it."""
        distinct = {id(row.conversation): row.conversation for row in rows}
        place = {number: i for i, number in enumerate(distinct)}
        longest, last = job.sampling.max_new_tokens, turn + 1 == self.environment.max_turns
        part = respond(
            Encoded.cat(list(distinct.values())),
            [place[id(row.conversation)] for row in rows],
            # the first turn is what it would be without an environment
            [random.key(*row.key, *([turn] if turn else [])) for row in rows],
            limits=[min(longest, self._room(row) - row.length) for row in rows],
            turn=Turn([row.computed for row in rows], 0 if last else KEPT),
        )
        words = [self.model.decode(ids[:n].tolist()) for ids, n in zip(part.ids, part.length.tolist(), strict=True)]
        asked = [partial(_step, row.episode, said) for row, said in zip(rows, words, strict=True)]
        observations = answers(self.environment, asked, job.check_cancelled)
        for i, (row, observation) in enumerate(zip(rows, observations, strict=True)):
            own = slice(int(part.length[i]))
            row.said.append((POLICY, words[i]))
            row.chat.append({"role": "assistant", "content": words[i]})
            row.rewards.append(None if isinstance(observation, BaseException) else observation.reward)
            self._answer(row, part.ids[i, own], part.logprob[i, own], observation, last=last)
            row.finished = row.finished and bool(part.finished[i])

    def _answer(self, row: DialogueRow, response: Tensor, logprob: Tensor, observation: Any, *, last: bool) -> None:
        """What becomes of a dialogue after one response, and what the environment made of it."""
        failed = ""
        try:
            row.observe(_unbroken(observation))
            row.finished = observation.done or last
            if not row.finished:
                anew, turn = self._next(row, response, observation)
                length = turn.lengths[0] + (0 if anew else row.conversation.lengths[0] + len(response))
                if length - row.opening.lengths[0] < self._room(row):
                    row.append(response, logprob, turn, anew=anew)
                    return
        except Broken as error:
            failed = str(error)
        row.append(response, logprob, nothing(self.model.axes))
        row.end(failed)

    def _next(self, row: DialogueRow, response: Tensor, observation: Observation) -> tuple[bool, Encoded]:
        """What is said after a response, and whether it is the conversation, written anew.

        Raises:
            Broken: it can't be read.
        """
        # what follows a conversation that was written anew belongs to it, with what it shows
        rewritten = self.environment.history != "tokens" or any(own.anew for own in row.features)
        if observation.prompt is None and not rewritten:
            end = response[-1:].tolist()  # a turn depends on how the response before it ends, and on nothing else of it
            shown = Shown(observation.images, [Video(frames, chosen=True) for frames in observation.videos])
            turn = partial(self.model.turn, end, observation.messages, shown, row.prompt.told(self.tools))
            return False, self._read(observation, turn, *end)
        if observation.prompt is None:
            row.chat += observation.messages
        whole = self._read(observation, partial(self._written, row))
        before = torch.cat([row.conversation.ids[0], response])
        if (
            observation.images
            or observation.videos
            or row.prompt.media != row.media
            or not torch.equal(whole.ids[0][: len(before)], before)
        ):
            return True, whole
        ids = whole.ids[0][len(before) :]
        positions = torch.arange(len(ids)).expand(len(whole.positions[0]), -1)
        return False, Encoded(ids=[ids], positions=[positions], features=[Features()])

    def _room(self, row: DialogueRow) -> int:
        """Tokens of a dialogue at most, behind what it begins with: those that the model has positions for."""
        most, positions = self.environment.max_length, self.model.max_positions - row.opening.lengths[0]
        return positions if most is None else min(most, positions)


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
    observation = _observed(awaited(episode.reset(prompt, seed)), "reset")
    if observation.done or observation.reward is not None:
        raise ValueError("reset gave a reward or was done before any response")
    return episode, observation


def _step(episode: Episode, words: str) -> Observation:
    """Have a response answered."""
    return _observed(awaited(episode.step(words)), "step")


def _observed(observation: Any, method: str) -> Observation:
    if not isinstance(observation, Observation):
        raise TypeError(f"{method} returned {type(observation).__name__}; it must be an Observation")
    return observation


def try_out(environment: Environment, prompt: Prompt, response: str) -> bool:
    """Begin a dialogue and answer it once with a placeholder: whether it shows the policy images or videos.

    Raises:
        UserError: the environment fails.
    """
    try:
        episode, begun = _start(environment, prompt, 0)
        said = (begun, _step(episode, response))
        return any((one.images or one.videos) and not one.done for one in said)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{_reason(error)}, for a made-up response to {prompt.name}, which is tried before a run begins; put the "
            "environment right, or, if it can answer only what a model has made, start with scoring.probe=false"
        ) from error


def _fingerprint(observation: Observation) -> tuple[Any, ...]:
    """Equal for observations that say the same."""
    return (
        observation.role,
        *(
            part if isinstance(part, str) else (np.asarray(part).shape, blake2b(part.tobytes()).digest())
            for part in observation.content
        ),
    )


class Broken(Exception):
    """A dialogue can't go on: its environment failed, or the model can't read what that shows."""


def _unbroken(answer: Any) -> Any:
    """What an environment answered.

    Raises:
        Broken: it failed.
    """
    if isinstance(answer, BaseException):
        raise Broken(_reason(answer)) from answer
    return answer


def _reason(error: BaseException) -> str:
    return f"the environment failed: {type(error).__name__}: {redacted(str(error))}{place_of(error)}"


@dataclass
class DialogueRow:
    """A dialogue under way."""

    prompt: Prompt
    key: tuple[random.Part, ...]
    opening: Encoded  # what the first response answers
    conversation: Encoded  # what is answered next; rows that begin alike share one object
    chat: list[dict[str, Any]]  # the same as messages, kept where the template writes it anew for every turn
    episode: Any = None  # None where there is nothing to wait for any more
    opened: int = 0  # images and videos of the opening that are the environment's
    media: tuple[Media, ...] = ()  # those that are the prompt's
    computed: Past = field(default_factory=Past)
    # of each response with what is said after it: ids, positions (from 0 where it was written anew), mask and log-probs
    pieces: list[tuple[Tensor, ...]] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    finished: bool = False
    failed: str = ""

    @property
    def length(self) -> int:
        """Tokens of the conversation behind the opening, the policy's and the environment's."""
        return self.conversation.lengths[0] - self.opening.lengths[0]

    def observe(self, observation: Observation) -> None:
        """Add what the environment said."""
        if observation.content:
            self.said.append((observation.role, observation.words))
        if observation.prompt is not None:
            self.prompt, self.chat = observation.prompt, observation.prompt.chat()
        self.images += observation.images
        self.videos += observation.videos

    def end(self, failed: str = "") -> None:
        """The dialogue is over."""
        self.failed, self.episode, self.computed = failed, None, Past()

    def append(self, response: Tensor, logprob: Tensor, turn: Encoded, *, anew: bool = False) -> None:
        """Go on with a response and what is said after it: as tokens, or as a conversation that was written anew."""
        features, before = turn.features[0], self.conversation.lengths[0]
        after = append_turn(self.conversation, response, nothing(len(turn.positions[0])) if anew else turn)
        ids, positions = after.ids[0][before:], after.positions[0][:, before:]
        if anew:
            own = len(self.images) + len(self.videos)
            if own == self.opened and self.prompt.media == self.media:  # those of the opening are known
                features = replace(self.opening.features[0], kinds=features.kinds)
            features = Features(anew={sum(len(piece) for piece, *_ in self.pieces) + len(ids): features})
            ids, positions = torch.cat([ids, turn.ids[0]]), torch.cat([positions, turn.positions[0]], 1)
            self.computed = Past()
        self.conversation = turn if anew else after
        chosen = torch.arange(len(ids)) < len(response)
        self.pieces.append((ids, positions, chosen, F.pad(logprob, (0, turn.lengths[0]))))
        self.computed.added = Features.joined([Features(), features], [len(response), turn.lengths[0]])
        self.features.append(self.computed.added)

    def response(self) -> Response:
        """What rewards get to see."""
        dialogue = Dialogue(tuple(self.said), tuple(self.rewards), self.failed, tuple(self.images))
        return Response(["", *dialogue.responses][-1], self.finished, dialogue)


def nothing(axes: int) -> Encoded:
    """No tokens."""
    none = torch.zeros(0, dtype=torch.long)
    return Encoded(ids=[none], positions=[none.expand(axes, 0)], features=[Features()])


def joined(rows: Sequence[DialogueRow]) -> Completion:
    """Dialogues as one batch."""
    openings = {id(row.opening): row.opening for row in rows}
    place = {number: i for i, number in enumerate(openings)}
    empty = nothing(len(rows[0].opening.positions[0]))
    none = (empty.ids[0], empty.positions[0], torch.zeros(0, dtype=torch.bool), torch.zeros(0))
    said = [[torch.cat(parts, -1) for parts in zip(none, *row.pieces, strict=True)] for row in rows]
    longest = max(len(ids) for ids, *_ in said)
    ids, positions, mask, logprob = (
        torch.stack([F.pad(part, (0, longest - part.shape[-1])) for part in parts]) for parts in zip(*said, strict=True)
    )
    return Completion(
        prompts=Gathered(
            table=Encoded.cat(list(openings.values())),
            index=torch.tensor([place[id(row.opening)] for row in rows], dtype=torch.long),
        ),
        ids=ids,
        mask=mask,
        logprob=logprob,
        positions=positions,
        length=torch.tensor([len(own) for own, *_ in said], dtype=torch.long),
        finished=torch.tensor([row.finished for row in rows]),
        features=[Features.joined(row.features, [len(own) for own, *_ in row.pieces]) for row in rows],
        routed_experts=[UNROUTED] * len(rows),
    )
