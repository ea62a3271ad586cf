"""A curriculum of the user where sampling waits for learning, and where it runs ahead."""

import pytest
import torch

from burnish.rollout.sources import OnlineSource
from tests.support.toy_source import Here, RemoteBatch, facts, pipelined, prompt_schedule, train

CODE = '''
import random


def worst_first(records, history, update, count, seed):
    """Those that went worst, by all of their rewards; ties and what is new by chance."""
    draw = random.Random(seed)
    return sorted(range(len(records)), key=lambda row: (sum(history[row]), draw.random()))[:count]
'''
ROUNDS = [None, 3]


@pytest.fixture
def sampler(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return f"{tmp_path / 'mine.py'}:worst_first"


def texts(batches):
    return [[prompt.text for prompt in batch.prompts] for batch in batches]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("cut", range(1, 8))
def test_a_synchronous_run_resumes_as_if_nothing_had_happened(sampler, rounds, cut):
    whole, weights, states = train(
        OnlineSource(prompt_schedule(filtering=rounds, sampler=sampler), Here()), 1, 8, save_at=[cut]
    )
    state, then = states[cut]
    resumed = OnlineSource(prompt_schedule(filtering=rounds, sampler=sampler), Here())
    resumed.load_state_dict(state)
    assert resumed.state_dict()["history"]["reward"].tolist() == state["history"]["reward"].tolist()
    rest, end, _ = train(resumed, cut + 1, 8, then)
    assert [facts(batch) for batch in rest] == [facts(batch) for batch in whole[cut:]]
    assert torch.equal(end, weights)
    assert len({text for batch in texts(whole) for text in batch}) > 4


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_run_ahead_resumes_and_its_speed_changes_nothing(sampler, rounds, depth):
    slow = RemoteBatch(delay=0.01, seed=1)
    source = pipelined(depth, filtering=rounds, sampler=sampler, rollout_worker=slow)
    whole, weights, states = train(source, 1, 8, save_at=[2, 5])
    fast, _, _ = train(pipelined(depth, filtering=rounds, sampler=sampler, rollout_worker=RemoteBatch(delay=0)), 1, 8)
    assert [facts(batch) for batch in fast] == [facts(batch) for batch in whole]
    for cut, (state, then) in states.items():
        resumed = pipelined(depth, filtering=rounds, sampler=sampler)
        resumed.load_state_dict(state)
        rest, end, _ = train(resumed, cut + 1, 8, then)
        assert texts(rest) == texts(whole[cut:])
        assert torch.equal(end, weights)


def test_without_depth_a_run_ahead_draws_as_a_synchronous_one(sampler):
    ahead, _, _ = train(pipelined(0, sampler=sampler), 1, 8)
    plain, _, _ = train(OnlineSource(prompt_schedule(sampler=sampler), Here()), 1, 8)
    assert texts(ahead) == texts(plain)
