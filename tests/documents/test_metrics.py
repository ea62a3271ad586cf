"""Metrics, and what alarms look at, against the field's names and numbers and against what must be true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from burnish.metrics import (
    best_and_worst,
    group_diversity,
    hacking_metrics,
    majority,
    reward_metrics,
    timing_metrics,
    validation_metrics,
)
from burnish.types.clips import Clip
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.types.structure import coarse
from tests.conformance import case
from tests.support.time_columns import is_time_column

NAN = float("nan")


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


def test_timing():
    found = case("metrics", "metrics/timing")
    metrics = timing_metrics(found.inputs["timing_raw"], found.inputs["num_images"])
    timing = {name: value for name, value in metrics.items() if not name.startswith("perf/")}
    assert timing == pytest.approx(found.expected["metrics"])
    assert all(is_time_column(name) for name in metrics)
    assert not any(map(is_time_column, ("training/global_step", "critic/timing_s/mean", "actor/lr")))


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
