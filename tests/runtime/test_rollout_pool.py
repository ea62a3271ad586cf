"""What the driver knows of its rollout workers, without any: two that find one death, and trainers that start again."""

import time
from collections import Counter

import pytest

from burnish.options.cluster import RayOptions
from burnish.runtime.faults import Unschedulable, WorkerDied, WorkerTimeout
from burnish.runtime.prompt_numbers import PromptNumbers
from burnish.runtime.rollout_pool import RolloutPool
from tests.support.toy_source import prompt_schedule


class Workers:
    """Those of a pool, as far as they are asked."""

    name = "rollout"

    def __init__(self, size):
        self.size, self.asked, self.restarted = size, [], []
        self.refusal = None

    def __len__(self):
        return self.size

    def submit_one(self, rank, method, *arguments, **more):
        self.asked.append((rank, method, arguments[0].version))

    def restart(self, rank):
        self.restarted.append(rank)
        if self.refusal is not None:
            raise self.refusal

    def dead(self):
        return []


class WeightSync:
    """Tells what was sent; ``trouble`` is met by the next publication."""

    def __init__(self):
        self.sent, self.trouble = [], None

    def send(self, version, *, full):
        self.sent.append((version, full))
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            trouble()
        return {"transfer": 1.0}

    def send_to(self, rank, version):
        self.sent.append((version, rank))

    def switch(self, rank, version):
        return None


def make(size=2):
    workers, syncs = Workers(size), WeightSync()
    options = RayOptions(call_timeout=5.0)
    samplers = RolloutPool(
        workers, syncs, options, needed=lambda version: True, add_phases=lambda seconds, lanes: None,
        stop=lambda: False, numbers=PromptNumbers(list),
    )  # fmt: skip
    return samplers, workers, syncs


def ask(version):
    return prompt_schedule().request(version + 1, version, Counter())


def dies(samplers, rank=0):
    def trouble():
        raise WorkerDied("rollout", rank, "killed")

    return trouble


def test_the_first_sync_brings_everything_and_later_ones_what_is_trained():
    samplers, workers, syncs = make()
    for version in range(3):
        samplers.publish(version)
        samplers.submit(ask(version))
    assert syncs.sent == [(0, True), (1, False), (2, False)]
    assert workers.asked == [(rank, "generate", version) for version in range(3) for rank in range(2)]


def test_a_worker_that_dies_in_a_sync_is_replaced_once_and_everybody_gets_everything():
    samplers, workers, syncs = make()
    samplers.publish(0)
    samplers.submit(ask(0))
    syncs.trouble = dies(samplers, rank=1)
    samplers.publish(1)
    assert workers.restarted == [1]
    # the fresh one gets what its unfinished order needs, and then all of what is new
    assert syncs.sent == [(0, True), (1, False), (0, 1), (1, True)]
    assert workers.asked[-1] == (1, "generate", 0)


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed by both", "noticed by the other alone"])
def test_a_worker_that_another_thread_has_replaced_meanwhile(noticed):
    samplers, workers, syncs = make()
    samplers.publish(0)
    samplers.submit(ask(0))

    def trouble():
        samplers._replace(1, WorkerDied("rollout", 1, "killed"))  # as whoever waits for its order does
        if noticed:
            raise WorkerDied("rollout", 1, "killed")

    syncs.trouble = trouble
    samplers.publish(1)
    assert workers.restarted == [1]
    assert syncs.sent[-1] == (1, True)
    samplers.submit(ask(1))
    assert syncs.sent[-1] == (1, True), "its second buffer is filled"


class Call:
    """An answer, or an error."""

    def __init__(self, answer):
        self.answer, self.kept = answer, {0: "kept", 1: "kept"}

    def wait(self, seconds):
        return True

    def result(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("late", [False, True], ids=["in time", "at the end of the time"])
def test_a_worker_that_hangs_is_replaced_as_if_it_had_died(late, monkeypatch):
    samplers, workers, _ = make()
    answers = [Call(WorkerTimeout("timed out after 5 s", pool="rollout")), Call("second")]
    monkeypatch.setattr(workers, "submit_one", lambda rank, *_, **__: answers.pop(0) if rank == 0 else Call("first"))
    samplers.publish(0)
    order = samplers.submit(ask(0)).orders[0]
    assert samplers.finished(order, time.monotonic() - 1.0 * late) == ("second", "kept")
    assert workers.restarted == [0]


def test_a_worker_that_was_too_slow_to_start_is_not_tried_again(monkeypatch):
    samplers, workers, _ = make()
    monkeypatch.setattr(workers, "submit_one", lambda *_, **__: Call(WorkerTimeout("timed out (ray.start_timeout)")))
    samplers.publish(0)
    order = samplers.submit(ask(0)).orders[0]
    with pytest.raises(WorkerTimeout):
        samplers.finished(order, time.monotonic())
    assert not workers.restarted


def test_a_death_among_the_trainers_is_none_of_the_samplers():
    samplers, workers, syncs = make()

    def trouble():
        raise WorkerDied("train", 0, "killed")

    syncs.trouble = trouble
    with pytest.raises(WorkerDied, match="pool train"):
        samplers.publish(0)
    assert not workers.restarted


def test_after_a_reset_only_what_is_published_again_may_be_asked_for():
    samplers, _, syncs = make()
    for version in range(4):
        samplers.publish(version)
        samplers.submit(ask(version))
    samplers.reset()
    with pytest.raises(RuntimeError, match="weights v3 are no longer published"):
        samplers.submit(ask(3))
    samplers.publish(2)
    for version in (1, 3):
        with pytest.raises(RuntimeError, match="no longer published"):
            samplers.submit(ask(version))
    samplers.submit(ask(2))
    assert syncs.sent[-1] == (2, False), "they still have what is not trained"


@pytest.mark.parametrize("error", [Unschedulable("nowhere"), WorkerTimeout("too slow")])
def test_who_can_not_be_replaced_is_not_tried_again(error):
    samplers, workers, syncs = make()
    samplers.publish(0)
    samplers.submit(ask(0))
    workers.refusal, syncs.trouble = error, dies(samplers)
    for attempt in (samplers.publish, lambda version: samplers.submit(ask(0))):
        with pytest.raises(type(error)):
            attempt(1)
    assert workers.restarted == [0]
