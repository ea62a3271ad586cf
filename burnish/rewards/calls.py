"""Calls of rewards, here or in worker processes. An error, a death or a late answer makes samples missing, never 0."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any, TypeAlias

from burnish.rewards.base import NOTHING, AnyReward, RewardInputs, Score
from burnish.types.prompt import Prompt
from burnish.types.samples import FAILED, RETRIED, TIMED_OUT
from burnish.utils.addresses import redacted
from burnish.utils.supervisor import ChildDied, ServerPool
from burnish.utils.terminal import printable
from burnish.utils.user_code import OURS, place_of

log = logging.getLogger(__name__)

LARGEST = 3.4e38  # of float32, in which rewards are stored
NOT_APPLICABLE = Score(None, applicable=False)  # the reward doesn't apply to the prompt
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # a worker shares the machine with the trainer


def call_reward(
    reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING
) -> list[Score] | Score:
    """One call of a reward, which may write to the samples.

    Args:
        reward: is called.
        samples: images, uint8 arrays [H, W, 3], clips, sounds, or responses.
        prompts: one per sample.
        inputs: what else is known of the samples.

    Returns:
        One score per sample, whose ``applicable`` is false where the reward doesn't apply to the prompt; or a single
        one, with the error, if the reward raised.
    """
    process, scores, able = os.getpid(), [NOT_APPLICABLE] * len(samples), list[int]()
    try:
        lacking = [name for name in reward.required_fields() if name not in inputs.columns]
        if lacking and inputs.made_up:
            return scores
        why = f"{reward.name} asks for {', '.join(lacking)}, which this model's samples don't have" if lacking else ""
        for row, (sample, prompt) in enumerate(zip(samples, prompts, strict=True)):
            if not reward.applies_to(prompt):
                continue
            if note := why or reward.unable(sample) or reward.unfit(prompt):
                scores[row] = Score(None, note)
            else:
                able.append(row)
        if not able:
            return scores
        known = inputs.only(reward.required_fields()).select(able)
        scored = reward([samples[row] for row in able], [prompts[row] for row in able], known)
        for row, score in zip(able, scored, strict=True):
            scores[row] = _checked(reward, score)
        return scores
    except (Exception, SystemExit) as error:  # exit() in a reward must not end the process
        return failed(error)
    finally:
        if os.getpid() != process:
            os._exit(0)  # a process that the reward has forked, and that came back from it


def _checked(reward: AnyReward, score: Score) -> Score:
    if not score.applicable:
        return NOT_APPLICABLE
    if score.value is None:
        return Score(None, score.note or "it gave no value", fault=score.fault)
    if not math.isfinite(score.value) or abs(score.value) > LARGEST:
        return Score(None, f"its value is {score.value}, which is not a finite number")
    if lacking := [name for name in reward.numbers if name not in score.numbers]:
        raise ValueError(f"it declares the number {lacking[0]}, but a score has only {', '.join(score.numbers)}")
    return score


def failed(error: BaseException) -> Score:
    """The score of a reward that raised: the error, and where in the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(str(OURS)):
        trace = trace.tb_next  # Burnish's own frames don't help the author of the reward
    message = printable(redacted("".join(traceback.format_exception_only(error)).strip()))
    message = message if len(message) <= 1000 else f"{message[:1000]}..."
    text = printable(redacted("".join(traceback.format_exception(type(error), error, trace))))
    return Score(None, f"{message}{place_of(error)}", fault=text[-8000:].rstrip())


def with_retries(
    reward: AnyReward,
    prompts: Sequence[Prompt],
    inputs: RewardInputs,
    ask: Callable[[list[int]], list[Score] | Score],
) -> tuple[list[Score], list[int]]:
    """Scores on some samples, and how each came about (see ``types.samples``), by the one rule for failures.

    A batch that fails, or whose process dies, is halved until single samples fail; or single groups, where the reward
    compares samples. What fails alone is asked about ``retries`` times more, and is then missing. One deadline holds
    for all of it.

    Args:
        reward: that is asked.
        prompts: of the samples.
        inputs: says which samples are compared.
        ask: calls the reward for some rows; see ``call_reward``. It may raise TimeoutError and ChildDied.
    """
    scores, outcomes = [NOT_APPLICABLE] * len(prompts), [0] * len(prompts)
    groups = [[row] for row in range(len(prompts))] if reward.compares() == "samples" else inputs.groups(prompts)
    waiting = [(groups, reward.repeats)] if groups else []
    while waiting:
        together, tries = waiting.pop()
        rows = [row for group in together for row in group]
        try:
            answer = ask(rows)
        except ChildDied as error:
            why = f"the process that scored it died ({error})"
            answer = Score(None, why, fault=why)
        except TimeoutError as error:
            late = Score(None, str(error), fault=str(error))
            unanswered = {*rows, *(row for others, _ in waiting for group in others for row in group)}
            for row in unanswered:
                if reward.applies_to(prompts[row]):
                    scores[row], outcomes[row] = late, outcomes[row] | TIMED_OUT
            break
        if isinstance(answer, Score) and len(together) > 1:
            half = len(together) // 2
            again = [(together[half:], tries), (together[:half], tries)]
        else:
            for row, score in zip(rows, [answer] * len(rows) if isinstance(answer, Score) else answer, strict=True):
                scores[row] = score
            faults = [group for group in together if any(scores[row].fault for row in group)]
            again = [([group], tries - 1) for group in faults] if tries else []
        waiting += again
        for row in (row for groups, _ in again for group in groups for row in group):
            outcomes[row] |= RETRIED
    return scores, [o | FAILED if score.fault else o for o, score in zip(outcomes, scores, strict=True)]


Tasks: TypeAlias = "SimpleQueue[Callable[[Worker], None] | None]"


class Worker(threading.Thread):
    """A process that scores, and the thread that asks it. One that died, or was late, is replaced when it is needed."""

    def __init__(self, tasks: Tasks, rewards: Mapping[str, AnyReward], timeout: float) -> None:
        """Start it, which loads the rewards; ``tasks`` may be those of several workers, and None ends one."""
        super().__init__(name="scoring", daemon=True)
        self._tasks, self._rewards, self._timeout = tasks, dict(rewards), timeout
        self._process = ServerPool(1, _load, self._rewards, ENVIRONMENT)  # without torch: there in about a second
        self._holds: object = None  # the samples that were sent to it last
        self.start()

    def run(self) -> None:
        with contextlib.suppress(TimeoutError, ChildDied, CancelledError):  # it fails again, at the first sample
            self.score("", b"", (), time.monotonic() + self._timeout)
        while (task := self._tasks.get()) is not None:
            task(self)
        self._process.close()

    def score(self, label: str, samples: bytes, rows: Sequence[int], until: float) -> list[Score] | Score:
        """One call of a reward; see ``call_reward``.

        Args:
            label: of the reward; "" only waits until the rewards are loaded.
            samples: pickled samples, prompts and ``RewardInputs``, which are sent once and read by all rewards.
            rows: of these samples.
            until: deadline, of time.monotonic().

        Raises:
            TimeoutError: no answer in time; the message says what was waited for.
            ChildDied: the process ended.
            CancelledError: the worker was killed.
        """
        late = f"timed out after {self._timeout:g} s (scoring.timeout) waiting for its "
        try:
            with self._process.one() as process:
                process.load(max(until - time.monotonic(), 0.0), f"{late}rewards to load")
                if not label:
                    return []
                what = f"{late}scores on {len(rows)} {self._rewards[label].judged}"
                new = None if samples is self._holds else samples
                self._holds = samples
                return process.call(max(until - time.monotonic(), 0.0), what, label, list(rows), new)  # type: ignore[no-any-return]
        except (TimeoutError, ChildDied) as error:
            self._holds = None
            if isinstance(error, ChildDied) and not self._process.closed:
                log.warning("a process that scored rewards died (%s) and is replaced", error)
            raise

    def kill(self) -> None:
        """End the process now and for good, from any thread; ``join`` waits for the worker's."""
        self._process.kill()
        self._tasks.put(None)


def _load(rewards: dict[str, AnyReward]) -> Callable[..., list[Score] | Score]:
    """What a worker process answers with."""
    for reward in rewards.values():
        with contextlib.suppress(Exception, SystemExit):
            reward.prepare()
    held = b""

    def answer(label: str, rows: list[int], new: bytes | None) -> list[Score] | Score:
        nonlocal held
        held = held if new is None else new
        samples, prompts, inputs = pickle.loads(held)  # anew: a reward may write to its samples
        return call_reward(
            rewards[label], [samples[row] for row in rows], [prompts[row] for row in rows], inputs.select(rows)
        )

    return answer
