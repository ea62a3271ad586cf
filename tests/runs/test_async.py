"""Sampling that runs ahead of learning: ages, order, what a resumed run begins with, and curricula of the user."""

import io
import random as chance
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from burnish.data.stream import Stream
from burnish.options.cluster import AsyncRolloutOptions
from burnish.options.data import FilterOptions
from burnish.rollout import saved as in_files
from burnish.rollout.pipelined import PipelinedSource
from burnish.rollout.sources import PromptSchedule, Replay
from burnish.types.completion import PartialResponse
from burnish.types.rollout import Denoising, Prompt, Scored, Scores
from burnish.utils import random
from tests.support.schedules import plain
from tests.support.tiny_run import is_time_column

PROMPTS = [Prompt(text=text) for text in ("one", "two", "three", "four", "five", "six", "seven")]
DULL = ("two", "five")  # prompts whose samples are all worth the same
LONG = "one"  # whose samples go on with the next batch
START = torch.tensor([1.0, -1.0])


def prompt_schedule(*, filtering=None, sampler=None, replay=0):
    stream = Stream(PROMPTS, 2, seed=0, shuffle=True, sampler=sampler)
    return PromptSchedule(
        stream=stream, n=3, filtering=FilterOptions(max_num_gen_batches=filtering) if filtering else None,
        replay=Replay(replay, seed=0) if replay else None,
    )  # fmt: skip


def sampled(asked, weights):
    """Samples that depend on the weights and on their own names alone."""
    keys = [(0, "toy", asked.update, p.uid, s) for p, s in zip(asked.prompts, asked.sample.tolist(), strict=True)]
    latents = random.normal((2,), keys) + weights
    count = len(keys)
    dull = torch.tensor([prompt.text in DULL for prompt in asked.prompts])
    reward = latents.sum(1).masked_fill(dull, 0.5)
    told = plain(count)
    steps = latents[:, None]
    nothing = torch.zeros(count, 1)
    return Scored(
        prompts=asked.prompts, group=asked.group, sample=asked.sample,
        trace=Denoising(
            conditioning=told, latents=latents, state=steps, next_state=steps, time=nothing + 1,
            time_next=nothing, logprob=nothing, node=nothing.long(), schedule=torch.tensor([1.0, 0.0]),
        ),
        scores=Scores(
            reward=reward, missing=torch.zeros(count, dtype=torch.bool), components=reward[:, None], names=("sum",),
            weights=(1.0,), notes=["a note"] * count,
        ),
        update=asked.update, version=asked.version, seed=0, metrics={"critic/diversity": float(latents.std())},
        counts={"critic/diversity": 1.0},
    )  # fmt: skip


def partly(asked, weights):
    """The same, but that long samples are of the weights that began them, too."""
    goes_on = [row for row, prompt in enumerate(asked.prompts) if prompt.text == LONG and asked.partial[row] is None]
    rest, asked = asked.select(goes_on), asked.select([row for row in range(len(asked)) if row not in goes_on])
    begun = PartialResponse(update=asked.update, logprob=weights, version=torch.tensor([asked.version]))
    before = [own or replace(begun, logprob=torch.zeros(2)) for own in asked.partial]
    whole = sampled(asked, weights + torch.stack([own.logprob for own in before]))
    put_aside = [replace(rest, partial=[begun] * len(rest))] if goes_on else []
    return replace(whole, put_aside=put_aside, version=min(int(own.version) for own in before))


class Promise:
    def __init__(self, lost):
        self.future, self.seconds, self.lost = Future(), 0.0, lost

    def result(self, timeout):
        try:
            return self.future.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"sample {self.lost} did not come back") from None


class RemoteBatch:
    """Samples with the weights that a batch asks for, each batch in a thread of its own, after a while."""

    def __init__(self, *, delay=0.004, seed=0, lost=None):
        self.versions, self.asked, self.needed = {}, [], set()
        self.delay, self.chance, self.lost = delay, chance.Random(seed), lost

    def sync_weights(self, version, weights):
        self.versions[version] = weights.clone()

    def submit(self, asked):
        assert asked.version in self.versions, f"version {asked.version} was never published"
        assert all(asked.version >= earlier.version for earlier in self.asked), "an older version after a newer one"
        self.asked.append(asked)
        promise = Promise(self.lost)
        if self.lost is None or self.lost not in [p.text for p in asked.prompts]:
            wait = self.chance.uniform(0, self.delay)
            threading.Thread(target=self._make, args=(asked, promise, wait), daemon=True).start()
        return promise

    def _make(self, asked, promise, wait):
        time.sleep(wait)
        promise.seconds = wait
        promise.future.set_result(self.sample(asked, self.versions[asked.version]))


def pipelined(depth, bound=None, *, steps=8, rollout_worker=None, timeout=60, partial=0, **schedule):
    options = AsyncRolloutOptions(depth=depth, max_staleness=bound, partial=partial or None)
    worker = rollout_worker or RemoteBatch()
    worker.sample = partly if partial else sampled
    return PipelinedSource(prompt_schedule(**schedule), worker, options, steps=steps, timeout=timeout)


def train(source, first, last, weights=START, *, save_at=()):
    """The loop without its networks: the weights move by what is collected. Batches, weights, and states."""
    batches, states = [], {}
    publish(source, first - 1, weights)
    for update in range(first, last + 1):
        batch = source.rollout(update)
        batches.append(batch)
        if len(batch):
            weights = 0.5 * weights + batch.scores.reward.tanh().mean() * batch.trace.latents.mean(0)
        publish(source, update, weights)
        if update in save_at:
            states[update] = (saved(source.state_dict()), weights)
    return batches, weights, states


def publish(source, version, weights):
    source.rollout_worker.sync_weights(version, weights)
    source.rollout_worker.needed |= {version} if source.needs(version) else set()
    source.published(version)


def saved(state):
    """As a checkpoint would give it back."""
    file = io.BytesIO()
    torch.save(in_files.plain(state), file)
    file.seek(0)
    return in_files.made(torch.load(file, weights_only=True))


def facts(batch):
    """All that is the same in every run, as it can be compared."""
    metrics = {name: value for name, value in batch.metrics.items() if not is_time_column(name)}
    return (
        [prompt.text for prompt in batch.prompts], batch.group.tolist(), batch.sample.tolist(), batch.update,
        batch.version, batch.trace.latents.tolist(), batch.scores.reward.tolist(), batch.scores.notes, metrics,
    )  # fmt: skip


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
        assert (batch.metrics["timing_s/wait/admission"] > 0) == (lag < depth and update > 1 + lag)
        assert all(0 <= batch.metrics[f"pipeline/idle_share/{who}"] <= 1 for who in ("trainer", "rollout"))
        # the samples are by the weights that they name
        again = sampled(source.rollout_worker.asked[update - 1], source.rollout_worker.versions[batch.version])
        assert torch.equal(batch.trace.latents, again.trace.latents)
    assert [asked.update for asked in source.rollout_worker.asked] == list(range(1, 9))
    assert source.rollout_worker.needed == {batch.version for batch in batches}


@pytest.mark.parametrize(("depth", "bound"), [(0, None), (1, None), (3, None), (3, 1), (2, 5)])
def test_a_resumed_run_goes_on_bit_by_bit_however_long_anything_takes(depth, bound, how):
    slow = pipelined(depth, bound, rollout_worker=RemoteBatch(delay=0.01, seed=1), **how)
    batches, weights, states = train(slow, 1, 8, save_at=range(1, 8))
    fast, same, _ = train(pipelined(depth, bound, rollout_worker=RemoteBatch(delay=0), **how), 1, 8)
    assert [facts(batch) for batch in fast] == [facts(batch) for batch in batches]
    assert torch.equal(same, weights)
    for update, (state, so_far) in states.items():
        lag = depth if bound is None else min(depth, bound)
        assert len(state.get("ahead", [])) == min(lag, 8 - update), "those of the newest weights are sampled again"
        assert len(state.get("replay", [])) <= how.get("replay", 0)
        resumed = pipelined(depth, bound, rollout_worker=RemoteBatch(seed=update), **how)
        resumed.load_state_dict(state)
        rest, arrived, later = train(resumed, update + 1, 8, so_far, save_at=[7])
        assert [facts(batch) for batch in rest] == [facts(batch) for batch in batches[update:]]
        assert torch.equal(arrived, weights)
        # weights of before are gone: nothing is asked of them
        assert all(asked.version >= update for asked in resumed.rollout_worker.asked)
        if update < 7:
            assert later[7][0]["position"] == states[7][0]["position"]


def test_samples_that_go_on_are_a_group_of_their_own_and_nobody_gets_their_numbers():
    schedule = PromptSchedule(stream=Stream(PROMPTS[:2], 2, seed=0, shuffle=True), n=3)
    first = schedule.request(1, 0, Counter())
    both = schedule.request(2, 1, Counter(), [first.select([3, 4, 5])])
    assert (both.group.tolist(), both.groups) == ([0, 0, 0, 1, 1, 1, 2, 2, 2], 3)
    assert len({(one.uid, number) for one, number in zip(both.prompts, both.sample.tolist(), strict=True)}) == 9


def test_batches_of_a_checkpoint_are_trained_on_though_a_bound_was_lowered():
    _, weights, states = train(pipelined(3, steps=9), 1, 5, save_at=[5])
    resumed = pipelined(3, 1, steps=9)
    resumed.load_state_dict(states[5][0])
    batches, _, _ = train(resumed, 6, 9, weights)
    assert [batch.metrics["pipeline/staleness/max"] for batch in batches] == [3, 3, 3, 1]
    # a worker has room for one version that it has not sampled with yet
    assert resumed.rollout_worker.needed == {asked.version for asked in resumed.rollout_worker.asked} == {7}


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
    metrics = source.rollout(1).metrics
    assert metrics["timing_s/wait/publication"] > 0.02
    assert metrics["pipeline/idle_share/trainer"] == 1
    thread.join()
    source = pipelined(1, timeout=0.2)
    publish(source, 0, START)
    source.rollout(1)
    source.rollout(2)
    with pytest.raises(ValueError, match=r"weights v1 .*update 3"):
        source.rollout(3)
