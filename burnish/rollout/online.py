"""Samples of the present weights: every batch is asked for when it is needed."""

from __future__ import annotations

from typing import Any

from burnish.data.stream import PromptStream
from burnish.rollout.prompt_schedule import PromptSchedule, refuse_ahead
from burnish.rollout.requests import RolloutWorker
from burnish.types.rollout import Rollouts


class OnlineSource:
    """Asks for the samples of an update with the weights of the update before it, and waits for them."""

    def __init__(self, questions: PromptSchedule, rollout_worker: RolloutWorker) -> None:
        self.questions, self.rollout_worker = questions, rollout_worker
        self._after = questions.state_dict()  # where the stream stands behind the last batch that was handed out

    @property
    def stream(self) -> PromptStream:
        """Where prompts come from."""
        return self.questions.stream

    def collect(self, update: int) -> Rollouts:
        collected: Rollouts = self.questions.batch(self.rollout_worker.make, update, version=update - 1)
        self._after = self.questions.state_dict()
        return collected

    def state_dict(self) -> dict[str, Any]:
        """Where the stream goes on; prompts of a batch that was begun and not finished come again."""
        return self._after

    def load_state_dict(self, state: dict[str, Any]) -> None:
        refuse_ahead(state)
        self.questions.load_state_dict(state)
        self._after = self.questions.state_dict()
