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
from typing import TYPE_CHECKING, Any, TypeAlias

from burnish.rewards.base import NOTHING, AnyReward, Given, Verdict
from burnish.types.statistics import FAILED, RETRIED, TIMED_OUT
from burnish.utils.supervisor import ChildDied, Server
from burnish.utils.user_code import OURS, place_of

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

log = logging.getLogger(__name__)

LARGEST = 3.4e38  # of float32, in which rewards are stored
NOT_ASKED = Verdict(None, asked=False)  # the reward doesn't apply to the prompt
MESSAGE = 1000  # characters of an error's message that are kept
LONGEST = 8000  # last characters of a traceback that are kept
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # a worker shares the machine with the trainer


def score(
    reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given = NOTHING
) -> list[Verdict] | Verdict:
    """One call of a reward, which may write to the samples.

    Args:
        reward: is called.
        samples: images, uint8 arrays [H, W, 3], clips, sounds, or responses.
        prompts: one per sample.
        given: what else is known of the samples.

    Returns:
        One verdict per sample, whose ``asked`` is false where the reward doesn't apply to the prompt; or a single one,
        with the error, if the reward raised.
    """
    process = os.getpid()
    try:
        return _score(reward, samples, prompts, given)
    except (Exception, SystemExit) as error:  # exit() in a reward must not end the process
        return failed(error)
    finally:
        if os.getpid() != process:
            os._exit(0)  # a process that the reward has forked, and that came back from it


def _score(reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given) -> list[Verdict]:
    lacking = [name for name in reward.asks() if name not in given.inputs]
    if lacking and given.made_up:
        return [NOT_ASKED] * len(samples)
    why = f"{reward.name} asks for {', '.join(lacking)}, which this model's samples don't have" if lacking else ""
    verdicts, able = [NOT_ASKED] * len(samples), []
    for row, (sample, prompt) in enumerate(zip(samples, prompts, strict=True)):
        if not reward.judges(prompt):
            continue
        if note := why or reward.unable(sample):
            verdicts[row] = missing(note)
        else:
            able.append(row)
    if not able:
        return verdicts
    known = given.only(reward.asks()).select(able)
    scored = reward.verdicts([samples[row] for row in able], [prompts[row] for row in able], known)
    if len(scored) != len(able):
        raise ValueError(f"it returned {len(scored)} verdicts for {len(able)} {reward.judged}")
    for row, verdict in zip(able, scored, strict=True):
        verdicts[row] = _checked(reward, verdict)
    return verdicts


def _checked(reward: AnyReward, verdict: Verdict) -> Verdict:
    if not verdict.asked:
        return NOT_ASKED
    if verdict.value is None:
        return missing(verdict.note or "it gave no value", verdict.fault)
    if not math.isfinite(verdict.value) or abs(verdict.value) > LARGEST:
        return missing(f"its value is {verdict.value}, which is not a finite number")
    if len(verdict.extras) != len(reward.extras):
        raise ValueError(f"it returned {len(verdict.extras)} extras, but declares {len(reward.extras)}")
    return verdict


def missing(why: str, fault: str = "") -> Verdict:
    """A missing verdict; ``fault`` is set if the reward itself failed."""
    return Verdict(None, (), why, fault=fault)


def failed(error: BaseException) -> Verdict:
    """The verdict of a reward that raised: the error, and where in the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(str(OURS)):
        trace = trace.tb_next  # Burnish's own frames don't help the author of the reward
    message = printable("".join(traceback.format_exception_only(error)).strip())
    message = message if len(message) <= MESSAGE else f"{message[:MESSAGE]}..."
    text = printable("".join(traceback.format_exception(type(error), error, trace)))
    return missing(f"{message}{place_of(error)}", text[-LONGEST:].rstrip())


def printable(text: str) -> str:
    """A user's text without control characters, which could move the cursor or change colours."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def with_retries(
    reward: AnyReward,
    prompts: Sequence[Prompt],
    given: Given,
    ask: Callable[[list[int]], list[Verdict] | Verdict],
) -> tuple[list[Verdict], list[int]]:
    """Verdicts on some samples, and how each came about (see ``types.statistics``), by the one rule for failures.

    A batch that fails, or whose process dies, is halved until single samples fail; or single groups, where the reward
    compares samples. What fails alone is asked about ``retries`` times more, and is then missing. One deadline holds
    for all of it.

    Args:
        reward: that is asked.
        prompts: of the samples.
        given: says which samples are compared.
        ask: calls the reward for some rows; see ``score``. It may raise TimeoutError and ChildDied.
    """
    verdicts, outcomes = [missing("")] * len(prompts), [0] * len(prompts)
    groups = [[row] for row in range(len(prompts))] if reward.compares() == "samples" else given.groups(prompts)
    waiting = [(groups, reward.repeats)] if groups else []
    while waiting:
        together, tries = waiting.pop()
        rows = [row for group in together for row in group]
        try:
            answer = ask(rows)
        except ChildDied as error:
            why = f"the process that scored it died ({error})"
            answer = missing(why, why)
        except TimeoutError as error:
            late = missing(str(error), str(error))
            unanswered = {*rows, *(row for others, _ in waiting for group in others for row in group)}
            for row in unanswered:
                verdicts[row], outcomes[row] = late, outcomes[row] | TIMED_OUT
            break
        if isinstance(answer, Verdict) and len(together) > 1:
            half = len(together) // 2
            again = [(together[half:], tries), (together[:half], tries)]
        else:
            for row, verdict in zip(rows, [answer] * len(rows) if isinstance(answer, Verdict) else answer, strict=True):
                verdicts[row] = verdict
            faults = [group for group in together if any(verdicts[row].fault for row in group)]
            again = [([group], tries - 1) for group in faults] if tries else []
        waiting += again
        for row in (row for groups, _ in again for group in groups for row in group):
            outcomes[row] |= RETRIED
    return verdicts, [o | FAILED if verdict.fault else o for o, verdict in zip(outcomes, verdicts, strict=True)]


Tasks: TypeAlias = "SimpleQueue[Callable[[Worker], None] | None]"


class Worker(threading.Thread):
    """A process that scores, and the thread that asks it. One that died, or was late, is replaced when it is needed."""

    def __init__(self, tasks: Tasks, rewards: Mapping[str, AnyReward], timeout: float) -> None:
        """Start it, which loads the rewards; ``tasks`` may be those of several workers, and None ends one."""
        super().__init__(name="scoring", daemon=True)
        self._tasks, self._rewards, self._timeout = tasks, dict(rewards), timeout
        self._process: Server | None = None  # imports no torch, so that it is there in about a second
        self._holds: object = None  # the samples that were sent to it last
        self._lock, self._closed = threading.Lock(), False
        self.start()

    def run(self) -> None:
        with contextlib.suppress(TimeoutError, ChildDied, CancelledError):  # it fails again, at the first sample
            self._ask(time.monotonic() + self._timeout)
        while (task := self._tasks.get()) is not None:
            task(self)
        self._close()

    def score(self, label: str, samples: bytes, rows: Sequence[int], until: float) -> list[Verdict] | Verdict:
        """One call of a reward; see ``score``.

        Args:
            label: of the reward.
            samples: pickled samples, prompts and ``Given``, which are sent once and read by all rewards.
            rows: of these samples.
            until: deadline, of time.monotonic().

        Raises:
            TimeoutError: no answer in time; the message says what was waited for.
            ChildDied: the process ended.
            CancelledError: the worker was killed.
        """
        answer: list[Verdict] | Verdict = self._ask(until, label, list(rows), samples)
        return answer

    def _ask(self, until: float, label: str = "", rows: Sequence[int] = (), samples: bytes = b"") -> Any:
        with self._lock:
            if self._closed:
                raise CancelledError
            if self._process is None:
                self._process, self._holds = Server(_load, self._rewards, ENVIRONMENT), None
            process = self._process
        late = f"timed out after {self._timeout:g} s (scoring.timeout) waiting for its "
        try:
            process.load(max(until - time.monotonic(), 0.0), f"{late}rewards to load")
            if label:
                what = f"{late}verdicts on {len(rows)} {self._rewards[label].judged}"
                new = None if samples is self._holds else samples
                self._holds = samples
                return process.call(max(until - time.monotonic(), 0.0), what, label, rows, new)
        except (TimeoutError, ChildDied) as error:
            self._close()
            if isinstance(error, ChildDied) and not self._closed:
                log.warning("a process that scored rewards died (%s) and is replaced", error)
            raise

    def kill(self) -> None:
        """End the process now and for good, from any thread; ``join`` waits for the worker's."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        self._tasks.put(None)

    def _close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()


def _load(rewards: dict[str, AnyReward]) -> Callable[..., list[Verdict] | Verdict]:
    """What a worker process answers with."""
    for reward in rewards.values():
        with contextlib.suppress(Exception, SystemExit):
            reward.prepare()
    held = b""

    def answer(label: str, rows: list[int], new: bytes | None) -> list[Verdict] | Verdict:
        nonlocal held
        held = held if new is None else new
        samples, prompts, given = pickle.loads(held)  # anew: a reward may write to its samples
        return score(rewards[label], [samples[row] for row in rows], [prompts[row] for row in rows], given.select(rows))

    return answer
