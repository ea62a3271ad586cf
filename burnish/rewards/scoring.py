"""Scores batches by all rewards of a run, also while other samples are still drawn."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol, Self

from burnish.options import ScoringOptions
from burnish.options.mixing import MixingOptions
from burnish.rewards.base import NOTHING, AnyReward, Given, Verdict
from burnish.rewards.judging import Breaker, RewardsFailing
from burnish.rewards.lanes import Lane, Request, check_sendable, here, lanes_of
from burnish.rewards.mixing import SUM, component_names, mix
from burnish.types.execution import DROPS, REPEATED, Ran
from burnish.types.prompt import Prompt

if TYPE_CHECKING:
    from burnish.types.rollout import Scores

log = logging.getLogger(__name__)


POLL = 0.5  # seconds between checks of what is waited for
WARNINGS = 10  # different reasons of one reward that are logged; a thousand would hide the first


class PendingScores(Protocol):
    """Samples that are judged by a worker of the reward pool; see ``burnish.runtime.calls.Call``."""

    def wait(self, seconds: float) -> bool: ...

    def result(self) -> Any: ...


class AnyScorer(Protocol):
    """Who scores samples: a ``Scorer`` here, or the reward pool's workers."""

    rewards: dict[str, AnyReward]

    @property
    def overlaps(self) -> bool:
        """Whether others score, so that this process can go on."""
        ...

    def start(self) -> None: ...

    def submit(
        self, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given = NOTHING
    ) -> PendingScores | Future[Scores]: ...

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given = NOTHING) -> Scores: ...

    def silent(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class Pending:
    """A batch whose verdicts come in request by request, in any order."""

    scorer: Scorer
    samples: list[Any]
    prompts: list[Prompt]
    given: Given
    verdicts: dict[str, list[Verdict | None]] = field(default_factory=dict)
    ran: list[dict[str, Ran]] = field(default_factory=list)
    copies: dict[str, dict[int, int]] = field(default_factory=dict)  # by reward: the row that each equal one repeats
    open: int = 0  # requests that are not answered yet
    scores: Future[Scores] = field(default_factory=Future)

    def answer(self, request: Request, verdicts: list[Verdict], outcomes: list[int]) -> None:
        """Take the verdicts of one request."""
        self.scorer.take(self, request, verdicts, outcomes)

    def abandon(self, error: BaseException | None) -> None:
        """There will be no verdicts, because of an error or because the scorer is closed."""
        if error is None:
            self.scores.cancel()
            return
        with suppress(InvalidStateError):  # another thread was faster
            self.scores.set_exception(error)

    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.scores.done()


class Scorer:
    """Judges batches of samples by all rewards. Results depend on samples and prompts alone.

    Rewards without weights share processes, which share the samples of a batch; those with weights have one per device.
    A process that dies is replaced and asked once more; one that misses the deadline is replaced. What then has no
    answer is missing, with a note that says why. Without processes there is no deadline: nothing can stop what runs in
    the run's own process.
    """

    def __init__(
        self,
        rewards: Mapping[str, AnyReward],
        options: ScoringOptions,
        mixing: MixingOptions = SUM,
        *,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Args: ``around`` is entered for every reward that judges in the run's own process, and may end it."""
        self._around = around
        component_names(rewards)  # refuses two of one name, before anything is sampled
        self.rewards, self.options, self.mixing = dict(rewards), options, mixing
        self._lanes: dict[str, Lane] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._silent = False
        self._waiting: set[Pending] = set()
        self._failing: RewardsFailing | None = None
        self._breakers = {label: Breaker(label, options) for label in rewards}
        self._warned: dict[str, set[str]] = {label: set() for label in rewards}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def overlaps(self) -> bool:
        return self.options.processes > 0

    def start(self) -> None:
        """Start the processes, which load their rewards meanwhile; the first ``submit`` does it too.

        Raises:
            UserError: a reward can't be sent to another process.
        """
        if self._lanes or not self.options.processes or not self.rewards:
            return
        check_sendable(self.rewards)
        self._lanes = lanes_of(self.rewards, self.options)

    def submit(self, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given = NOTHING) -> Future[Scores]:
        """Start judging samples: pictures, uint8 [H, W, 3] each, or responses. The future always gets a result.

        Where a reward compares samples of a prompt, all of these have to be among them. The result is an exception, if
        a reward fails more often than the run allows.
        """
        assert len(samples) == len(prompts), f"{len(samples)} samples, {len(prompts)} prompts"
        assert not self._closed, "the scorer is closed"
        assert self.rewards, "nothing to score by"
        self.start()
        pending = Pending(self, list(samples), list(prompts), given, ran=[{} for _ in samples])
        if self._failing is not None:
            pending.scores.set_exception(self._failing)
            return pending.scores
        requests = [one for label in self.rewards for one in self._requests(label, pending)]
        pending.open = len(requests)
        with self._lock:
            self._waiting.add(pending)
        pending.scores.add_done_callback(lambda _: self._waiting.discard(pending))
        for request in requests:
            if self.options.processes:
                self._lanes[request.label].put(request)
            else:
                with self._around():
                    found = here(self.rewards[request.label], request)
                pending.answer(request, *found)
        return pending.scores

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given = NOTHING) -> Scores:
        """Judge samples and wait for the result."""
        return self.submit(samples, prompts, given).result()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Whoever asks says what is missing meanwhile: no warnings, and no end of the run."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def close(self) -> None:
        """End the processes at once; what is not answered yet is cancelled."""
        self._closed = True
        lanes = set(self._lanes.values())
        for lane in lanes:
            lane.kill()
        for lane in lanes:
            lane.join()

    def _requests(self, label: str, pending: Pending) -> list[Request]:
        """Those about the samples of a batch, each distinct one once; there is one at least."""
        reward, rows = self.rewards[label], list(range(len(pending.samples)))
        pending.verdicts[label] = [None] * len(rows)
        pending.copies[label] = _repeated(pending) if reward.deterministic and not reward.asks() else {}
        rows = [row for row in rows if row not in pending.copies[label]]
        parts = 1
        if not reward.has_weights and reward.compares() == "samples":
            parts = max(1, min(self.options.processes, len(rows)))
        bounds = [len(rows) * part // parts for part in range(parts + 1)]
        return [
            Request(
                label, [pending.samples[row] for row in some], [pending.prompts[row] for row in some],
                pending.given.select(some), some, pending,
            )
            for some in (rows[bounds[part] : bounds[part + 1]] for part in range(parts))
        ]  # fmt: skip

    def take(self, pending: Pending, request: Request, verdicts: list[Verdict], outcomes: list[int]) -> None:
        """Take the verdicts of one request; with the last one the scores of a batch are there."""
        label, reward = request.label, self.rewards[request.label]
        seconds = time.monotonic() - request.submitted
        with self._lock:
            own = {row: (v, o) for row, v, o in zip(request.rows, verdicts, outcomes, strict=True)}
            for row, first in pending.copies[label].items():
                if first in own:
                    own[row] = (own[first][0], own[first][1] | REPEATED)
            for row, (verdict, outcome) in own.items():
                drops = reward.on_failure == "drop_group" and verdict.asked and verdict.value is None
                pending.verdicts[label][row] = verdict
                if verdict.asked:
                    pending.ran[row][label] = (seconds, outcome | (DROPS if drops else 0))
            self._warn(label, verdicts, request.prompts)
            error = None if self._silent else self._problem(label, request, verdicts)
            pending.open -= 1
            complete = not pending.open
        if error is not None:
            self._stop(pending, error)
        if complete and not pending.scores.done():
            with suppress(InvalidStateError):
                pending.scores.set_result(self._mixed(pending))

    def _mixed(self, pending: Pending) -> Scores:
        verdicts = {label: [v for v in some if v is not None] for label, some in pending.verdicts.items()}
        scores = mix(self.rewards, verdicts, pending.prompts, self.mixing, pending.given.update)
        scores.ran = pending.ran
        pending.samples, pending.given = [], NOTHING  # who holds the future may wait for others
        return scores

    def _problem(self, label: str, request: Request, verdicts: Sequence[Verdict]) -> RewardsFailing | None:
        """Why the run must end: a missing value where none may be, or too many failures."""
        if self.rewards[label].on_failure == "raise":
            for verdict, prompt in zip(verdicts, request.prompts, strict=True):
                if verdict.asked and verdict.value is None:
                    return RewardsFailing(
                        f"reward {label} has no value for {prompt.name}, and its on_failure is raise: "
                        f"{' '.join(verdict.note.split())}; put the reward right and run the same command again"
                    )
        return self._breakers[label].observe(verdicts)

    def _stop(self, pending: Pending, error: RewardsFailing) -> None:
        """Give the error to all who wait, now and later."""
        with self._lock:
            self._failing = self._failing or error
            waiting = {pending, *self._waiting}
        for one in waiting:
            one.abandon(self._failing)

    def _warn(self, label: str, verdicts: Sequence[Verdict], prompts: Sequence[Prompt]) -> None:
        """Log each reason for missing rewards once, with the first prompt that it met."""
        if self._silent:
            return
        warned = self._warned[label]
        for verdict, prompt in zip(verdicts, prompts, strict=True):
            if not verdict.asked or verdict.value is not None or verdict.note in warned or len(warned) >= WARNINGS:
                continue
            warned.add(verdict.note)
            log.warning("reward %s is missing: %s; first for %s", label, verdict.note, prompt.name)
            if len(warned) == WARNINGS:
                log.warning("further reasons why reward %s is missing are not logged", label)


def awaited(scores: PendingScores | Future[Scores], check_cancelled: Callable[[], None]) -> Scores:
    """Wait for what ``submit`` gave; ``check_cancelled`` is called before and meanwhile, and may end it by an error."""
    check_cancelled()
    while not (wait([scores], timeout=POLL).done if isinstance(scores, Future) else scores.wait(POLL)):
        check_cancelled()
    return scores.result()


def _repeated(pending: Pending) -> dict[int, int]:
    """Rows whose sample and prompt an earlier row has as well, and that row."""
    first: dict[Any, int] = {}
    found: dict[int, int] = {}
    for row, (sample, prompt) in enumerate(zip(pending.samples, pending.prompts, strict=True)):
        if (content := _content(sample)) is None:
            continue
        earlier = first.setdefault((prompt.uid, content), row)
        if earlier != row:
            found[row] = earlier
    return found


def _content(sample: Any) -> Any:
    """Equal for equal samples; None where that is not looked at."""
    import numpy as np

    from burnish.rewards.text.base import Response

    if isinstance(sample, Response):
        return (sample.text, sample.finished) if sample.dialogue is None else None
    if isinstance(sample, np.ndarray):
        return sample.shape, sample.dtype.str, blake2b(np.ascontiguousarray(sample).data, digest_size=16).digest()
    return None


class Collector:
    """Takes samples in any order and in any portions, and gives the scores of all of them in the order of the rows.

    A portion is submitted at once, unless a reward compares the samples of a prompt, or reads several at once with its
    weights: then those of a prompt wait for each other. All wait for the end where a reward's weights take turns on a
    GPU with those that sample, or where it is scored in this process, which is busy.
    """

    def __init__(
        self,
        scorer: AnyScorer,
        prompts: Sequence[Prompt],
        group: Sequence[int],
        *,
        update: int,
        one_by_one: bool,
        tell: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        """Begin a batch.

        Args:
            scorer: who scores.
            prompts: of every row.
            group: of every row, equal for the samples of a prompt.
            update: the policy update that the samples are for; 0 is validation.
            one_by_one: samples come in ones and twos, too few for a model to read.
            tell: is told how many of how many samples are there.
        """
        self._tell = tell
        self._scorer, self._prompts, self._group, self._update = scorer, list(prompts), list(group), update
        self._samples: dict[int, Any] = {}  # that are not submitted yet: all of them would fill the memory
        self._there: set[int] = set()
        self._inputs: dict[str, dict[int, Any]] = {}
        self._pending: list[tuple[list[int], PendingScores | Future[Scores]]] = []
        rewards = list(scorer.rewards.values())
        self._at_the_end = any(reward.puts_away for reward in rewards) or (one_by_one and not scorer.overlaps)
        self._by_group = any(
            reward.compares() != "samples" or (one_by_one and reward.has_weights) for reward in rewards
        )
        self._left: dict[int, int] = {}  # samples of each group that are not there yet
        for number in self._group:
            self._left[number] = self._left.get(number, 0) + 1

    def add(
        self, rows: Sequence[int], samples: Sequence[Any], inputs: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        """Take finished samples, each once; of one that is there already, the first counts.

        Args:
            rows: where they belong.
            samples: pictures, clips, sounds or responses.
            inputs: what else rewards may ask for, by name; the same names each time.
        """
        new = [i for i, row in enumerate(rows) if row not in self._there]
        for i in new:
            self._there.add(rows[i])
            self._samples[rows[i]] = samples[i]
            self._left[self._group[rows[i]]] -= 1
            for name, values in (inputs or {}).items():
                self._inputs.setdefault(name, {})[rows[i]] = values[i]
        self._tell(len(self._there), len(self._group))
        if self._at_the_end:
            return
        if not self._by_group:
            self._submit([rows[i] for i in new])
            return
        touched = {self._group[rows[i]] for i in new}
        full = {number for number in touched if not self._left[number]}
        self._submit([row for row, number in enumerate(self._group) if number in full])

    def scores(self, check_cancelled: Callable[[], None]) -> Scores:
        """The scores of all rows, in order; ``check_cancelled`` is called while they are waited for, and may end that.

        Raises:
            RewardsFailing: a reward failed more often than the run allows.
        """
        from burnish.types.rollout import Scores

        assert len(self._there) == len(self._prompts), "samples are missing"
        self._submit(sorted(self._samples))
        if not self._pending:  # nothing was sampled
            return awaited(self._scorer.submit([], []), check_cancelled)
        found = Scores.cat([awaited(pending, check_cancelled) for _, pending in self._pending])
        order = [row for rows, _ in self._pending for row in rows]
        if order == sorted(order):
            return found
        place = {row: i for i, row in enumerate(order)}
        return found.select([place[row] for row in range(len(order))])

    def _submit(self, rows: Sequence[int]) -> None:
        if not rows:
            return
        inputs = {name: [values.pop(row) for row in rows] for name, values in self._inputs.items()}
        given = Given(inputs=inputs, group=[self._group[row] for row in rows], update=self._update)
        samples, prompts = [self._samples.pop(row) for row in rows], [self._prompts[row] for row in rows]
        self._pending.append((list(rows), self._scorer.submit(samples, prompts, given)))
