"""What must hold of sampling that runs ahead: ages, order, and what a resumed run begins with."""

import threading
import time
from collections import Counter

import pytest
import torch

from burnish.rollout.sources import OnlineSource
from burnish.utils.errors import UserError
from tests.support.toy_source import (
    START,
    Here,
    RemoteBatch,
    facts,
    pipelined,
    prompt_schedule,
    publish,
    sampled,
    train,
)

BOUNDS = [None, 0, 1, 2]
ROUNDS = [None, 3]


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("bound", BOUNDS)
def test_no_sample_is_older_than_the_bound_and_none_is_made_for_nothing(depth, bound):
    source = pipelined(depth, bound)
    lag = depth if bound is None else min(depth, bound)
    batches, _, _ = train(source, 1, 8)
    assert [batch.version for batch in batches] == [max(0, update - 1 - lag) for update in range(1, 9)]
    for update, batch in enumerate(batches, 1):
        assert batch.update == update
        assert batch.metrics["pipeline/staleness/max"] == update - 1 - batch.version <= lag
        assert batch.metrics["pipeline/dropped_batches"] == 0
        # the samples are by the weights that they name
        assert facts(batch, pipeline=False)[5] == facts(sampled_again(source, batch), pipeline=False)[5]
    assert [asked.update for asked in source.rollout_worker.asked] == list(range(1, 9))


def sampled_again(source, batch):
    return sampled(source.rollout_worker.asked[batch.update - 1], source.rollout_worker.versions[batch.version])


@pytest.mark.parametrize("depth", range(4))
def test_so_many_batches_are_ahead_and_no_more(depth):
    source = pipelined(depth)
    publish(source, 0, START)
    for update in range(1, 9):
        source.collect(update)
        assert len(source.rollout_worker.asked) == min(update + depth, 8)
        publish(source, update, START)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_without_depth_it_is_the_synchronous_source(rounds):
    ahead = pipelined(0, filtering=rounds)
    plain = OnlineSource(prompt_schedule(filtering=rounds), Here())
    (first, mine, states), (second, theirs, others) = (train(one, 1, 8, save_at=[4]) for one in (ahead, plain))
    assert [facts(batch, pipeline=False) for batch in first] == [facts(batch) for batch in second]
    assert torch.equal(mine, theirs)
    assert states[4][0] == others[4][0]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("depth", "bound"), [(1, None), (3, None), (3, 1)])
def test_how_long_anything_takes_changes_nothing(depth, bound, rounds):
    slow, fast = (
        train(pipelined(depth, bound, rollout_worker=RemoteBatch(delay=delay, seed=seed), filtering=rounds), 1, 8)
        for delay, seed in ((0.02, 1), (0.0, 2))
    )
    assert [facts(batch) for batch in slow[0]] == [facts(batch) for batch in fast[0]]
    assert torch.equal(slow[1], fast[1])


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("depth", "bound"), [(0, None), (1, None), (2, None), (3, None), (3, 1), (2, 5)])
def test_a_resumed_run_goes_on_bit_by_bit(depth, bound, rounds):
    batches, weights, states = train(pipelined(depth, bound, filtering=rounds), 1, 8, save_at=range(1, 8))
    for update, (state, so_far) in states.items():
        resumed = pipelined(depth, bound, rollout_worker=RemoteBatch(seed=update), filtering=rounds)
        resumed.load_state_dict(state)
        rest, arrived, later = train(resumed, update + 1, 8, so_far, save_at=[7])
        assert [facts(batch) for batch in rest] == [facts(batch) for batch in batches[update:]]
        assert torch.equal(arrived, weights)
        # weights of before are gone: nothing is asked of them
        assert all(asked.version >= update for asked in resumed.rollout_worker.asked)
        if update < 7:
            assert later[7][0]["position"] == states[7][0]["position"]


def test_a_checkpoint_holds_what_could_not_be_sampled_again_and_no_more():
    _, _, states = train(pipelined(2, steps=20), 1, 5, save_at=[1, 5])
    assert [batch.update for batch in states[5][0]["ahead"]] == [6, 7]
    assert [batch.version for batch in states[5][0]["ahead"]] == [3, 4]
    assert [batch.update for batch in states[1][0]["ahead"]] == [2, 3]
    assert states[5][0]["position"] == 2 * 7


def test_a_checkpoint_waits_for_what_is_in_the_making():
    rollout_worker = RemoteBatch(delay=0.05, seed=3)
    source = pipelined(3, rollout_worker=rollout_worker)
    publish(source, 0, START)
    source.collect(1)
    publish(source, 1, START)
    assert len(source.state_dict()["ahead"]) == 3


def test_a_source_that_goes_back_to_a_checkpoint_forgets_what_it_was_doing():
    source = pipelined(2, filtering=3)
    batches, _, states = train(source, 1, 6, save_at=[3])
    state, weights = states[3]
    source.load_state_dict(state)
    source.rollout_worker = RemoteBatch()
    again, _, _ = train(source, 4, 6, weights)
    assert [facts(batch) for batch in again] == [facts(batch) for batch in batches[3:]]


def test_a_run_that_is_made_longer_never_waits_for_weights_that_are_gone():
    _, weights, states = train(pipelined(3, steps=4), 1, 4, save_at=[4])
    longer = pipelined(3, steps=7)
    longer.load_state_dict(states[4][0])
    batches, _, _ = train(longer, 5, 7, weights)
    assert [batch.version for batch in batches] == [4, 4, 4]


@pytest.mark.parametrize("drop", [True, False])
def test_batches_of_a_checkpoint_that_are_too_old_are_dropped_if_asked_and_counted(drop):
    _, weights, states = train(pipelined(3, steps=9), 1, 5, save_at=[5])
    resumed = pipelined(3, 1, steps=9, drop=drop)
    resumed.load_state_dict(states[5][0])
    batches, _, _ = train(resumed, 6, 9, weights)
    staleness = [batch.metrics["pipeline/staleness/max"] for batch in batches]
    assert staleness == ([0, 1, 1, 1] if drop else [3, 3, 3, 1])
    assert [batch.metrics["pipeline/dropped_batches"] for batch in batches] == ([3, 0, 0, 0] if drop else [0] * 4)


def test_batches_ahead_are_not_lost_on_a_source_that_samples_in_turn():
    _, _, states = train(pipelined(1), 1, 3, save_at=[3])
    with pytest.raises(UserError, match="1 batches that were sampled ahead"):
        OnlineSource(prompt_schedule(), Here()).load_state_dict(states[3][0])


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_lost_sample_ends_the_wait_with_its_name(rounds):
    source = pipelined(1, rollout_worker=RemoteBatch(lost="three"), timeout=0.2, filtering=rounds)
    with pytest.raises(UserError, match=r"update \d, by weights v\d.*sample three did not come back"):
        train(source, 1, 8)


def test_weights_that_are_never_published_end_the_wait_with_their_version():
    source = pipelined(1, timeout=0.2)
    publish(source, 0, START)
    source.collect(1)
    source.collect(2)
    with pytest.raises(UserError, match=r"waiting for weights v1 to reach the rollout workers \(update 3\)"):
        source.collect(3)


def test_weights_may_be_published_while_the_loop_waits_for_them():
    source = pipelined(0)
    thread = threading.Timer(0.05, publish, (source, 0, START))
    thread.start()
    batch = source.collect(1)
    thread.join()
    assert batch.metrics["timing_s/wait/publication"] > 0.02


def test_what_fails_elsewhere_is_raised_here():
    class Failing(RemoteBatch):
        def submit(self, asked):
            promise = super().submit(asked)
            promise.result(10)
            promise.future = type(promise.future)()
            promise.future.set_exception(RuntimeError("out of memory"))
            return promise

    for rounds in ROUNDS:
        source = pipelined(1, rollout_worker=Failing(), filtering=rounds)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(source, 1, 2)


class Steady(RemoteBatch):
    """Takes the same time for every batch."""

    def submit(self, asked):
        self.chance.uniform = lambda low, high: high
        return super().submit(asked)


@pytest.mark.parametrize(("depth", "bound", "cause"), [(1, 0, "admission"), (0, None, "rollout")])
def test_waiting_is_told_by_its_cause(depth, bound, cause):
    batches, _, _ = train(pipelined(depth, bound, rollout_worker=Steady(delay=0.05)), 1, 4)
    waits = {name: batches[3].metrics[f"timing_s/wait/{name}"] for name in ("rollout", "publication", "admission")}
    assert max(waits, key=waits.get) == cause
    assert waits[cause] > 0.02
    assert (waits["admission"] == 0) == (cause == "rollout")
    assert 0 < batches[3].metrics["pipeline/idle_share/trainer"] <= 1
    assert 0 <= batches[3].metrics["pipeline/idle_share/rollout"] < 1


def test_where_depth_decides_the_bound_holds_nothing_back():
    batches, _, _ = train(pipelined(2, rollout_worker=Steady(delay=0.01)), 1, 6)
    assert [batch.metrics["timing_s/wait/admission"] for batch in batches] == [0] * 6


def test_whoever_learns_slowly_leaves_the_samplers_idle():
    source = pipelined(1, rollout_worker=Steady(delay=0.001))
    publish(source, 0, START)
    for update in (1, 2, 3):
        batch = source.collect(update)
        publish(source, update, START)
        time.sleep(0.2)
    assert batch.metrics["pipeline/idle_share/rollout"] > 0.9
    assert batch.metrics["pipeline/idle_share/trainer"] < 0.9


def test_a_batch_that_nobody_needs_any_more_asks_for_nothing_more():
    source = pipelined(1, filtering=3, rollout_worker=RemoteBatch(delay=0.0))
    publish(source, 0, START)
    source.collect(1)
    state = source.state_dict()
    filling = source._ahead[0].handle
    source.load_state_dict(state)
    asked = prompt_schedule(filtering=3).request(2, 0, Counter())
    before = len(source.rollout_worker.asked)
    with pytest.raises(RuntimeError, match="update 2 are no longer needed"):
        filling._generate(asked)
    assert len(source.rollout_worker.asked) == before
