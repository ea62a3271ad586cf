"""What the online source collects: choosing changes which samples there are, never what a sample is."""

import numpy as np
import pytest
import torch

from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.data.stream import PromptStream
from burnish.loop import run
from burnish.options import ScoringOptions
from burnish.options.flow import CandidateOptions, FilterOptions, RolloutOptions
from burnish.rewards.scoring import Scorer
from burnish.rollout.prompt_schedule import PromptSchedule
from burnish.rollout.sources import OnlineSource
from burnish.tasks.flow.engine import FlowJob
from burnish.tasks.flow.rollouts import FlowRollouts
from burnish.types.rollout import Denoising
from burnish.utils.timer import Stopwatch
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import WINDOW, Bench
from tests.support.flow_rollouts import PROMPTS, Brightness


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


def made(pipeline, algorithm=None, *, reward=None, n=4, **chosen):
    bench = Bench(pipeline, algorithm or FlowGRPO(window=WINDOW))
    rollout = RolloutOptions(batch_size=96, n=n, num_inference_steps=5, max_sequence_length=4, **chosen)
    scorer = Scorer({"bright": reward or Brightness()}, ScoringOptions(processes=0))
    schedule = PromptSchedule(
        stream=PromptStream(PROMPTS, 2, seed=0, shuffle=False),
        n=rollout.candidates.n if rollout.candidates else n,
        filtering=rollout.filter_groups,
    )
    rollout_worker = FlowRollouts(bench.engine, scorer, bench.needs, rollout=rollout, watch=Stopwatch())
    return bench, OnlineSource(schedule, rollout_worker)


def test_without_choice_every_sample_is_there(pipeline):
    _, source = made(pipeline)
    scored = source.collect(1)
    assert [prompt.text for prompt in scored.prompts] == ["one"] * 4 + ["two"] * 4
    assert scored.scores.weights == (1.0,)
    assert 0 < scored.metrics["critic/diversity"] < 0.5


@pytest.mark.parametrize("algorithm", [FlowGRPO(window=WINDOW), DiffusionNFT(train_timesteps=2)], ids=["grpo", "nft"])
@pytest.mark.parametrize("cheap", [None, 2])
def test_the_chosen_are_what_sampling_them_directly_gives(pipeline, algorithm, cheap):
    bench, source = made(pipeline, algorithm, candidates=CandidateOptions(n=8, num_inference_steps=cheap))
    scored = source.collect(1)
    assert len(scored) == 8
    assert scored.group.tolist() == [0] * 4 + [1] * 4
    _, plain = made(pipeline, algorithm, n=8)
    everything = plain.collect(1)
    rows = [
        next(i for i in range(16) if everything.group[i] == group and everything.sample[i] == sample)
        for group, sample in zip(scored.group.tolist(), scored.sample.tolist(), strict=True)
    ]
    expected = everything.select(rows)
    # candidates that are drawn in the run's own steps are those that are kept, bit by bit; drawn again, in batches of
    # another shape, they are so up to what kernels round otherwise
    off = 1e-5 if cheap else 0.0
    for name in ("latents", "state", "next_state", "time", "logprob"):
        torch.testing.assert_close(getattr(scored.trace, name), getattr(expected.trace, name), rtol=0, atol=off)
    torch.testing.assert_close(scored.scores.reward, expected.scores.reward, rtol=0, atol=0.02 if cheap else 0.0)
    # by cheap pictures or by whole ones, it is the extremes that are kept
    judged = everything.scores.reward
    if cheap:
        job = FlowJob.groups(PROMPTS[:2], 8, purpose="rollout", update=1, steps=cheap, role=bench.needs.sampler)
        sampled = list(bench.engine.sample(job))
        assert Denoising.cat([trace for _, trace, _ in sampled]).schedule.tolist() != everything.trace.schedule.tolist()
        judged = torch.tensor([float(picture.mean()) for _, _, pictures in sampled for picture in pictures])
    for group in range(2):
        order = judged[group * 8 : group * 8 + 8].argsort(descending=True, stable=True).tolist()
        assert sorted(row - 8 * group for row in rows if row // 8 == group) == sorted(order[:2] + order[-2:])


def test_candidates_of_which_none_was_judged_leave_nothing(pipeline):
    reward = Brightness(lost=("one", "two"))
    _, source = made(pipeline, reward=reward, candidates=CandidateOptions(n=8, num_inference_steps=2))
    assert len(source.collect(1)) == 0


def test_prompts_without_differences_are_replaced(pipeline):
    reward = Brightness(dull=("one", "four"))
    _, source = made(pipeline, reward=reward, filter_groups=FilterOptions(max_num_gen_batches=3))
    scored = source.collect(1)
    assert [prompt.text for prompt in scored.prompts] == ["two"] * 4 + ["three"] * 4
    assert scored.metrics["train/num_gen_batches"] == 2
    assert source.stream.position == 4


def test_a_prompt_that_comes_again_gets_further_samples(pipeline):
    reward = Brightness(dull=tuple(prompt.text for prompt in PROMPTS[1:]))
    _, source = made(pipeline, reward=reward, filter_groups=FilterOptions(max_num_gen_batches=6))
    scored = source.collect(1)
    assert [prompt.text for prompt in scored.prompts] == ["one"] * 8
    assert scored.sample.tolist() == list(range(8))
    assert scored.group.tolist() == [0] * 4 + [1] * 4
    assert len({tuple(row) for row in scored.trace.latents.flatten(1).tolist()}) == 8


def test_a_resumed_source_goes_on_with_the_very_next_prompts(pipeline):
    reward = Brightness(dull=("one", "four"))
    first, second = (
        made(pipeline, reward=reward, filter_groups=FilterOptions(max_num_gen_batches=3))[1] for _ in range(2)
    )
    first.collect(1)
    second.load_state_dict(first.state_dict())
    mine, theirs = first.collect(2), second.collect(2)
    assert torch.equal(mine.trace.latents, theirs.trace.latents)
    assert mine.metrics == theirs.metrics


def test_an_update_for_which_nothing_is_left_is_skipped_and_counted(pipeline):
    reward = Brightness(dull=tuple(prompt.text for prompt in PROMPTS))
    bench, source = made(pipeline, reward=reward, filter_groups=FilterOptions())
    before, seen = bench.weights(), []
    run(
        [1, 2], source, bench.workers, [lambda update, metrics: seen.append(metrics)],
        watch=Stopwatch(), stop=lambda: False,
    )  # fmt: skip
    assert torch.equal(bench.weights(), before)
    assert [metrics["actor/skipped_updates"] for metrics in seen] == [1.0, 1.0]
    assert seen[0]["train/dropped_groups"] == 2
    assert bench.workers.version == 2


def test_what_is_collected_is_among_the_metrics(pipeline):
    bench, source = made(pipeline, candidates=CandidateOptions(n=6))
    seen = []
    run(
        [1], source, bench.workers, [lambda update, metrics: seen.append(metrics)],
        watch=Stopwatch(), stop=lambda: False,
    )  # fmt: skip
    assert {"critic/diversity", "train/candidates/reward/mean", "critic/rewards/mean"} <= seen[0].keys()
    assert np.isfinite(list(seen[0].values())).all()
