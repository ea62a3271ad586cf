"""Metrics, and what alarms look at, against the field's names and numbers and against what must be true."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from burnish.measured import error_and_std, measured, of_responses, shares, without_signal
from burnish.metrics import (
    best_and_worst,
    group_diversity,
    hacking_metrics,
    majority,
    reward_metrics,
    timing_metrics,
    validation_metrics,
)
from burnish.types.clips import Clip, Sound
from burnish.types.prompt import Prompt
from burnish.types.response_stats import ResponseStats, reflections
from burnish.types.rollout import Scores
from burnish.types.structure import coarse
from tests.conformance import case
from tests.support.time_columns import is_time_column

NAN = float("nan")
GROUP = torch.tensor([0, 0, 1, 1, 2, 2])


def diversity(samples, group) -> float:
    return group_diversity([coarse(sample) for sample in samples], group)


def scores(reward, *, missing=None, names=(), components=None) -> Scores:
    reward = torch.as_tensor(reward, dtype=torch.float32)
    count = len(reward)
    return Scores(
        reward=reward,
        missing=torch.zeros(count, dtype=torch.bool) if missing is None else torch.tensor(missing),
        components=torch.zeros(count, 0) if components is None else torch.tensor(components),
        names=tuple(names),
        notes=[""] * count,
    )


def prompts(uids, source="ocr") -> list[Prompt]:
    return [Prompt(text=uid, source=source) for uid in uids]


def ids(names) -> torch.Tensor:
    return torch.unique(torch.tensor([ord(name[0]) for name in names]), return_inverse=True)[1]


def test_spread_of_rewards_within_prompts():
    found = case("metrics", "metrics/data")
    metrics = reward_metrics(scores(found.inputs["rewards"]), ids(found.inputs["uid"]))
    for name in ("zero_std_ratio", "std_mean", "group_size"):
        found.close(metrics[f"critic/rewards/{name}"], found.expected["metrics"][f"critic/rewards/{name}"])


@pytest.mark.parametrize("size", case("metrics", "edge/zero_std_ratio_float_residue").inputs["group_sizes"])
def test_equal_rewards_have_no_spread_whatever_their_floats(size):
    found = case("metrics", "edge/zero_std_ratio_float_residue")
    values = torch.tensor(found.inputs["group_values"]).repeat_interleave(size)
    group = torch.arange(len(found.inputs["group_values"])).repeat_interleave(size)
    metrics = reward_metrics(scores(values), group)
    assert metrics["critic/rewards/zero_std_ratio"] == found.expected["zero_std_ratio"]
    assert metrics["critic/rewards/std_mean"] == 0.0


def test_means_of_components():
    found = case("metrics", "metrics/reward_extra")
    acc, clip = found.inputs["infos"]["acc"], found.inputs["infos"]["clip"]
    columns = [list(row) for row in zip(acc, clip, strict=True)]
    metrics = reward_metrics(scores([0.0] * 3, names=("acc", "clip"), components=columns), torch.zeros(3))
    for name in ("critic/acc/mean", "critic/clip/mean"):
        found.close(metrics[name], found.expected["metrics"][name])


def test_missing_rewards_are_counted_and_left_out():
    given = scores(
        [1.0, 0.0, 99.0, 99.0, 99.0],
        missing=[False, False, True, True, True],
        names=("a", "b"),
        components=[[1.0, NAN], [0.0, NAN], [0.5, NAN], [NAN, NAN], [NAN, NAN]],
    )
    metrics = reward_metrics(given, torch.tensor([0, 0, 0, 1, 1]))
    assert metrics == {
        "critic/missing_count": 3.0,
        "critic/missing_ratio": pytest.approx(0.6),
        "critic/rewards/zero_std_ratio": 0.0,
        "critic/rewards/std": 0.5,
        "critic/rewards/std_mean": 0.5,
        "critic/rewards/group_size": 2.0,
        "critic/a/mean": 0.5,
    }
    nothing = reward_metrics(scores([0.0, 0.0], missing=[True, True]), torch.tensor([0, 0]))
    assert nothing == {"critic/missing_count": 2.0, "critic/missing_ratio": 1.0}


def watching(components, group, weights=(1.0, 0.0), **given):
    reward = [row[0] for row in components]
    given = scores(reward, names=("a", "b"), components=components, **given)
    return hacking_metrics(replace(given, weights=weights, applied=None), torch.tensor(group))


def test_what_goes_along_with_the_reward_within_prompts_is_told():
    along = [[0.0, 5.0], [1.0, 6.0], [0.0, -3.0], [2.0, -1.0]]
    assert watching(along, [0, 0, 1, 1]) == {"critic/b/reward_correlation": pytest.approx(1.0)}
    against = [[a, -b] for a, b in along]
    assert watching(against, [0, 0, 1, 1]) == {"critic/b/reward_correlation": pytest.approx(-1.0)}
    across = [[0.0, 0.0], [1.0, 0.0], [5.0, 7.0], [4.0, 7.0]]  # prompts differ, samples of one don't
    assert watching(across, [0, 0, 1, 1]) == {}
    assert watching(along, [0, 0, 1, 1], weights=(1.0, 0.5)) == {}
    holes = [[0.0, 5.0], [1.0, NAN], [1.0, 9.0], [2.0, NAN], [9.0, 9.0]]
    known = watching(holes, [0, 0, 0, 1, 1], missing=[False, False, False, False, True])
    assert known == {"critic/b/reward_correlation": pytest.approx(1.0)}


def test_best_and_worst_of_k_are_verls():
    found = case("metrics", "metrics/validation")
    uids = found.inputs["uids"]
    for name, expected in found.expected["metrics"]["ocr"].items():
        values = np.array(found.inputs["infos"][name], dtype=float)
        by_prompt = [values[[uid == one for uid in uids]] for one in dict.fromkeys(uids)]
        metrics = best_and_worst(by_prompt, 4)
        assert metrics.keys() == expected.keys()
        found.close(list(metrics.values()), [expected[key] for key in metrics])


def test_core_is_the_mean_and_best_reward_and_the_rest_is_auxiliary():
    found = case("metrics", "metrics/validation")
    infos, expected = found.inputs["infos"], found.expected["metrics"]["ocr"]
    given = scores(infos["reward"], names=("acc",), components=[[float(value)] for value in infos["acc"]])
    metrics = validation_metrics(given, prompts(found.inputs["uids"]))
    core = {name for name in metrics if name.startswith("val-core/")}
    of_each = ("mean@4", "best@4/mean", "best@4/std")
    assert core == {f"val-core/ocr/{variable}/{name}" for variable in ("reward", "acc") for name in of_each}
    for variable in ("reward", "acc"):
        assert {f"val-aux/ocr/{variable}/{n}" for n in ("std@4", "best@2/mean", "worst@4/mean")} < metrics.keys()
        for name in of_each:
            found.close(metrics[f"val-core/ocr/{variable}/{name}"], expected[variable][name])


def test_the_accuracy_that_a_function_returns_is_core_and_two_keep_their_names():
    given = scores([0.4, 0.2], names=("format",), components=[[1.0], [0.0]])
    one = replace(given, further=[{"mine_acc": 1.0, "mine_steps": 3.0}, {"mine_acc": 0.0, "mine_steps": 5.0}])
    metrics = validation_metrics(one, prompts("aa"))
    assert metrics["val-core/ocr/acc/mean@2"] == 0.5
    assert metrics["val-aux/ocr/mine_steps/mean@2"] == 4.0
    assert not [name for name in metrics if "mine_acc" in name]
    two = replace(given, further=[{"mine_acc": 1.0, "other_acc": 0.0}] * 2)
    assert {"val-core/ocr/mine_acc/mean@2", "val-core/ocr/other_acc/mean@2"} < validation_metrics(
        two, prompts("aa")
    ).keys()


def verls_majority(values, answers, size) -> tuple[float, float]:
    """calc_maj_val and bootstrap_metric of verl/trainer/ppo/metric_utils.py, sample by sample."""
    np.random.seed(42)
    found = []
    for drawn in np.random.choice(len(values), size=(1000, size), replace=True):
        votes: dict[str, list[float]] = {}
        for i in drawn:
            votes.setdefault(answers[i], []).append(values[i])
        found.append(votes[max(votes, key=lambda answer: len(votes[answer]))][0])
    return float(np.mean(found)), float(np.std(found))


def test_majorities_are_verls():
    draw = np.random.default_rng(0)
    values, answers = draw.random((3, 5)), [list(map(str, row)) for row in draw.integers(0, 3, (3, 5))]
    metrics = majority(list(values), answers, 5)
    assert metrics.keys() == {f"maj@{size}/{name}" for size in (2, 4, 5) for name in ("mean", "std")}
    for size in (2, 4, 5):
        each = [verls_majority(*pair, size) for pair in zip(values, answers, strict=True)]
        assert metrics[f"maj@{size}/mean"] == pytest.approx(np.mean([mean for mean, _ in each]), abs=1e-12)
        assert metrics[f"maj@{size}/std"] == pytest.approx(np.mean([std for _, std in each]), abs=1e-12)


def test_a_majority_can_be_right_where_most_samples_are_wrong_and_missing_rewards_have_no_vote():
    right = [1.0, 1.0, 0.0, 0.0, 0.0]
    split = majority([np.array(right)], [["7", "7", "1", "2", ""]], 5)["maj@5/mean"]
    united = majority([np.array(right)], [["7", "7", "1", "1", "1"]], 5)["maj@5/mean"]
    assert united < np.mean(right) < split
    missing = majority([np.array([1.0, NAN, NAN])], [["7", "1", "1"]], 3)
    assert missing == {"maj@2/mean": 1.0, "maj@2/std": 0.0, "maj@3/mean": 1.0, "maj@3/std": 0.0}
    assert majority([np.array([NAN, 0.5])], [["7", None]], 2) == majority([np.array([1.0])], [["7"]], 1) == {}


def test_votes_are_of_the_reward_and_of_what_reads_answers():
    answers = [{"exact": one} for one in "aab"] + [{}] * 3
    given = scores([0.9, 0.9, 0.1] * 2, names=("exact", "format"), components=[[1.0, 1.0], [1.0, 1.0], [0.0, 1.0]] * 2)
    metrics = validation_metrics(replace(given, answers=answers), [*prompts("ggg"), *prompts("hhh", "other")])
    found = {name: value for name, value in metrics.items() if "maj@" in name}
    assert {name for name in found if "core" in name} == {f"val-core/ocr/reward/maj@3/{k}" for k in ("mean", "std")}
    assert {name.rpartition("/")[0] for name in found if "aux" in name} == {
        "val-aux/ocr/reward/maj@2", "val-aux/ocr/exact/maj@2", "val-aux/ocr/exact/maj@3"
    }  # fmt: skip
    assert found["val-core/ocr/reward/maj@3/mean"] == pytest.approx(0.1 + 0.8 * found["val-aux/ocr/exact/maj@3/mean"])


def test_validation_keeps_sources_apart_and_its_names_when_rewards_are_missing():
    given = scores([1.0, 99.0, 0.0, 99.0, 99.0, 0.25], missing=[False, True, False, True, True, False])
    asked = [*prompts("aabb", "one"), *prompts("cc", "two")]
    metrics = validation_metrics(given, asked)
    assert metrics["val-core/one/reward/mean@2"] == 0.5
    assert metrics["val-core/two/reward/mean@2"] == 0.25
    assert not any(np.isnan(value) for value in metrics.values())
    assert validation_metrics(scores([1.0], missing=[True]), prompts("a")) == {}
    assert validation_metrics(scores([1.0]), prompts("a")) == {"val-core/ocr/reward/mean@1": 1.0}


def test_validation_metrics_of_a_large_validation_are_no_loop_over_its_samples():
    values = np.random.RandomState(0).rand(64 * 16)
    asked = prompts([f"{i}" for i in range(64) for _ in range(16)])
    first = validation_metrics(scores(values), asked)
    calls: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        again = validation_metrics(scores(values), asked)
    finally:
        sys.setprofile(None)
    assert again == first
    assert calls["call"] + calls["c_call"] < 60_000  # a thousand draws of each prompt's samples would be a million


def test_timing():
    found = case("metrics", "metrics/timing")
    metrics = timing_metrics(found.inputs["timing_raw"], found.inputs["num_images"])
    timing = {name: value for name, value in metrics.items() if not name.startswith("perf/")}
    assert timing == pytest.approx(found.expected["metrics"])
    assert all(is_time_column(name) for name in metrics)
    assert not any(map(is_time_column, ("training/global_step", "critic/timing_s/mean", "actor/lr")))


def test_throughput():
    found = case("metrics", "metrics/throughput")
    given = found.inputs
    metrics = timing_metrics({"step": given["step_s"]}, given["batch"], devices=given["n_gpus"])
    assert {name: value for name, value in metrics.items() if name.startswith("perf/")} == pytest.approx(
        found.expected["metrics"]
    )
    assert timing_metrics({"gen": 1.0}, 0) == {"timing_s/gen": 1.0}


def flat(value: float, height=16, width=32) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


def clip(*levels: int) -> Clip:
    return Clip(frames=np.stack([flat(level) for level in levels]), fps=4)


@pytest.mark.parametrize(("samples", "group", "variety"), [
    ([flat(0), flat(255), flat(0), flat(255)], [0, 0, 1, 1], 0.5),
    ([flat(0), flat(255), flat(7), flat(7)], [0, 0, 1, 1], 0.25),
    ([flat(0), flat(0), flat(255), flat(255)], [0, 0, 1, 1], 0.0),
    ([flat(0), flat(255)], [0, 1], NAN),
    *([[flat(value, *size) for value in (0, 51, 102)], [0, 0, 0], float(np.std([0.0, 0.2, 0.4]))]
      for size in ((16, 32), (512, 768), (5, 3), (67, 131))),
    ([clip(0, 0, 0, 0), clip(0, 0, 255, 255)], [0, 0], 0.25),
    ([clip(0, 0), clip(0, 0), replace(clip(255, 255), finite=False)], [0, 0, 0], 0.0),
])  # fmt: skip
def test_variety_has_a_closed_form_for_flat_pictures_of_any_size_and_for_clips(samples, group, variety):
    assert diversity(samples, torch.tensor(group)) == pytest.approx(variety, nan_ok=True)


def test_variety_does_not_see_fine_noise_but_sees_where_things_are_and_when_sounds_are_loud():
    checkers = np.indices((16, 32)).sum(0)[..., None].repeat(3, 2) % 2
    pictures = [(checkers * 255).astype(np.uint8), ((1 - checkers) * 255).astype(np.uint8)]
    assert diversity(pictures, torch.zeros(2)) == pytest.approx(0.0, abs=1e-9)
    left, right = flat(255), flat(255)
    left[:, :16], right[:, 16:] = 0, 0
    assert diversity([left, right], torch.zeros(2)) == pytest.approx(0.5)
    early = np.concatenate([np.ones((1, 64)), np.zeros((1, 64))], 1)
    first, second = Sound.of(early, 16), Sound.of(early[:, ::-1], 16)
    assert diversity([first, first], torch.zeros(2)) == 0
    assert diversity([first, second], torch.zeros(2)) == pytest.approx(0.5)


def weighed(components: dict[str, list[float]], *weights: float, reward: list[float] | None = None) -> Scores:
    columns = torch.tensor(list(components.values())).T
    total = (columns.nan_to_num() * torch.tensor(weights)).sum(1) if reward is None else torch.tensor(reward)
    return replace(
        scores(total, missing=total.isnan().tolist(), names=components, components=columns.tolist()),
        weights=weights, applied=None,
    )  # fmt: skip


def test_the_error_of_a_mean_is_that_over_prompts():
    value = torch.tensor([1.0, 3.0, 4.0, 4.0, 0.0, NAN])
    found = error_and_std("x", value, GROUP, std=True)
    assert found["x/error"] == pytest.approx(2.0 / math.sqrt(3))  # of the means 2, 4 and 0
    assert found["x/std"] == pytest.approx(float(value[:5].std(correction=0)))
    assert error_and_std("x", value[:2], GROUP[:2], std=False) == {}  # one prompt has none
    assert error_and_std("x", value[5:], GROUP[5:], std=True) == {}


def test_groups_without_signal_are_solved_or_dead():
    some = weighed({"a": [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]}, 1.0)
    found = without_signal(some, GROUP)
    assert found["critic/rewards/solved_ratio"] == pytest.approx(1 / 3)
    assert found["critic/rewards/dead_ratio"] == pytest.approx(1 / 3)
    assert without_signal(some, torch.arange(6)) == {}  # nothing to compare


def test_shares_add_up_and_say_who_makes_the_differences():
    some = weighed({"a": [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], "b": [0.1, 0.0, 0.0, 0.1, 0.5, 0.5]}, 1.0, 1.0)
    found = shares(some, GROUP)
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["critic/a/reward_share"] > 0.9
    product = weighed({"a": [1.0, 0.0] * 3, "b": [0.5, 0.1] * 3}, 1.0, 1.0, reward=[0.5, 0.0] * 3)
    assert shares(product, GROUP) == {}


def test_statistics_of_responses_go_with_the_reward():
    some = weighed({"a": [1.0, 0.0] * 3}, 1.0)
    stats = [ResponseStats(length, length == 9, 0.0, NAN, "words", length - 4) for length in (9, 5, 9, 4, 8, 6)]
    found = of_responses(stats, some, GROUP)
    assert found["response/length/mean"] == pytest.approx(41 / 6)
    assert found["response/length/reward_correlation"] > 0.9
    assert found["response/length/better"] == pytest.approx(26 / 3)
    assert found["response/length/worse"] == pytest.approx(5.0)
    assert found["response/truncated/mean"] == pytest.approx(1 / 3)
    assert "response/repeated/reward_correlation" not in found  # it is the same for all
    assert "response/surprisal/mean" not in found
    assert found["response/reflections/mean"] == pytest.approx(17 / 6)
    assert found["response/reflections/reward_correlation"] > 0.9


def test_phrases_of_reflection_are_counted_as_words():
    assert reflections("Wait, let me\n think. Actually 7 is WRONG: a mistake. Let me reconsider; rethink.") == 7
    assert reflections("The waiter awaits corrections, wrongly. Let us think.") == 0


def test_a_batch_that_was_not_sampled_has_nothing_to_watch():
    assert measured(None) == {}  # type: ignore[arg-type]
