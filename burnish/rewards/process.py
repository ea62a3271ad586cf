"""The process that rewards judge in, which imports no torch, so that it is there in about a second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.rewards.base import AnyReward, Given, Verdict
from burnish.rewards.judging import judge
from burnish.utils.supervisor import ChildDied, Server

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # it shares the machine with the trainer


class ScoringProcess(Server):
    """Starts at once. After an error it is of no more use and should be closed."""

    def __init__(self, rewards: Mapping[str, AnyReward], timeout: float) -> None:
        self._rewards, self._timeout = dict(rewards), timeout
        super().__init__(_load, self._rewards, ENVIRONMENT)

    def load_rewards(self, seconds: float) -> None:
        """Wait until the rewards are loaded; at once where they are.

        Raises:
            TimeoutError: they are not in time.
            ChildDied: the process ended.
        """
        self.load(seconds, self._late("its rewards to load"))

    def judge(
        self, label: str, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given, seconds: float
    ) -> list[Verdict]:
        """One reward's verdicts, within ``seconds``.

        Raises:
            TimeoutError: no answer in time; the message says what was waited for.
            ChildDied: the process ended, or answered something else.
        """
        begun, reward = time.monotonic(), self._rewards[label]
        self.load_rewards(seconds)
        left = max(seconds - (time.monotonic() - begun), 0.0)
        what = f"its verdicts on {len(samples)} {reward.judged}"
        own = given.only(reward.asks())
        verdicts: list[Verdict] = self.call(left, self._late(what), label, list(samples), list(prompts), own)
        if len(verdicts) != len(samples):
            raise ChildDied(f"it gave {len(verdicts)} verdicts on {len(samples)} {reward.judged}")
        return verdicts

    def _late(self, what: str) -> str:
        return f"timed out after {self._timeout:g} s (scoring.timeout) waiting for {what}"


def _load(rewards: dict[str, AnyReward]) -> Callable[..., list[Verdict]]:
    for reward in rewards.values():
        # an error comes again, with a note, at the reward's first sample
        with contextlib.suppress(Exception, SystemExit):
            reward.prepare()
    return lambda label, samples, prompts, given: judge(rewards[label], samples, prompts, given)
