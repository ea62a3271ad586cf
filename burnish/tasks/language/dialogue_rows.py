"""One dialogue under way, and many of them as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.environments.base import Episode, Observation
from burnish.language.contexts import placed
from burnish.rewards.text.base import Dialogue, Response
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features, append_turn
from burnish.types.prompt import Prompt
from burnish.utils import random


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

    @property
    def name(self) -> tuple[int, int]:
        """Of what is computed of the conversation."""
        return id(self), len(self.past)

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
        self.failed, self.episode = failed, None

    @property
    def added(self) -> Features:
        """Media of the environment's last turn."""
        return self.features[-1] if self.features else Features.none()

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
        self.conversation = whole

    def _said(self, response: Tensor, logprob: Tensor, added: int, features: Features) -> None:
        self.mask.append(torch.arange(len(response) + added) < len(response))
        self.logprob.append(F.pad(logprob, (0, added)))
        self.features.append(Features.joined([Features.none(), features], [len(response), added]))

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
