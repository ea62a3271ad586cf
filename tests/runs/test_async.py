"""Sampling that runs ahead of learning: ages, order, what a resumed run begins with, and curricula of the user."""

import threading

import pytest
import torch

from tests.support.toy_source import START, RemoteBatch, facts, pipelined, publish, sampled, train

CODE = '''
import random


def worst_first(records, history, update, count, seed):
    """Those that went worst, by all of their rewards; ties and what is new by chance."""
    draw = random.Random(seed)
    return sorted(range(len(records)), key=lambda row: (sum(history[row]), draw.random()))[:count]
'''


@pytest.fixture(params=["plain", "filtered", "curriculum", "partial", "both"])
def how(request, tmp_path):
    """Options of a prompt schedule."""
    (tmp_path / "mine.py").write_text(CODE)
    curriculum = {"filtering": 3, "sampler": f"{tmp_path / 'mine.py'}:worst_first"}
    ways = {"plain": {}, "filtered": {"filtering": 1, "replay": 2}, "curriculum": curriculum}
    return (ways | {"partial": {"partial": 1}, "both": {"partial": 1} | curriculum})[request.param]


@pytest.mark.parametrize(("depth", "bound"), [(0, None), (1, None), (2, 0), (3, None), (3, 1), (3, 2)])
def test_no_sample_is_older_than_the_bound_and_none_is_made_for_nothing(depth, bound):
    source = pipelined(depth, bound)
    lag = depth if bound is None else min(depth, bound)
    batches, _, _ = train(source, 1, 8)
    assert [batch.version for batch in batches] == [max(0, update - 1 - lag) for update in range(1, 9)]
    for update, batch in enumerate(batches, 1):
        assert batch.update == update
        assert batch.metrics["pipeline/staleness/max"] == update - 1 - batch.version <= lag
        # the samples are by the weights that they name
        again = sampled(source.rollout_worker.asked[update - 1], source.rollout_worker.versions[batch.version])
        assert torch.equal(batch.trace.latents, again.trace.latents)
    assert [asked.update for asked in source.rollout_worker.asked] == list(range(1, 9))


@pytest.mark.parametrize(("depth", "bound"), [(0, None), (1, None), (3, None), (3, 1), (2, 5)])
def test_a_resumed_run_goes_on_bit_by_bit_however_long_anything_takes(depth, bound, how):
    slow = pipelined(depth, bound, rollout_worker=RemoteBatch(delay=0.01, seed=1), **how)
    batches, weights, states = train(slow, 1, 8, save_at=range(1, 8))
    fast, same, _ = train(pipelined(depth, bound, rollout_worker=RemoteBatch(delay=0), **how), 1, 8)
    assert [facts(batch) for batch in fast] == [facts(batch) for batch in batches]
    assert torch.equal(same, weights)
    for update, (state, so_far) in states.items():
        resumed = pipelined(depth, bound, rollout_worker=RemoteBatch(seed=update), **how)
        resumed.load_state_dict(state)
        rest, arrived, later = train(resumed, update + 1, 8, so_far, save_at=[7])
        assert [facts(batch) for batch in rest] == [facts(batch) for batch in batches[update:]]
        assert torch.equal(arrived, weights)
        # weights of before are gone: nothing is asked of them
        assert all(asked.version >= update for asked in resumed.rollout_worker.asked)
        if update < 7:
            assert later[7][0]["position"] == states[7][0]["position"]


def test_batches_of_a_checkpoint_are_trained_on_though_a_bound_was_lowered():
    _, weights, states = train(pipelined(3, steps=9), 1, 5, save_at=[5])
    resumed = pipelined(3, 1, steps=9)
    resumed.load_state_dict(states[5][0])
    batches, _, _ = train(resumed, 6, 9, weights)
    assert [batch.metrics["pipeline/staleness/max"] for batch in batches] == [3, 3, 3, 1]


class Failing(RemoteBatch):
    def submit(self, asked):
        promise = super().submit(asked)
        promise.result(10)
        promise.future = type(promise.future)()
        promise.future.set_exception(RuntimeError("out of memory"))
        return promise


@pytest.mark.parametrize("rounds", [None, 3])
def test_what_fails_or_is_lost_ends_the_wait_with_its_name(rounds):
    source = pipelined(1, rollout_worker=RemoteBatch(lost="three"), timeout=0.2, filtering=rounds)
    with pytest.raises(ValueError, match=r"update \d, by weights v\d.*three"):
        train(source, 1, 8)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(pipelined(1, rollout_worker=Failing(), filtering=rounds), 1, 2)


def test_weights_may_be_published_while_the_loop_waits_for_them_but_not_never():
    source = pipelined(0)
    thread = threading.Timer(0.05, publish, (source, 0, START))
    thread.start()
    assert source.rollout(1).metrics["timing_s/wait/publication"] > 0.02
    thread.join()
    source = pipelined(1, timeout=0.2)
    publish(source, 0, START)
    source.rollout(1)
    source.rollout(2)
    with pytest.raises(ValueError, match=r"weights v1 .*update 3"):
        source.rollout(3)
