"""Scores batches by all rewards of a run, also while other samples are still generated."""

from __future__ import annotations

import logging
import math
import pickle
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from burnish.options import ScoringOptions
from burnish.rewards.base import NOTHING, AnyReward, Compared, RewardInputs, Score, fields_required
from burnish.rewards.calls import NOT_APPLICABLE, Tasks, Worker, call_reward, with_retries
from burnish.rewards.mixing import SUM, MixingOptions, component_names, mix
from burnish.types.prompt import Prompt, Prompts
from burnish.types.samples import DROPS, REPEATED, Ran, writable
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.rollout import Scores

log = logging.getLogger(__name__)

FAILURES = 1000  # samples in a row that a reward may fail for before the run saves a checkpoint and ends
POLL = 0.5  # seconds between checks of what is waited for


class RewardsFailing(UserError):
    """A reward failed more often than the run allows; what was learned is saved before the run ends."""


Pending: TypeAlias = "Future[Scores] | Any"  # or what a worker of the reward pool scores; see ``burnish.runtime.calls``


@dataclass(eq=False)
class Batch:
    """Samples whose scores come in by reward and part, in any order."""

    samples: list[Any]
    prompts: list[Prompt]
    inputs: RewardInputs
    scores: dict[str, list[Score]]
    ran: list[dict[str, Ran]]
    submitted: float = field(default_factory=time.monotonic)
    open: int = 0  # of parts and rewards, how many are not answered yet
    result: Future[Scores] = field(default_factory=Future)


class Breaker:
    """Counts the failures of one reward, too many of which end the run. A value that it leaves out itself is none."""

    def __init__(self, label: str, reward: AnyReward, most: float) -> None:
        self.label, self.reward, self.most = label, reward, most
        self._failures = 0  # samples in a row
        self._warned: set[str] = set()

    def observe(self, scores: Sequence[Score], prompts: Sequence[Prompt]) -> RewardsFailing | None:
        """Take the scores of one request, and log new reasons for missing ones; the error that ends the run."""
        for score, prompt in zip(scores, prompts, strict=True):
            if not score.applicable:
                continue
            self._failures = self._failures + 1 if score.fault else 0
            if score.value is not None:
                continue
            if score.note not in self._warned and len(self._warned) < 10:  # a thousand would hide the first
                self._warned.add(score.note)
                log.warning("reward %s is missing: %s; first for %s", self.label, score.note, prompt.name)
            if self.reward.on_failure == "raise":
                problem = f"has no value for {prompt.name}, and its on_failure is raise"
            elif self._failures >= self.most:
                problem = f"failed for {self._failures} samples in a row, the last time"
            else:
                continue
            return RewardsFailing(
                f"reward {self.label} {problem}: {' '.join(score.note.split())}; put the reward right and run the "
                "same command again: it resumes from the last checkpoint"
            )
        return None


class Scorer:
    """Scores batches of samples by all rewards. Results depend on samples and prompts alone.

    Rewards without weights share processes, which share the samples of a batch; those with weights have one per device,
    in which rewards whose weights leave a GPU while nothing is scored take turns. What has no value is missing, with a
    note that says why (see ``with_retries``). Without processes there is no deadline: nothing can stop what runs in the
    run's own process.
    """

    def __init__(
        self,
        rewards: Mapping[str, AnyReward],
        options: ScoringOptions,
        mixing: MixingOptions = SUM,
        *,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        goes_on: bool = False,
    ) -> None:
        """Args:
        around: is entered for every reward that scores in the run's own process, and may end it.
        goes_on: whatever fails, as a service does.
        """
        self._around = around
        component_names(rewards)  # refuses two of one name, before anything is sampled
        self.rewards, self.options, self.mixing = dict(rewards), options, mixing
        self._tasks: dict[str, Tasks] = {}  # of worker processes, by where their rewards are
        self._workers: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = False
        self._failing: RewardsFailing | None = None
        most = math.inf if goes_on else FAILURES
        self._breakers = {label: Breaker(label, reward, most) for label, reward in rewards.items()}

    @property
    def overlaps(self) -> bool:
        """Whether others score, so that this process can go on."""
        return self.options.processes > 0

    def start(self) -> None:
        """Start the processes, which load their rewards meanwhile; the first ``submit`` does it too.

        Raises:
            UserError: a reward can't be sent to another process.
        """
        if self._workers or not self.options.processes:
            return
        for label, reward in self.rewards.items():
            try:
                if type(reward).__module__ == "__main__":
                    raise TypeError("it is defined in `__main__`")
                pickle.dumps(reward)
            except Exception as error:
                raise UserError(
                    f"reward {label} can't be sent to a scoring process: {error}; move its class to the top level of "
                    "an importable module, or set scoring.processes=0"
                ) from None
        for place, rewards in _by(_place, self.rewards).items():
            self._tasks[place] = SimpleQueue()
            for _ in range(1 if place else self.options.processes):
                self._workers.append(Worker(self._tasks[place], rewards, self.options.timeout))

    def submit(
        self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING
    ) -> Future[Scores]:
        """Start scoring samples: images, uint8 [H, W, 3] each, or responses. The future always gets a result.

        Where a reward compares samples of a prompt, all of these have to be among them. The result is an exception, if
        a reward fails more often than the run allows.
        """
        assert len(samples) == len(prompts), f"{len(samples)} samples, {len(prompts)} prompts"
        assert not self._closed, "the scorer is closed"
        assert self.rewards, "nothing to score by"
        self.start()
        scores = {label: [NOT_APPLICABLE] * len(samples) for label in self.rewards}
        batch = Batch(list(samples), list(prompts), inputs, scores, [{} for _ in samples])
        kinds = _by(lambda reward: (_place(reward), reward.compares()), self.rewards)
        parts = [(range(*ends), place, rewards) for (place, compared), rewards in kinds.items()
                 for ends in self._bounds(len(samples), place, compared)]  # fmt: skip
        batch.open = sum(len(rewards) for _, _, rewards in parts)
        for rows, place, rewards in parts:
            if self._tasks:
                self._tasks[place].put(partial(self._score, batch, rows, rewards))
            else:
                self._score(batch, rows, rewards)
        return batch.result

    def close(self) -> None:
        """End the processes at once; what is not answered yet is cancelled."""
        self._closed = True
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()

    def _bounds(self, size: int, place: str, compared: Compared) -> Iterable[tuple[int, int]]:
        """Where the parts of a batch begin and end: processes share what is scored by itself."""
        count = 1 if place or compared != "samples" else max(1, min(self.options.processes, size))
        return pairwise(size * part // count for part in range(count + 1))

    def _score(self, batch: Batch, rows: range, rewards: Mapping[str, AnyReward], worker: Worker | None = None) -> None:
        """Have rewards score some rows one after another, in a worker or here."""
        samples, prompts = batch.samples[rows.start : rows.stop], batch.prompts[rows.start : rows.stop]
        inputs = batch.inputs.only(fields_required(rewards)).select(rows)

        def ask(label: str, own: list[int], until: float) -> list[Score] | Score:
            if worker is not None:
                return worker.score(label, packed, own, until)
            with self._around():
                copies = [writable(samples[i]) for i in own]  # a reward may write to its samples
                return call_reward(rewards[label], copies, [prompts[i] for i in own], inputs.select(own))

        try:
            packed = b"" if worker is None else pickle.dumps((samples, Prompts.of(prompts), inputs), 5)
            for label in rewards:
                if self._failing is not None:
                    raise self._failing
                if not batch.result.done():  # somebody waits for it
                    self._score_by(label, batch, rows, ask)
        except CancelledError:
            batch.result.cancel()
        except Exception as error:
            with suppress(InvalidStateError):  # another part of the batch was faster
                batch.result.set_exception(error)

    def _score_by(self, label: str, batch: Batch, rows: range, ask: Callable[..., list[Score] | Score]) -> None:
        """Take a reward's scores on some rows, equal ones of which are scored once; the last make the scores."""
        reward, until = self.rewards[label], time.monotonic() + self.options.timeout
        scored = {row: row for row in rows}  # of each row, the first one with the same sample and prompt
        if reward.deterministic and not reward.required_fields():
            first: dict[Any, int] = {}
            contents = {row: (batch.prompts[row].uid, _content(batch.samples[row])) for row in rows}
            scored = {row: first.setdefault(content, row) for row, content in contents.items()}
        own = list(dict.fromkeys(scored.values()))
        prompts, inputs = [batch.prompts[row] for row in own], batch.inputs.select(own)
        scores, outcomes = with_retries(
            reward, prompts, inputs, lambda asked: ask(label, [own[i] - rows.start for i in asked], until)
        )
        answers = dict(zip(own, zip(scores, outcomes, strict=True), strict=True))
        seconds = time.monotonic() - batch.submitted
        for row, earlier in scored.items():
            score, outcome = answers[earlier]
            batch.scores[label][row] = score
            if score.applicable:
                repeated = REPEATED if row != earlier else 0
                drops = DROPS if reward.on_failure == "drop_group" and score.value is None else 0
                batch.ran[row][label] = (seconds, outcome | repeated | drops)
        with self._lock:
            batch.open -= 1
            if not batch.inputs.made_up:
                self._failing = self._failing or self._breakers[label].observe(scores, prompts)
            if self._failing is not None:
                raise self._failing
            complete = not batch.open
        if complete:
            mixed = mix(self.rewards, batch.scores, batch.prompts, self.mixing, batch.inputs.update)
            mixed.ran = batch.ran
            batch.samples, batch.inputs = [], NOTHING  # who holds the future may wait for others
            with suppress(InvalidStateError):  # it was cancelled
                batch.result.set_result(mixed)


def _place(reward: AnyReward) -> str:
    """Where a reward is scored: by the processes that all without weights share, or by that of a device."""
    return f"weights on {reward.device_name}" if reward.has_weights else ""


def _by(key: Callable[[AnyReward], Any], rewards: Mapping[str, AnyReward]) -> dict[Any, dict[str, AnyReward]]:
    groups: dict[Any, dict[str, AnyReward]] = {}
    for label, reward in rewards.items():
        groups.setdefault(key(reward), {})[label] = reward
    return groups


def _content(sample: Any) -> Any:
    """Equal for equal samples; where content is not looked at, for the same one alone."""
    import numpy as np

    from burnish.rewards.text.base import Response

    if isinstance(sample, Response):
        return (sample.text, sample.finished) if sample.dialogue is None else id(sample)
    if isinstance(sample, np.ndarray):
        return sample.shape, sample.dtype.str, blake2b(np.ascontiguousarray(sample).data, digest_size=16).digest()
    return id(sample)


def awaited(scores: Pending, check_cancelled: Callable[[], None]) -> Scores:
    """Wait for what ``submit`` gave; ``check_cancelled`` is called before and meanwhile, and may end it by an error."""
    check_cancelled()
    while not (wait([scores], timeout=POLL).done if isinstance(scores, Future) else scores.wait(POLL)):
        check_cancelled()
    return scores.result()


class Collector:
    """Takes samples in any order and in any portions, and gives the scores of all of them in the order of the rows.

    A portion is submitted at once, unless a reward compares the samples of a prompt, or reads several at once with its
    weights: then those of a prompt wait for each other. All wait for the end where a reward's weights take turns on a
    GPU with those that sample, or where it is scored in this process, which is busy.
    """

    def __init__(
        self,
        scorer: Scorer,
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
        # samples with what else is known of them, until they are submitted: all of them would fill the memory
        self._samples: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._there: set[int] = set()
        self._pending: list[tuple[list[int], Pending]] = []
        rewards = list(scorer.rewards.values())
        self._at_the_end = any(reward.put_away for reward in rewards) or (one_by_one and not scorer.overlaps)
        self._by_group = any(
            reward.compares() != "samples" or (one_by_one and reward.has_weights) for reward in rewards
        )
        self._left = Counter(self._group)  # samples of each group that are not there yet

    def add(
        self, rows: Sequence[int], samples: Sequence[Any], inputs: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        """Take finished samples, each once; of one that is there already, the first counts.

        Args:
            rows: where they belong.
            samples: images, clips, sounds or responses.
            inputs: what else rewards may ask for, by name; the same names each time.
        """
        for i, row in enumerate(rows):
            if row in self._there:
                continue
            self._there.add(row)
            self._samples[row] = samples[i], {name: values[i] for name, values in (inputs or {}).items()}
            self._left[self._group[row]] -= 1
        self._tell(len(self._there), len(self._group))
        if not self._at_the_end:
            waits = self._left if self._by_group else {}
            self._submit(sorted(row for row in self._samples if not waits.get(self._group[row])))

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
        scores = Scores.cat([awaited(pending, check_cancelled) for _, pending in self._pending])
        order = [row for rows, _ in self._pending for row in rows]
        return scores if order == sorted(order) else scores.select(sorted(range(len(order)), key=order.__getitem__))

    def _submit(self, rows: Sequence[int]) -> None:
        if not rows:
            return
        samples, known = zip(*(self._samples.pop(row) for row in rows), strict=True)
        columns = {name: [inputs[name] for inputs in known] for name in known[0]}
        inputs = RewardInputs(columns=columns, group=[self._group[row] for row in rows], update=self._update)
        pending = self._scorer.submit(samples, [self._prompts[row] for row in rows], inputs)
        self._pending.append((list(rows), pending))


def probe(
    scorer: Scorer, prompts: Sequence[Prompt], sample: Any, *, timeout: float, check_cancelled: Callable[[], None]
) -> None:
    """Have made-up samples of real prompts scored before a run, by those who will score all others.

    Each reward gets the first prompt that it judges, twice: one that returns too few values for a batch shows it.

    Args:
        scorer: who scores.
        prompts: the first ones are asked about.
        sample: an image or a response.
        timeout: seconds of one reward, for the message to those who wait.
        check_cancelled: is called while waiting; what it raises ends the wait.

    Raises:
        UserError: a reward raised, died, took too long, or gave what is no number.
    """
    rewards = scorer.rewards
    first = [next((prompt for prompt in prompts if reward.applies_to(prompt)), None) for reward in rewards.values()]
    asked = [prompt for prompt in {p.uid: p for p in first if p is not None}.values() for _ in range(2)]
    # tokens can be made up as well; what a model makes on its way to a sample can't
    inputs = RewardInputs(columns={"response_ids": [list(range(8))] * len(asked)}, made_up=True)
    log.info("waiting for the first scores of %s (scoring.timeout=%g seconds)", ", ".join(rewards), timeout)
    scores = awaited(scorer.submit([sample] * len(asked), asked, inputs), check_cancelled)
    judged = next(iter(rewards.values())).judged
    for fault, prompt in zip(scores.faults, asked, strict=True):
        if fault:
            raise UserError(
                f"reward {_line(fault)}, for made-up {judged} of {prompt.name}, which are tried before a run begins; "
                "put the reward right, or, if it can judge only what a model has made, start with scoring.probe=false"
            )
    if bool(scores.missing.all()):
        why = _line(scores.notes[0])
        log.warning("no reward has a value for made-up %s: %s; training needs values, so look why", judged, why)


def _line(note: str) -> str:
    """The first line of a note, not too long for a message."""
    return textwrap.shorten(note.partition("\n")[0], 500, placeholder="...")
