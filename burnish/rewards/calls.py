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
from typing import TYPE_CHECKING, Any

from burnish.rewards.base import NOTHING, AnyReward, Given, Verdict
from burnish.types.execution import FAILED, RETRIED, TIMED_OUT
from burnish.utils.supervisor import ChildDied, Server
from burnish.utils.user_code import OURS, place_of

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

log = logging.getLogger(__name__)

LARGEST = 3.4e38  # of float32, in which rewards are stored
MESSAGE = 1000  # characters of an error's message that are kept
LONGEST = 8000  # last characters of a traceback that are kept
DEATHS = 10  # of processes in a row, after which a request is given up; 7 find the culprit among 64 samples
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
        return [Verdict(None, asked=False)] * len(samples)
    why = f"{reward.name} asks for {', '.join(lacking)}, which this model's samples don't have" if lacking else ""
    verdicts = [
        missing(why or reward.unable(sample)) if reward.judges(prompt) else Verdict(None, asked=False)
        for sample, prompt in zip(samples, prompts, strict=True)
    ]
    able = [row for row, verdict in enumerate(verdicts) if verdict.asked and not verdict.note]
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
        return Verdict(None, asked=False)
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
    try:
        message = printable(str(error))
    except Exception:  # of an exception class whose __str__ fails
        message = "its message can't be read"
    message = message if len(message) <= MESSAGE else f"{message[:MESSAGE]}..."
    text = printable("".join(traceback.format_exception(type(error), error, trace)))
    return missing(f"{type(error).__name__}: {message}{place_of(error)}", text[-LONGEST:].rstrip())


def printable(text: str) -> str:
    """A user's text without control characters, which could move the cursor or change colours."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def with_retries(
    reward: AnyReward,
    prompts: Sequence[Prompt],
    given: Given,
    ask: Callable[[list[int]], list[Verdict] | Verdict],
) -> tuple[list[Verdict], list[int]]:
    """Verdicts on some samples, and how each came about (see ``types.execution``), by the one rule for failures.

    A batch that fails, or whose process dies, is halved until single samples fail; or single groups, where the reward
    compares samples. What fails alone is asked about ``retries`` times more, and is then missing. One deadline holds
    for all of it.

    Args:
        reward: that is asked.
        prompts: of the samples.
        given: says which samples are compared.
        ask: calls the reward for some rows; see ``score``. It may raise TimeoutError and ChildDied.
    """
    single = [[row] for row in range(len(prompts))]
    units = single if reward.compares() == "samples" else given.groups(prompts)
    verdicts, outcomes = [missing("")] * len(prompts), [0] * len(prompts)
    waiting, deaths = [(units, reward.repeats)] if units else [], 0
    while waiting:
        together, tries = waiting.pop()
        rows = [row for unit in together for row in unit]
        over = 0
        try:
            answer = ask(rows)
            deaths = 0
        except (TimeoutError, ChildDied) as error:
            late = isinstance(error, TimeoutError)
            deaths += not late
            why = str(error) if late else f"the process that scored it died ({error})"
            answer = missing(why, why)
            if late or deaths == DEATHS:
                over = TIMED_OUT if late else FAILED
                rows += [row for others, _ in waiting for unit in others for row in unit]
                waiting, tries = [], 0
        if isinstance(answer, Verdict) and len(together) > 1 and not over:
            half = len(together) // 2
            waiting += [(together[half:], tries), (together[:half], tries)]
            again = together
        else:
            answer = [answer] * len(rows) if isinstance(answer, Verdict) else answer
            for row, verdict in zip(rows, answer, strict=True):
                verdicts[row], outcomes[row] = verdict, outcomes[row] | over
            again = [unit for unit in together if tries and any(verdicts[row].fault for row in unit)]
            waiting += [([unit], tries - 1) for unit in again]
        for unit in again:
            for row in unit:
                outcomes[row] |= RETRIED
    return verdicts, [o | FAILED if verdict.fault else o for o, verdict in zip(outcomes, verdicts, strict=True)]


class Worker:
    """A process that scores. One that died, or was late, is replaced when it is needed again."""

    def __init__(self, rewards: Mapping[str, AnyReward], timeout: float) -> None:
        self._rewards, self._timeout = dict(rewards), timeout
        self._process: Server | None = None  # imports no torch, so that it is there in about a second
        self._holds: object = None  # the samples that were sent to it last
        self._lock, self._closed = threading.Lock(), False

    def prepare(self) -> None:
        """Load the rewards before they are needed; what fails then fails again, with a note, at the first sample."""
        with contextlib.suppress(TimeoutError, ChildDied, CancelledError):
            self._ask(time.monotonic() + self._timeout, "its rewards to load")

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
        what = f"its verdicts on {len(rows)} {self._rewards[label].judged}"
        try:
            found: list[Verdict] | Verdict = self._ask(until, what, label, list(rows), samples)
        except ChildDied as error:
            if not self._closed:
                log.warning("a process that scored reward %s died (%s) and is replaced", label, error)
            raise
        return found

    def _ask(self, until: float, what: str, label: str = "", rows: Sequence[int] = (), samples: bytes = b"") -> Any:
        with self._lock:
            if self._closed:
                raise CancelledError
            if self._process is None:
                self._process, self._holds = Server(_load, self._rewards, ENVIRONMENT), None
            process = self._process
        try:
            late = f"timed out after {self._timeout:g} s (scoring.timeout) waiting for "
            process.load(max(until - time.monotonic(), 0.0), f"{late}its rewards to load")
            if not label:
                return None
            new = None if samples is self._holds else samples
            answer = process.call(max(until - time.monotonic(), 0.0), late + what, label, rows, new)
            self._holds = samples
            return answer
        except (TimeoutError, ChildDied):
            self.close()
            raise

    def kill(self) -> None:
        """End the process now and for good, from any thread."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process."""
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


class WorkerPool:
    """Workers with the same rewards, a thread to each, and the tasks that wait for them, in order."""

    def __init__(self, rewards: Mapping[str, AnyReward], processes: int, timeout: float) -> None:
        self._tasks: SimpleQueue[Callable[[Worker], None] | None] = SimpleQueue()
        self._workers = [Worker(rewards, timeout) for _ in range(processes)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), name=f"scoring-{number}", daemon=True)
            for number, worker in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, task: Callable[[Worker], None]) -> None:
        """Have a worker's thread call this with the worker."""
        self._tasks.put(task)

    def kill(self) -> None:
        """End the processes at once, which ends what waits for them; ``join`` waits for the threads."""
        for worker in self._workers:
            worker.kill()
            self._tasks.put(None)

    def join(self) -> None:
        """Wait for the threads of a pool that was killed."""
        for thread in self._threads:
            thread.join()

    def _serve(self, worker: Worker) -> None:
        worker.prepare()
        while (task := self._tasks.get()) is not None:
            task(worker)
        worker.close()
