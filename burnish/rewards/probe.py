"""Has every reward judge a made-up sample before a run begins, so that one that can't work is refused in seconds."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.rewards.base import AnyReward, Given
from burnish.rewards.scoring import AnyScorer, awaited
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt
    from burnish.types.rollout import Scores

log = logging.getLogger(__name__)

TOKENS = 8  # of a made-up response
LONG = 10.0  # seconds after which it is told what is waited for


def probe(
    scorer: AnyScorer, prompts: Sequence[Prompt], sample: Any, *, timeout: float, check_cancelled: Callable[[], None]
) -> None:
    """Have real prompts' made-up samples judged, by those who will judge all others.

    Each reward gets the first prompt that it judges, twice: one that returns too few values for a batch shows it.

    Args:
        scorer: who judges.
        prompts: the first ones are asked about.
        sample: a picture or a response.
        timeout: seconds of one reward, for the message to those who wait.
        check_cancelled: is called while waiting; what it raises ends the wait.

    Raises:
        UserError: a reward raised, died, took too long, or gave what is no number.
    """
    asked = _asked(scorer.rewards, prompts)
    if not asked:
        return
    until = time.monotonic() + LONG

    def tell() -> None:
        nonlocal until
        check_cancelled()
        if time.monotonic() > until:
            until = math.inf
            labels = ", ".join(scorer.rewards)
            log.warning("waiting for the first verdicts of %s (scoring.timeout=%g seconds)", labels, timeout)

    with scorer.silent():
        # tokens can be made up as well; what a model makes on its way to a sample can't
        given = Given(inputs={"response_ids": [list(range(TOKENS))] * len(asked)}, made_up=True)
        scores = awaited(scorer.submit([sample] * len(asked), asked, given), tell)
    judged = next(iter(scorer.rewards.values())).judged
    for row, prompt in enumerate(asked):
        if scores.faults[row]:
            raise UserError(
                f"reward {_line(scores.faults[row])}, for made-up {judged} of {prompt.name}, which are tried before a "
                "run begins; put the reward right, or, if it can judge only what a model has made, start with "
                "scoring.probe=false"
            )
    if bool(scores.missing.all()):
        log.warning(
            "reward %s has no value for made-up %s: %s; training needs values, so look whether that is meant",
            _missing(scorer.rewards, scores, 0, asked[0]), judged, _line(scores.notes[0]),
        )  # fmt: skip


def _asked(rewards: Mapping[str, AnyReward], prompts: Sequence[Prompt]) -> list[Prompt]:
    first = [next((prompt for prompt in prompts if reward.judges(prompt)), None) for reward in rewards.values()]
    return [prompt for prompt in {p.uid: p for p in first if p is not None}.values() for _ in range(2)]


def _missing(rewards: Mapping[str, AnyReward], scores: Scores, row: int, prompt: Prompt) -> str:
    """Labels of the rewards that have no value for a sample."""
    values = dict(zip(scores.names, scores.components[row].tolist(), strict=True))
    return ", ".join(label for label, reward in rewards.items() if math.isnan(values[label]) and reward.judges(prompt))


def _line(note: str) -> str:
    """The first line of a note, not too long for a message."""
    text = note.partition("\n")[0]
    return text if len(text) <= 500 else f"{text[:500]}..."
