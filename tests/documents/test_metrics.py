"""Metrics, and what alarms look at, against the field's names and numbers and against what must be true."""

import numpy as np
import pytest
import torch

from burnish.metrics import best_and_worst, majority, reward_metrics, timing_metrics, validation_metrics
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from tests.conformance import case

NAN = float("nan")


def scores(reward, *, missing=None, names=(), components=None) -> Scores:
    reward = torch.as_tensor(reward, dtype=torch.float32)
    count = len(reward)
    return Scores(
        reward=reward, missing=torch.zeros(count, dtype=torch.bool) if missing is None else torch.tensor(missing),
        components=torch.zeros(count, 0) if components is None else torch.tensor(components), names=tuple(names),
        notes=[""] * count,
    )  # fmt: skip


def prompts(uids, source="ocr") -> list[Prompt]:
    return [Prompt(text=uid, source=source) for uid in uids]


def ids(names) -> torch.Tensor:
    return torch.unique(torch.tensor([ord(name[0]) for name in names]), return_inverse=True)[1]


def test_spread_of_rewards_within_prompts():
    found = case("metrics", "metrics/data")
    metrics = reward_metrics(scores(found.inputs["rewards"]), ids(found.inputs["uid"]))
    for name in ("zero_std_ratio", "std_mean", "group_size"):
        found.close(metrics[f"critic/rewards/{name}"], found.expected["metrics"][f"critic/rewards/{name}"])


def test_means_of_components():
    found = case("metrics", "metrics/reward_extra")
    columns = torch.tensor([found.inputs["infos"][name] for name in ("acc", "clip")]).T
    metrics = reward_metrics(scores([0.0] * 3, names=("acc", "clip"), components=columns.tolist()), torch.zeros(3))
    for name, value in found.expected["metrics"].items():
        found.close(metrics[name], value)


def test_times():
    found = case("metrics", "metrics/timing")
    metrics = timing_metrics(found.inputs["timing_raw"], found.inputs["num_images"])
    assert {name: value for name, value in metrics.items() if "perf/" not in name} == pytest.approx(
        found.expected["metrics"]
    )
    found = case("metrics", "metrics/throughput")
    given = found.inputs
    metrics = timing_metrics({"step": given["step_s"]}, given["batch"], devices=given["n_gpus"])
    for name, value in found.expected["metrics"].items():
        assert metrics[name] == pytest.approx(value)


def test_missing_rewards_are_counted_and_left_out():
    given = scores(
        [1.0, 0.0, 99.0, 99.0, 99.0], missing=[False, False, True, True, True], names=("a", "b"),
        components=[[1.0, NAN], [0.0, NAN], [0.5, NAN], [NAN, NAN], [NAN, NAN]],
    )  # fmt: skip
    metrics = reward_metrics(given, torch.tensor([0, 0, 0, 1, 1]))
    assert metrics == {
        "critic/missing_count": 3.0, "critic/missing_ratio": pytest.approx(0.6), "critic/rewards/zero_std_ratio": 0.0,
        "critic/rewards/std": 0.5, "critic/rewards/std_mean": 0.5, "critic/rewards/group_size": 2.0,
        "critic/rewards/solved_ratio": 0.0, "critic/rewards/dead_ratio": 0.0, "critic/a/mean": 0.5,
        "critic/a/std": pytest.approx((1 / 6) ** 0.5),
    }  # fmt: skip
    nothing = reward_metrics(scores([0.0, 0.0], missing=[True, True]), torch.tensor([0, 0]))
    assert nothing == {"critic/missing_count": 2.0, "critic/missing_ratio": 1.0}


def test_best_and_worst_of_k_are_verls():
    found = case("metrics", "metrics/validation")
    uids = found.inputs["uids"]
    for name, expected in found.expected["metrics"]["ocr"].items():
        values = np.array(found.inputs["infos"][name], dtype=float)
        by_prompt = [values[[uid == one for uid in uids]] for one in dict.fromkeys(uids)]
        metrics = best_and_worst(by_prompt, 4)
        assert metrics.keys() == expected.keys()
        found.close(list(metrics.values()), [expected[key] for key in metrics])


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


def test_validation_keeps_sources_apart_and_its_names_when_rewards_are_missing():
    given = scores([1.0, 99.0, 0.0, 99.0, 99.0, 0.25], missing=[False, True, False, True, True, False])
    asked = [*prompts("aabb", "one"), *prompts("cc", "two")]
    metrics = validation_metrics(given, asked)
    assert metrics["val-core/one/reward/mean@2"] == 0.5
    assert metrics["val-core/two/reward/mean@2"] == 0.25
    assert not any(np.isnan(value) for value in metrics.values())
    assert validation_metrics(scores([1.0], missing=[True]), prompts("a")) == {}
    assert validation_metrics(scores([1.0]), prompts("a")) == {"val-core/ocr/reward/mean@1": 1.0}
