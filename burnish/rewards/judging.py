"""Asks a reward for its verdicts, and keeps what it can't do from taking anything else with it."""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.rewards.base import AnyReward, Verdict
from burnish.utils.user_code import OURS, place_of

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

LARGEST = 3.4e38  # of float32, in which rewards travel on
SAID = 1000  # characters of what an error says that are kept
LONGEST = 8000  # characters of a traceback that are kept, the last ones


def judge(reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Verdict]:
    """The verdicts of a reward. Where it raises for a batch, every sample is tried by itself.

    Args:
        reward: whose verdicts are wanted.
        samples: what it judges: pictures, uint8 arrays [H, W, 3], or responses.
        prompts: one per sample.

    Returns:
        One verdict per sample. Where the reward raised or gave no finite number, the value is None and the note says
        why, with the traceback as its fault if it raised; where it does not judge the prompt, it was not asked.
    """
    verdicts = [
        missing(reward.unable(sample)) if reward.judges(prompt) else Verdict(None, asked=False)
        for sample, prompt in zip(samples, prompts, strict=True)
    ]
    able = [i for i, verdict in enumerate(verdicts) if verdict.asked and not verdict.note]
    given = _judge(reward, [samples[i] for i in able], [prompts[i] for i in able])
    for i, verdict in zip(able, given, strict=True):
        verdicts[i] = verdict
    return verdicts


def _judge(reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Verdict]:
    if not samples:
        return []
    try:
        # copies: a reward that draws on its pictures must not change what the next one sees
        verdicts = reward.score([copy.copy(sample) for sample in samples], list(prompts))
        if len(verdicts) != len(samples):
            raise ValueError(f"it gave {len(verdicts)} verdicts for {len(samples)} {reward.judged}")
        return [_checked(reward, verdict) for verdict in verdicts]
    except (Exception, SystemExit) as error:  # exit() in a reward must end neither the run nor its process
        if len(samples) == 1:
            return [failed(error)]
    # not within the handler: what is raised there would drag the first error along
    return [_judge(reward, [sample], [prompt])[0] for sample, prompt in zip(samples, prompts, strict=True)]


def missing(why: str, fault: str = "") -> Verdict:
    """A verdict that could not be given; ``fault`` says so where the reward is to blame."""
    return Verdict(None, (), why, fault=fault)


def failed(error: BaseException) -> Verdict:
    """The verdict of a reward that raised: what, and where in the code of whoever wrote it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next  # how it came to be called is nothing to its author
    text = printable("".join(traceback.format_exception(type(error), error, trace)))
    return missing(f"{type(error).__name__}: {_said(error)}{place_of(error)}", text[-LONGEST:].rstrip())


def _said(error: BaseException) -> str:
    try:
        said = printable(str(error))
    except Exception:  # of an exception class that can't say what it is
        return "it does not say why"
    return said if len(said) <= SAID else f"{said[:SAID]}..."


def printable(text: str) -> str:
    """A user's text, fit for a terminal: nothing in it moves a cursor or changes colours."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def _is_ours(file: str) -> bool:
    return file.startswith(str(OURS))


def _checked(reward: AnyReward, verdict: Verdict) -> Verdict:
    if verdict.value is None:
        return missing(verdict.note or "it gave no value", verdict.fault)
    if not math.isfinite(verdict.value) or abs(verdict.value) > LARGEST:
        return missing(f"its value is {verdict.value}, which is not a finite number")
    if len(verdict.extras) != len(reward.extras):
        raise ValueError(f"it gave {len(verdict.extras)} extras, but declares {len(reward.extras)}")
    return verdict
