"""Processes that score, and what becomes of a request when one of them dies, is late, or a reward fails."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from burnish.options import ScoringOptions
from burnish.rewards.base import AnyReward, Given, Verdict
from burnish.rewards.judging import judge, missing
from burnish.rewards.process import ScoringProcess
from burnish.types.execution import FAILED, RETRIED, TIMED_OUT
from burnish.utils.errors import UserError
from burnish.utils.supervisor import ChildDied

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

log = logging.getLogger(__name__)

LATE = 2  # requests in a row that time out, after which those that waited behind them are not asked any more

HOPELESS = 2  # samples in a row that each kill a process of their own, after which no further ones are tried alone


class Taker(Protocol):
    """Who gets what a request brings."""

    def answer(self, request: Request, verdicts: list[Verdict], outcomes: list[int]) -> None: ...

    def abandon(self, error: BaseException | None) -> None: ...

    def is_over(self) -> bool: ...


@dataclass(eq=False)
class Request:
    """Some samples, to be scored by one reward."""

    label: str
    samples: list[Any]
    prompts: list[Prompt]
    given: Given
    rows: list[int]  # of the taker's samples
    taker: Taker
    submitted: float = field(default_factory=time.monotonic)


class Lane:
    """Some processes with the same rewards, one thread to each, and the requests that wait for them, in order."""

    def __init__(self, rewards: Mapping[str, AnyReward], processes: int, options: ScoringOptions) -> None:
        self.rewards, self.options = dict(rewards), options
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._processes: list[ScoringProcess | None] = [None] * processes
        self._closed = False
        self._late: dict[str, tuple[int, float]] = {}  # requests in a row that timed out, and when the last one did
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), name=f"scoring-{worker}", daemon=True)
            for worker in range(processes)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, request: Request) -> None:
        """Have a request answered."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    def kill(self) -> None:
        """End the processes at once; ``join`` waits for the threads."""
        with self._changed:
            self._closed = True
            for process in self._processes:
                if process is not None:
                    process.kill()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the threads of a lane that was killed."""
        for thread in self._threads:
            thread.join()
        for request in self._waiting:
            request.taker.abandon(None)

    def _serve(self, worker: int) -> None:
        """Own one process: ask it request after request, until the lane is closed."""
        while requests := self._next(worker):
            try:
                self._answer(worker, [request for request in requests if not request.taker.is_over()])
            except CancelledError:
                for request in requests:
                    request.taker.abandon(None)
            except Exception as error:
                for request in requests:
                    request.taker.abandon(None if self._closed else error)
        self._discard(worker)

    def _next(self, worker: int) -> list[Request]:
        """Let the process load its rewards before a request needs them; then wait for the next one."""
        try:
            self._process(worker).load_rewards(self.options.timeout)
        except (TimeoutError, ChildDied):
            self._discard(worker)  # the request finds out again, and its verdicts say so
        except CancelledError:
            pass
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            first = self._waiting.popleft()
            reward = self.rewards[first.label]
            if not (self.options.merge and reward.has_weights and _can_be_merged(reward)):
                return [first]
            alike = [one for one in self._waiting if one.label == first.label]
            self._waiting = deque(one for one in self._waiting if one.label != first.label)
            return [first, *alike]

    def _answer(self, worker: int, requests: Sequence[Request]) -> None:
        if not requests:
            return
        whole = requests[0] if len(requests) == 1 else _merged(requests)
        if lost := self._not_asked(whole):
            verdicts, outcomes = [missing(lost, lost)] * len(whole.samples), [FAILED | TIMED_OUT] * len(whole.samples)
        else:
            verdicts, outcomes = self._asked(worker, whole)
        start = 0
        for request in requests:
            own = slice(start, start + len(request.samples))
            request.taker.answer(request, verdicts[own], outcomes[own])
            start = own.stop

    def _not_asked(self, request: Request) -> str:
        """Why a request is not even tried: it waited behind others that timed out, and would keep the run waiting."""
        count, last = self._late.get(request.label, (0, 0.0))
        if count < LATE or request.submitted > last:
            return ""
        return f"was not asked, because {count} requests before it timed out after {self.options.timeout:g} s each"

    def _asked(self, worker: int, request: Request) -> tuple[list[Verdict], list[int]]:
        """The verdicts of a process, which is asked again about samples that the reward failed for."""
        ask = _Asking(self, worker, request)
        verdicts, outcomes = with_retries(self.rewards[request.label], request, ask)
        with self._changed:
            late = any(outcome & TIMED_OUT for outcome in outcomes)
            self._late[request.label] = (
                (self._late.get(request.label, (0, 0.0))[0] + 1, time.monotonic()) if late else (0, 0.0)
            )
        return verdicts, outcomes

    def _process(self, worker: int) -> ScoringProcess:
        with self._changed:
            if self._closed:
                raise CancelledError
            process = self._processes[worker]
            if process is None:
                process = self._processes[worker] = ScoringProcess(self.rewards, self.options.timeout)
            return process

    def _discard(self, worker: int) -> None:
        with self._changed:
            process, self._processes[worker] = self._processes[worker], None
        if process is not None:
            process.close()


class _Asking:
    """One request on its way through a process and those that replace it; all of it within one deadline."""

    def __init__(self, lane: Lane, worker: int, request: Request) -> None:
        self._lane, self._worker, self._request = lane, worker, request
        self._until = time.monotonic() + lane.options.timeout

    def __call__(self, rows: Sequence[int]) -> tuple[list[Verdict], int]:
        """Verdicts on some rows of the request, and what holds for all of them.

        A process that dies is replaced and asked once more about all of them; then about each alone, so that a sample
        that kills every process takes no other with it.
        """
        outcome, why = 0, ""
        for _ in range(2):
            try:
                return self._judge(rows), outcome
            except TimeoutError as error:
                return self._lost(rows, str(error)), FAILED | TIMED_OUT | outcome
            except ChildDied as error:
                why, outcome = f"the process that scored it died twice ({error})", outcome | RETRIED
        if len(rows) == 1 or self._lane.rewards[self._request.label].compares() != "samples":
            return self._lost(rows, why), FAILED | outcome
        return self._one_by_one(rows), outcome

    def _one_by_one(self, rows: Sequence[int]) -> list[Verdict]:
        found, deaths = [], 0  # in a row
        for row in rows:
            try:
                if deaths == HOPELESS:
                    raise ChildDied(f"as it did for {HOPELESS} samples in a row, so that this one was not tried alone")
                found += self._judge([row])
                deaths = 0
            except TimeoutError as error:
                found += self._lost([row], str(error))
            except ChildDied as error:
                deaths = min(deaths + 1, HOPELESS)
                found += self._lost([row], f"the process that scored it died twice ({error})")
        return found

    def _judge(self, rows: Sequence[int]) -> list[Verdict]:
        lane, request = self._lane, self._request
        samples, prompts = [request.samples[row] for row in rows], [request.prompts[row] for row in rows]
        left = max(self._until - time.monotonic(), 0.0)
        process = lane._process(self._worker)
        try:
            return process.judge(request.label, samples, prompts, request.given.select(rows), left)
        except TimeoutError:
            lane._discard(self._worker)
            raise
        except ChildDied as error:
            lane._discard(self._worker)
            if not lane._closed:
                log.warning("a process that scored reward %s died (%s) and is replaced", request.label, error)
            raise

    def _lost(self, rows: Sequence[int], why: str) -> list[Verdict]:
        return [missing(why, why)] * len(rows)


def with_retries(
    reward: AnyReward, request: Request, ask: Callable[[Sequence[int]], tuple[list[Verdict], int]]
) -> tuple[list[Verdict], list[int]]:
    """Verdicts on a request, whose failed samples are asked about again as often as the reward says."""
    everything = list(range(len(request.samples)))
    verdicts, outcome = ask(everything)
    outcomes = [outcome] * len(everything)
    for _ in range(reward.repeats):
        failed = [row for row in everything if verdicts[row].fault and not outcomes[row] & TIMED_OUT]
        if not failed:
            break
        if reward.compares() != "samples":  # it needs the samples that these are compared with
            groups = request.given.groups(request.prompts)
            failed = sorted(row for rows in groups if set(rows) & set(failed) for row in rows)
        again, outcome = ask(failed)
        for row, verdict in zip(failed, again, strict=True):
            verdicts[row], outcomes[row] = verdict, outcomes[row] | outcome | RETRIED
    for row, verdict in enumerate(verdicts):
        outcomes[row] = outcomes[row] | FAILED if verdict.fault else outcomes[row] & ~(FAILED | TIMED_OUT)
    return verdicts, outcomes


def here(reward: AnyReward, request: Request) -> tuple[list[Verdict], list[int]]:
    """The same in the run's own process, where nothing can end what hangs."""

    def ask(rows: Sequence[int]) -> tuple[list[Verdict], int]:
        samples, prompts = [request.samples[row] for row in rows], [request.prompts[row] for row in rows]
        return judge(reward, samples, prompts, request.given.select(rows)), 0

    return with_retries(reward, request, ask)


def lanes_of(rewards: Mapping[str, AnyReward], options: ScoringOptions) -> dict[str, Lane]:
    """The lane of each reward: those without weights share processes; those with weights have one per device.

    Rewards whose weights leave a GPU while nothing is scored take turns in it.
    """
    members: dict[str, dict[str, AnyReward]] = {}
    for label, reward in rewards.items():
        place = f"weights on {reward.device_name}" if reward.has_weights else ""
        members.setdefault(place, {})[label] = reward
    found: dict[str, Lane] = {}
    for place, some in members.items():
        lane = Lane(some, 1 if place else options.processes, options)
        found |= dict.fromkeys(some, lane)
    return found


def check_sendable(rewards: Mapping[str, AnyReward]) -> None:
    """Refuse rewards that can't be sent to another process.

    Raises:
        UserError: with the first of them.
    """
    for label, reward in rewards.items():
        way_out = "move its class to the top level of an importable module, or set scoring.processes=0"
        try:
            pickle.dumps(reward)
        except Exception as error:
            raise UserError(f"reward {label} can't be sent to a scoring process: {error}; {way_out}") from None
        if type(reward).__module__ == "__main__":
            raise UserError(f"reward {label} is defined in `__main__`; {way_out}")


def _can_be_merged(reward: AnyReward) -> bool:
    return reward.compares() == "samples" and not reward.asks()


def _merged(requests: Sequence[Request]) -> Request:
    """Requests of one reward as one."""
    samples = [sample for request in requests for sample in request.samples]
    prompts = [prompt for request in requests for prompt in request.prompts]
    return Request(requests[0].label, samples, prompts, Given(), [], requests[0].taker, requests[0].submitted)
