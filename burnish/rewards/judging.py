"""Calls of a reward: errors become missing verdicts, and too many of them end a run."""

from __future__ import annotations

import math
import os
import traceback
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.options import ScoringOptions
from burnish.rewards.base import NOTHING, AnyReward, Given, Verdict
from burnish.types.clips import writable
from burnish.utils.errors import UserError
from burnish.utils.user_code import OURS, place_of

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


class RewardsFailing(UserError):
    """A reward failed more often than the run allows; what was learned is saved before the run ends."""


class Breaker:
    """Counts the failures of one reward. A value that the reward itself leaves out is none."""

    def __init__(self, label: str, options: ScoringOptions) -> None:
        self.label, self.options = label, options
        self._in_a_row = 0
        self._window: deque[bool] = deque(maxlen=options.failure_window)

    def observe(self, verdicts: Sequence[Verdict]) -> RewardsFailing | None:
        """Count verdicts; the error that ends the run, if there were too many failures."""
        for verdict in verdicts:
            if not verdict.asked:
                continue
            failed = bool(verdict.fault)
            self._in_a_row = self._in_a_row + 1 if failed else 0
            self._window.append(failed)
            if failed and (problem := self._problem()):
                why = " ".join(verdict.note.split())
                return RewardsFailing(
                    f"reward {self.label} {problem}, the last time: {why}; put the reward right and run the same "
                    "command again: it resumes from the last checkpoint"
                )
        return None

    def _problem(self) -> str:
        most, share = self.options.max_failures, self.options.max_failure_share
        if most is not None and self._in_a_row >= most:
            return f"failed for {self._in_a_row} samples in a row (scoring.max_failures={most})"
        if share is None or len(self._window) < self.options.failure_window:
            return ""
        failed = sum(self._window)
        if failed > share * len(self._window):
            return (
                f"failed for {failed} of the last {len(self._window)} samples "
                f"(scoring.max_failure_share={share:g}, scoring.failure_window={self.options.failure_window})"
            )
        return ""


LARGEST = 3.4e38  # of float32, in which rewards are stored
MESSAGE = 1000  # characters of an error's message that are kept
LONGEST = 8000  # last characters of a traceback that are kept


def judge(
    reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given = NOTHING
) -> list[Verdict]:
    """The verdicts of a reward. If it raises for a batch, every sample is scored alone; or every group, if it compares.

    Args:
        reward: is called.
        samples: pictures, uint8 arrays [H, W, 3], clips, sounds, or responses.
        prompts: one per sample.
        given: what else is known of the samples.

    Returns:
        One verdict per sample. If the reward raised or returned no finite number, the value is None and the note says
        why, with the traceback as fault if it raised. ``asked`` is false where the reward doesn't apply to the prompt.
    """
    verdicts = [
        missing(reward.unable(sample)) if reward.judges(prompt) else Verdict(None, asked=False)
        for sample, prompt in zip(samples, prompts, strict=True)
    ]
    if lacking := [name for name in reward.asks() if name not in given.inputs]:
        if given.made_up:
            return [Verdict(None, asked=False)] * len(samples)
        why = f"{reward.name} asks for {', '.join(lacking)}, which this model's samples don't have"
        verdicts = [missing(why) if verdict.asked else verdict for verdict in verdicts]
    able = [i for i, verdict in enumerate(verdicts) if verdict.asked and not verdict.note]
    known = given.only(reward.asks())
    scored = _judge(reward, [samples[i] for i in able], [prompts[i] for i in able], known.select(able))
    for i, verdict in zip(able, scored, strict=True):
        verdicts[i] = verdict
    return verdicts


def _judge(reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given) -> list[Verdict]:
    if not samples:
        return []
    alone = [[row] for row in range(len(samples))]
    together = alone if reward.compares() == "samples" else given.groups(prompts)
    process = os.getpid()
    try:
        # copies: a reward that modifies its pictures must not change the input of the next one
        verdicts = reward.verdicts([writable(sample) for sample in samples], list(prompts), given)
        if len(verdicts) != len(samples):
            raise ValueError(f"it returned {len(verdicts)} verdicts for {len(samples)} {reward.judged}")
        return [_checked(reward, verdict) for verdict in verdicts]
    except (Exception, SystemExit) as error:  # exit() in a reward must not end the process
        if len(together) == 1:
            return [failed(error)] * len(samples)
    finally:
        if os.getpid() != process:
            os._exit(0)  # a process that the reward has forked, and that came back from it
    # outside of the handler, so that further errors are not chained to the first one
    found: dict[int, Verdict] = {}
    for rows in together:
        own = _judge(reward, [samples[row] for row in rows], [prompts[row] for row in rows], given.select(rows))
        found |= dict(zip(rows, own, strict=True))
    return [found[row] for row in range(len(samples))]


def missing(why: str, fault: str = "") -> Verdict:
    """A missing verdict; ``fault`` is set if the reward itself failed."""
    return Verdict(None, (), why, fault=fault)


def failed(error: BaseException) -> Verdict:
    """The verdict of a reward that raised: the error, and where in the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next  # Burnish's own frames don't help the author of the reward
    text = printable("".join(traceback.format_exception(type(error), error, trace)))
    return missing(f"{type(error).__name__}: {_message(error)}{place_of(error)}", text[-LONGEST:].rstrip())


def _message(error: BaseException) -> str:
    try:
        text = printable(str(error))
    except Exception:  # of an exception class whose __str__ fails
        return "its message can't be read"
    return text if len(text) <= MESSAGE else f"{text[:MESSAGE]}..."


def printable(text: str) -> str:
    """A user's text without control characters, which could move the cursor or change colours."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def _is_ours(file: str) -> bool:
    return file.startswith(str(OURS))


def _checked(reward: AnyReward, verdict: Verdict) -> Verdict:
    if not verdict.asked:
        return Verdict(None, asked=False)
    if verdict.value is None:
        return missing(verdict.note or "it gave no value", verdict.fault)
    if not math.isfinite(verdict.value) or abs(verdict.value) > LARGEST:
        return missing(f"its value is {verdict.value}, which is not a finite number")
    if len(verdict.extras) != len(reward.extras):
        raise ValueError(f"it returned {len(verdict.extras)} extras, but declares {len(reward.extras)}")
    return verdict
