"""Samples that are made in parts are those of the whole."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from burnish.algorithms.flow.branch_grpo import BranchGRPO
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.data.stream import PromptStream
from burnish.options import ScoringOptions
from burnish.options.flow import CandidateOptions, RolloutOptions
from burnish.rewards.scoring import Scorer
from burnish.rollout.prompt_schedule import PromptSchedule
from burnish.rollout.requests import join, split
from burnish.tasks.flow.rollouts import FlowRollouts
from burnish.types.batch import Gathered
from burnish.types.prompt import Prompt
from burnish.utils.timer import Stopwatch
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import WINDOW, Bench
from tests.support.flow_rollouts import PROMPTS, Brightness
from tests.support.language_runs import SMALL, assembly_of, game
from tests.support.toy_source import START, prompt_schedule, sampled


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


# kernels for few rows may round otherwise, by 1e-7 of each layer's numbers: a CPU decides how much of that is seen
ROUNDED = {"latents": 1e-5, "state": 1e-5, "next_state": 1e-5, "logprob": 1e-5}
JUDGED = {"reward": 0.02, "components": 0.02}  # of 255: few of the pixels are rounded to the next number


def same(whole, parted) -> None:
    """Equal rows, whatever tables they refer to, and what a network has computed up to rounding."""
    assert type(parted) is type(whole)
    for name, value in whole._rows():
        other = getattr(parted, name)
        if isinstance(value, Gathered):
            same(value.rows(), other.rows())
        elif isinstance(value, torch.Tensor):
            assert value.shape == other.shape, name
            if off := (ROUNDED | JUDGED).get(name):
                torch.testing.assert_close(other, value, rtol=0, atol=off, equal_nan=True)
                continue
            assert torch.equal(value.nan_to_num(7), other.nan_to_num(7)), name
        elif hasattr(value, "_rows"):
            same(value, other)
        elif name == "features":
            assert [one.get("images").tolist() for one in value] == [one.get("images").tolist() for one in other]
        elif name == "stats":
            assert [replace(one, surprisal=0) for one in value] == [replace(one, surprisal=0) for one in other]
            assert [one.surprisal for one in value] == pytest.approx([one.surprisal for one in other], abs=1e-5)
        elif isinstance(value[0], torch.Tensor):
            assert [one.tolist() for one in value] == [one.tolist() for one in other], name
        else:
            assert value == other, name
    for field in ("update", "version", "seed"):
        assert getattr(whole, field, None) == getattr(parted, field, None)
    if hasattr(whole, "metrics"):
        assert whole.metrics.keys() == parted.metrics.keys()
        for name, value in whole.metrics.items():
            assert parted.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True), name


def flow(pipeline, algorithm, *, lost=(), **chosen):
    bench = Bench(pipeline, algorithm)
    rollout = RolloutOptions(batch_size=96, n=4, num_inference_steps=5, max_sequence_length=4, **chosen)
    scorer = Scorer({"bright": Brightness(lost=lost)}, ScoringOptions(processes=0))
    stream = PromptStream(PROMPTS, 5, seed=0, shuffle=False)
    count = rollout.candidates.n if rollout.candidates else rollout.n
    rollout_worker = FlowRollouts(bench.engine, scorer, bench.needs, rollout=rollout, watch=Stopwatch())
    return rollout_worker, PromptSchedule(stream=stream, n=count).request(3, 1, Counter())


CASES = {
    "all": (FlowGRPO(window=WINDOW), {}),
    "tree": (BranchGRPO(splits=[0, 1]), {}),
    "candidates": (FlowGRPO(window=WINDOW), {"candidates": CandidateOptions(n=6)}),
    "cheap candidates, a prompt lost": (
        FlowGRPO(window=WINDOW), {"candidates": CandidateOptions(n=6, num_inference_steps=2), "lost": ("two",)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_pictures_made_in_parts_are_those_of_the_whole(pipeline, case):
    algorithm, chosen = CASES[case]
    rollout_worker, asked = flow(pipeline, algorithm, **chosen)
    whole = rollout_worker.generate(asked)
    assert (whole.update, whole.version) == (3, 1)
    assert "actor/velocity_distance" in whole.metrics
    for count in (2, 5):
        same(whole, join([rollout_worker.generate(part) for part in split(asked, count)]))


LANGUAGE = {
    "greedy": [*SMALL, "algorithm=remax", "trainer.mini_batch_size=null"],
    "dialogues": [*game(), "algorithm=grpo"],
}


@pytest.mark.parametrize("case", LANGUAGE)
def test_responses_made_in_parts_are_those_of_the_whole(case):
    assembly = assembly_of(*LANGUAGE[case])
    asked = assembly.prompt_schedule.request(2, 1, Counter())
    whole = assembly.rollout_worker.generate(asked)
    assert whole.version == 1
    assert whole.greedy.isnan().all() == (case != "greedy")
    for count in (2, 4):
        same(whole, join([assembly.rollout_worker.generate(part) for part in split(asked, count)]))


def test_a_split_keeps_groups_whole_and_loses_nobody():
    asked = prompt_schedule().request(1, 0, Counter()).select([0, 1, 2, 3, 4, 5])
    assert [part.group.tolist() for part in split(asked, 2)] == [[0] * 3, [1] * 3]
    assert [part.group.tolist() for part in split(asked, 9)] == [[0] * 3, [1] * 3]
    (alone,) = split(asked, 1)
    assert alone.prompts == asked.prompts
    assert all(part.groups == 2 for part in split(asked, 2))


def test_means_are_joined_by_what_they_were_taken_over_and_others_by_the_largest():
    first, second = (sampled(part, START) for part in split(prompt_schedule().request(1, 0, Counter()), 2))
    first.metrics, first.counts = {"a": 1.0, "b": math.nan, "max": 3.0, "mine": 5.0}, {"a": 3, "b": 0, "mine": 2}
    second.metrics, second.counts = {"a": 5.0, "b": 2.0, "max": 1.0}, {"a": 1, "b": 4}
    assert join([first, second]).metrics == {"a": 2.0, "b": 2.0, "max": 3.0, "mine": 5.0}
    assert join([first, second]).counts == {"a": 4, "b": 4, "mine": 2}
    nothing = join([first, first]).metrics["b"]
    assert math.isnan(nothing)


def test_whoever_has_a_chunk_is_told_of_the_prompts_of_the_next_one():
    stream = PromptStream([Prompt(text=f"{i}") for i in range(40)], 7, seed=0, shuffle=True)
    schedule = PromptSchedule(stream=stream, n=3, tells=True)
    first = split(schedule.request(1, 0, Counter()), 3)
    second = split(schedule.request(2, 1, Counter()), 3)
    for told, had in zip(first, second, strict=True):
        assert told.ahead == list(dict.fromkeys(had.prompts))
    assert not PromptSchedule(stream=stream, n=3).request(3, 2, Counter()).ahead
