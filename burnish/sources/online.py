"""Samples of the present weights: every batch is asked for when it is needed."""

from __future__ import annotations

from typing import Any

from burnish.data.stream import PromptStream
from burnish.sources.asked import Maker
from burnish.sources.base import GivenUp
from burnish.sources.questions import Questions, refuse_ahead
from burnish.types import Rollouts


class OnlineSource:
    """Asks for the samples of an update with the weights of the update before it, and waits for them."""

    def __init__(self, questions: Questions, maker: Maker) -> None:
        self.questions, self.maker = questions, maker

    @property
    def stream(self) -> PromptStream:
        """Where prompts come from."""
        return self.questions.stream

    def collect(self, update: int) -> Rollouts:
        before = self.stream.position
        try:
            collected: Rollouts = self.questions.batch(self.maker.make, update, version=update - 1)
        except GivenUp:
            self.stream.position = before
            raise
        return collected

    def state_dict(self) -> dict[str, Any]:
        return self.questions.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        refuse_ahead(state)
        self.questions.load_state_dict(state)
