"""Scores pictures in processes of their own, while the trainer samples the next ones."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import TYPE_CHECKING, Self

from burnish.options import ScoringOptions
from burnish.prompt import Prompt
from burnish.rewards.base import Reward, Verdict
from burnish.rewards.mixing import mix

if TYPE_CHECKING:
    import numpy as np

    from burnish.types import Scores

log = logging.getLogger(__name__)
Verdicts = dict[str, list[Verdict]]


class Scorer:
    """Judges batches of pictures by all rewards. Results depend on pictures and prompts alone.

    A worker that dies is replaced and its batch scored once more; what then still fails, and what takes longer than
    the deadline, is missing, with a note that says why.
    """

    def __init__(self, rewards: Mapping[str, Reward], options: ScoringOptions) -> None:
        self.rewards, self.options = dict(rewards), options
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._waiters: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self.options.processes:
            self._waiters = ThreadPoolExecutor(max_workers=64, thread_name_prefix="scoring")
            self._pool = self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        if self._waiters is not None:
            self._waiters.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            _end(self._pool)
        self._pool = self._waiters = None

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> Scores:
        """Judge pictures uint8 [H, W, 3] and wait for the result."""
        return self.submit(images, prompts).result()

    def submit(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> Future[Scores]:
        """Start judging pictures; the result waits for no other batch than those before it."""
        images, prompts = list(images), list(prompts)
        if self._waiters is None:
            done: Future[Scores] = Future()
            done.set_result(self._mixed(judge(self.rewards, images, prompts)))
            return done
        with self._lock:
            pool = self._pool
            assert pool is not None
            first = pool.submit(judge, self.rewards, images, prompts)
        return self._waiters.submit(self._wait, pool, first, images, prompts)

    def _wait(
        self, pool: ProcessPoolExecutor, first: Future[Verdicts], images: list[np.ndarray], prompts: list[Prompt]
    ) -> Scores:
        attempt, why = first, ""
        for _ in range(2):
            try:
                return self._mixed(attempt.result(timeout=self.options.timeout))
            except TimeoutError:
                why = f"not scored within scoring.timeout={self.options.timeout:g} seconds"
                self._replace(pool)
                break
            except (BrokenProcessPool, CancelledError):
                why = "the process that scored it died, twice"
                pool = self._replace(pool)
                attempt = pool.submit(judge, self.rewards, images, prompts)
        return self._mixed({label: [Verdict(None, (), why)] * len(images) for label in self.rewards})

    def _replace(self, broken: ProcessPoolExecutor) -> ProcessPoolExecutor:
        """A new pool in place of one whose process died or hangs; once, however many batches notice."""
        with self._lock:
            assert self._pool is not None
            if self._pool is broken:
                _end(broken)
                self._pool = self._start()
            return self._pool

    def _start(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(
            self.options.processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_prepare,
            initargs=(os.getpid(),),
        )
        for _ in range(self.options.processes):
            pool.submit(_warm_up, self.rewards)
        return pool

    def _mixed(self, verdicts: Verdicts) -> Scores:
        for label, each in verdicts.items():
            failed = [verdict.note for verdict in each if verdict.value is None]
            if failed and (message := f"reward {label} is missing: {failed[0]}") not in self._warned:
                self._warned.add(message)
                log.warning("%s", message)
        return mix(self.rewards, verdicts)


def judge(rewards: Mapping[str, Reward], images: list[np.ndarray], prompts: list[Prompt]) -> Verdicts:
    """The verdicts of every reward; what one of them can't do is missing, sample by sample."""
    return {label: _judge(reward, images, prompts) for label, reward in rewards.items()}


def _judge(reward: Reward, images: list[np.ndarray], prompts: list[Prompt]) -> list[Verdict]:
    try:
        verdicts = reward.score(images, prompts)
        assert len(verdicts) == len(images), f"{len(verdicts)} verdicts for {len(images)} pictures"
        return verdicts
    except Exception as error:
        if len(images) > 1:
            return [_judge(reward, [i], [p])[0] for i, p in zip(images, prompts, strict=True)]
        return [Verdict(None, (), f"{type(error).__name__}: {error}")]


def _prepare(parent: int) -> None:
    """Leave Ctrl-C to the trainer, keep to one thread, and never outlive the trainer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    import time

    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _warm_up(rewards: Mapping[str, Reward]) -> None:
    """Load what rewards load at their first picture, while the trainer loads its model."""
    import numpy as np

    blank = np.full((16, 32, 3), 255, dtype=np.uint8)
    judge(rewards, [blank], [Prompt(text="", answer="0")])


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
