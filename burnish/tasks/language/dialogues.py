"""Dialogues of the policy with an environment: sampled turn by turn, all of a batch together, by either engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.environments.base import Environment, Episode, Observation
from burnish.environments.stepping import answers
from burnish.language.kept import Going, Kept, Turn
from burnish.language.media import decoded
from burnish.language.model import LanguageModel
from burnish.rewards.text.base import POLICY, Dialogue, Response
from burnish.tasks.language.engine import CACHED, Encoder, LanguageEngine, Respond, ResponseEngine, ResponseJob
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features, append_turn
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.user_code import place_of


@dataclass
class _Row:
    """A dialogue under way."""

    prompt: Prompt
    key: tuple[random.Part, ...]
    opening: Encoded  # what the first response answers
    conversation: Encoded  # all so far; rows that begin alike share one object
    episode: Episode | None  # None where there is nothing to wait for any more
    mask: list[Tensor] = field(default_factory=list)
    logprob: list[Tensor] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)
    pictures: list[Any] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    finished: bool = False
    failed: str = ""

    @property
    def length(self) -> int:
        """Tokens behind the opening, the policy's and the environment's."""
        return self.conversation.lengths[0] - self.opening.lengths[0]

    def observe(self, observation: Observation) -> None:
        """Add what the environment said."""
        if observation.content:
            self.said.append((observation.role, observation.words))
        self.pictures += observation.pictures

    def end(self, failed: str = "") -> None:
        """The dialogue is over."""
        self.failed, self.episode = failed, None

    @property
    def added(self) -> Features:
        """Media of the environment's last turn."""
        return self.features[-1] if self.features else Features.none()

    def append(self, response: Tensor, logprob: Tensor, turn: Encoded) -> None:
        """Go on with a response, and with what the environment says after it, as tokens."""
        added = turn.lengths[0]
        self.conversation = append_turn(self.conversation, response, turn)
        self.mask.append(torch.arange(len(response) + added) < len(response))
        self.logprob.append(F.pad(logprob, (0, added)))
        self.features.append(turn.features[0])

    def response(self) -> Response:
        """What rewards get to see."""
        dialogue = Dialogue(tuple(self.said), tuple(self.rewards), self.failed, tuple(self.pictures))
        return Response(["", *dialogue.responses][-1], self.finished, dialogue)


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
        if environment.kept_gb is not None and isinstance(engine, LanguageEngine) and not self.roles.model.keeps_turns:
            raise UserError(
                f"environment.kept_gb is {environment.kept_gb:g}, but {type(self.roles.model.network).__name__} is "
                "decoded with a cache of its own, which can't be kept; leave it out"
            )
        self.encode = Encoder(self.roles.model, self.tools, cached=cached)
        for role in environment.roles:  # a template that refuses one would do so in the middle of a run
            self.roles.model.turn((), [{"role": role, "content": [{"type": "text", "text": "?"}]}], tools=self.tools)

    def sample(self, job: ResponseJob) -> tuple[Completion, list[Response]]:
        """Dialogues in the order of the job's rows: all turns of a row are one response of the completion."""
        alike: dict[Any, Encoded] = {}  # what is said again goes through the processor once
        rows = self._begin(job, alike)
        told: set[int] = set()
        kept = Kept(int((1.0 if self.environment.kept_gb is None else self.environment.kept_gb) * 2**30))
        with self.engine.responding(job) as respond:
            for turn in range(self.environment.max_turns):
                waiting = [row for row in rows if row.episode is not None]
                if not waiting:
                    break
                going = Turn(
                    kept, [Going(id(row), row.added) for row in waiting], last=turn + 1 == self.environment.max_turns
                )
                kept.drop_others([id(row) for row in waiting])
                self._respond(respond, waiting, job, turn, alike, going)
                over = [number for number, row in enumerate(rows) if row.episode is None and number not in told]
                told.update(over)
                if over and job.finished is not None:
                    job.finished(over, [rows[number].response() for number in over])
        return _joined(self.roles.model, rows), [row.response() for row in rows]

    def publish(self, version: int) -> None:
        self.engine.publish(version)

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

    def _begin(self, job: ResponseJob, alike: dict[Any, Encoded]) -> list[_Row]:
        encoded = self.encode(job.prompts)
        rows, starts = [], []
        first: dict[int, int] = {}  # sample of each group
        for number, (prompt, group, sample) in enumerate(
            zip(job.prompts, job.group.tolist(), job.sample.tolist(), strict=True)
        ):
            starts.append(random.key(self.seed, "environment", job.update, prompt.uid, first.setdefault(group, sample)))
            opening = alike.setdefault(prompt.uid, encoded.table.select([int(encoded.index[number])]))
            key = (self.seed, job.purpose, job.update, prompt.uid, sample)
            rows.append(_Row(prompt, key, opening, opening, None))
        asked = [partial(_start, self.environment, row.prompt, one) for row, one in zip(rows, starts, strict=True)]
        for row, begun in zip(rows, self._answers(asked, job), strict=True):
            if isinstance(begun, BaseException):
                row.end(_reason(begun))
                continue
            row.episode, observation = begun
            row.observe(observation)
            if observation.content:
                same = (row.prompt.uid, _fingerprint(observation))
                if same not in alike:
                    alike[same] = self._open(row.prompt, observation)
                row.opening = row.conversation = alike[same]
        return rows

    def _answers(self, asked: Sequence[Callable[[], Any]], job: ResponseJob) -> list[Any]:
        """What the environment says to each, or the exception that it raised."""
        environment = self.environment
        return answers(asked, concurrency=environment.concurrency, deadline=environment.deadline, between=job.between)

    def _open(self, prompt: Prompt, observation: Observation) -> Encoded:
        """A prompt and what the environment adds to it; a message of its own only where the last one is not its."""
        chat = prompt.chat()
        if chat[-1]["role"] == observation.role:
            chat[-1] = chat[-1] | {"content": [*chat[-1]["content"], *observation.parts]}
        else:
            chat.append({"role": observation.role, "content": observation.parts})
        shown = decoded(prompt, self.roles.model.audio_rate)
        images = [*shown.images, *observation.pictures]
        return self.roles.model.encode(chat, images, shown.videos, shown.audios, self.tools)

    def _respond(
        self,
        respond: Respond,
        rows: Sequence[_Row],
        job: ResponseJob,
        turn: int,
        alike: dict[Any, Encoded],
        going: Turn,
    ) -> None:
        """Let the policy say something in every one of these dialogues, and the environment after it."""
        distinct = {id(row.conversation): row.conversation for row in rows}
        place = {number: i for i, number in enumerate(distinct)}
        most = self.environment.max_length
        longest = job.sampling.max_new_tokens
        part = respond(
            Encoded.cat(list(distinct.values())),
            [place[id(row.conversation)] for row in rows],
            # the first turn is what it would be without an environment
            [random.key(*row.key, *([turn] if turn else [])) for row in rows],
            limits=None if most is None else [min(longest, most - row.length) for row in rows],
            turn=going,
        )
        words = [
            self.roles.model.decode(ids[:n].tolist()) for ids, n in zip(part.ids, part.length.tolist(), strict=True)
        ]
        asked = [partial(_step, row, said) for row, said in zip(rows, words, strict=True)]
        for i, (row, observation) in enumerate(zip(rows, self._answers(asked, job), strict=True)):
            own = slice(int(part.length[i]))
            row.said.append((POLICY, words[i]))
            self._answer(row, part.ids[i, own], part.logprob[i, own], observation, alike, last=going.last)
            if row.episode is None and not row.failed:
                row.finished = row.finished and bool(part.finished[i])

    def _answer(
        self, row: _Row, response: Tensor, logprob: Tensor, observation: Any, alike: dict[Any, Encoded], *, last: bool
    ) -> None:
        """What becomes of a dialogue after one response, and what the environment made of it."""
        model, nothing = self.roles.model, _nothing(self.roles.model)
        if isinstance(observation, BaseException):
            row.rewards.append(None)
            row.append(response, logprob, nothing)
            row.end(_reason(observation))
            return
        row.rewards.append(observation.reward)
        row.observe(observation)
        if observation.done or last:
            row.finished = True
        else:
            end = response[-1:].tolist()  # a turn depends on how the response before it ends, and on nothing else of it
            same = (*end, _fingerprint(observation))
            if same not in alike:
                alike[same] = model.turn(end, observation.messages, observation.pictures, tools=self.tools)
            turn = alike[same]
            most = self.environment.max_length
            if most is None or row.length + len(response) + turn.lengths[0] < most:
                row.append(response, logprob, turn)
                return
        row.append(response, logprob, nothing)
        row.end()


def _start(environment: Environment, prompt: Prompt, seed: int) -> tuple[Episode, Observation]:
    """Begin a dialogue."""
    episode = environment.episode()
    observation = episode.reset(prompt, seed)
    _check_first(observation)
    return episode, observation


def _step(row: _Row, words: str) -> Observation:
    """Have a response answered."""
    assert row.episode is not None, "the dialogue is over"
    observation = row.episode.step(words)
    _check_next(observation)
    return observation


def try_out(environment: Environment, prompt: Prompt, response: str) -> None:
    """Begin a dialogue and answer it once with a placeholder.

    Raises:
        UserError: the environment fails.
    """
    try:
        episode = environment.episode()
        observation = episode.reset(prompt, 0)
        _check_first(observation)
        _check_next(episode.step(response))
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


def _fingerprint(observation: Observation) -> tuple[Any, ...]:
    """Equal for observations that say the same."""
    return (
        observation.role,
        *(part if isinstance(part, str) else (part.size, part.tobytes()) for part in observation.content),
    )


def _reason(error: BaseException) -> str:
    return f"the environment failed: {type(error).__name__}: {error}{place_of(error)}"


def _nothing(model: LanguageModel) -> Encoded:
    none = torch.zeros(0, dtype=torch.long)
    return Encoded(ids=[none], positions=[none.expand(model.axes, 0)], features=[Features.none()])


def _joined(model: LanguageModel, rows: Sequence[_Row]) -> Completion:
    """Dialogues as one batch."""
    openings = {id(row.opening): row.opening for row in rows}
    place = {number: i for i, number in enumerate(openings)}
    length = torch.tensor([row.length for row in rows], dtype=torch.long)
    longest = int(length.max()) if len(rows) else 0

    def padded(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([F.pad(part, (0, longest - part.shape[-1])) for part in parts])

    behind = [slice(row.opening.lengths[0], None) for row in rows]
    return Completion(
        prompts=Gathered(
            table=Encoded.cat(list(openings.values())),
            index=torch.tensor([place[id(row.opening)] for row in rows], dtype=torch.long),
        ),
        ids=padded([row.conversation.ids[0][own] for row, own in zip(rows, behind, strict=True)]),
        mask=padded([torch.cat([*row.mask, torch.zeros(0, dtype=torch.bool)]) for row in rows]),
        logprob=padded([torch.cat([*row.logprob, torch.zeros(0)]) for row in rows]),
        positions=padded([row.conversation.positions[0][:, own] for row, own in zip(rows, behind, strict=True)]),
        length=length,
        finished=torch.tensor([row.finished for row in rows]),
        features=[Features.joined(row.features) for row in rows],
    )


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
