"""Importance weights and rejection: published numbers, and what must hold for any mask."""

import math

import pytest
import torch

from burnish.rl.importance import (
    correction_metrics,
    importance_weights,
    joint_metrics,
    rejected_fractions,
    rejection,
)
from burnish.rl.surrogates import variance_proxies
from tests.conformance import Case, case, cases

NAN = math.nan
LEVELS = {"token": "step", "sequence": "sample"}
RULES = [
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
    "seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3",
]  # fmt: skip


def bounds(threshold: float | str) -> dict[str, float]:
    if isinstance(threshold, str):
        lower, upper = (float(bound) for bound in threshold.split("_"))
        return {"lower": lower, "upper": upper}
    return {"upper": threshold}


def everything(like: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(like, dtype=torch.bool)


def same(c: Case, got: dict[str, float], expected: dict[str, float]) -> None:
    for name, value in expected.items():
        c.close(got[f"rollout_corr/{name.removeprefix('rollout_corr/')}"], value)


@pytest.mark.parametrize("c", cases("correction", "rollout_corr/is/"), ids=lambda c: c.id)
def test_importance_weights(c):
    given = c.inputs
    log_ratio = given["old_log_prob"] - given["rollout_log_prob"]
    options = {"level": LEVELS[given["rollout_is"]], "batch_normalise": given["batch_normalize"]} | bounds(
        given["threshold"]
    )
    weights, found = importance_weights(log_ratio, everything(log_ratio), **options)
    c.close(weights, c.expected["weights"])
    found |= correction_metrics(given["old_log_prob"], given["rollout_log_prob"], everything(log_ratio))
    same(c, found, c.expected["metrics"])


@pytest.mark.parametrize("c", cases("correction", "rollout_corr/rs/"), ids=lambda c: c.id)
def test_rejection(c):
    log_ratio = c.inputs["log_ratio(old-rollout)"]
    mask, options = everything(log_ratio), {"rule": c.inputs["mode"]} | bounds(c.inputs["threshold"])
    kept, found = rejection(log_ratio, mask, **options)
    c.close(kept, c.expected["keep_mask"])
    same(c, found | rejected_fractions(kept, mask), c.expected["metrics"])


def test_weights_and_rejection_together():
    c = case("correction", "rollout_corr/decoupled_folded")
    given = c.inputs
    log_ratio = given["old_log_prob"] - given["rollout_log_prob"]
    mask = everything(log_ratio)
    kept, _ = rejection(log_ratio, mask, rule=given["rollout_rs"], **bounds(given["rollout_rs_threshold"]))
    weights, _ = importance_weights(
        log_ratio, mask, level=LEVELS[given["rollout_is"]], **bounds(given["rollout_is_threshold"])
    )
    c.close(weights * kept, c.expected["rollout_is_weights"])
    moved = torch.tensor([[0.2, 0.5, -0.5]])
    kept, _ = rejection(moved, everything(moved), rule="token_k1", upper=2.0, lower=0.7)
    assert kept.tolist() == [[True, False, True]]


def test_difference_by_timestep():
    c = case("correction", "rollout_corr/consistency_metrics")
    ours, theirs = c.inputs["old_log_prob"], c.inputs["rollout_log_prob"]
    found = correction_metrics(ours, theirs, everything(ours), time=c.inputs["timesteps"] / 1000)
    same(c, found, c.expected["metrics"])
    assert found.keys() == c.expected["metrics"].keys()


def test_variance_proxies():
    """verl's are of tokens, whose score has a squared norm of 1 - 2 p + sum p^2; those of steps know theirs."""
    c = case("metrics", "metrics/variance_proxy")
    given = c.inputs
    score = (1 - 2 * given["old_log_probs"].exp() + given["sum_pi_squared"]).sum(1)
    found = {name: value.mean() for name, value in variance_proxies(given["advantages"][:, 0], score).items()}
    for name in found.keys() & c.expected["metrics"].keys():
        c.close(found[name], c.expected["metrics"][name])
    assert len(found.keys() & c.expected["metrics"].keys()) >= 2


def ragged(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs [6, 5] under trainer and sampler with a ragged mask; one row has nothing."""
    g = torch.Generator().manual_seed(seed)
    ours = -torch.rand(6, 5, generator=g)
    theirs = ours + 0.3 * torch.randn(6, 5, generator=g)
    length = torch.tensor([5, 3, 1, 4, 0, 2])
    return ours, theirs, torch.arange(5) < length[:, None]


@pytest.mark.parametrize("apart", [0, 30])
def test_how_far_policies_are_apart_is_measured_sample_by_sample(apart):
    """In nats of whole steps, no further than 20, but for differences of log-probs."""
    ours, theirs, mask = ragged(1)
    theirs[0, 1] -= apart
    scale = 1 + mask.cumsum(1)
    found = correction_metrics(ours, theirs, mask, scale=scale)
    rows = [(ours[i][own].double(), theirs[i][own].double(), scale[i][own]) for i, own in enumerate(mask) if own.any()]
    nats, logs = [(o - t) * s for o, t, s in rows], [torch.stack([-side.mean() for side in row[:2]]) for row in rows]
    each, bounded, (mine, other) = torch.cat(nats), torch.cat(nats).clamp(max=20), torch.stack(logs).T
    sums = torch.stack([one.sum() for one in nats]).clamp(max=20)
    expected = {
        "kl": -each.mean(), "k3_kl": (bounded.exp() - each - 1).mean(), "chi2_token": (2 * bounded).exp().mean() - 1,
        "chi2_seq": (2 * sums).exp().mean() - 1, "training_ppl": mine.exp().mean(), "rollout_log_ppl": other.mean(),
        "log_ppl_abs_diff": (mine - other).abs().mean(), "log_ppl_diff_min": (mine - other).min(),
        "logprob_abs_diff_mean": torch.cat([(o - t).abs() for o, t, _ in rows]).mean(),
    }  # fmt: skip
    for name, value in expected.items():
        assert found[f"rollout_corr/{name}"] == pytest.approx(float(value), rel=1e-4), name
    for level, shares in (("step", each.exp()), ("sample", torch.stack([one.sum() for one in nats]).exp())):
        share = joint_metrics((ours - theirs) * scale, mask, level=level, applied=mask.float())
        effective = shares.mean().square() / shares.square().mean()
        assert [*share.values()] == pytest.approx([float(effective), 1.0], rel=1e-4)


WILD = torch.tensor([[1.0, -2.0, 30.0], [1.0, NAN, NAN], [0.0, 0.0, NAN], [NAN] * 3, [-0.5, 0.25, 0.0]])


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_rejects_what_is_beyond_its_bounds_and_counts_it(rule):
    """What lies on a bound stays."""
    how, _, kind = rule.rpartition("_")
    bound = 1.0 if kind == "k1" else 0.5
    kept, found = rejection(WILD, ~WILD.isnan(), rule=rule, upper=bound)
    low, high = (0.0, 0.0) if kind == "k1" else (-math.inf, bound)
    rows, stays = [], []
    for row in WILD.tolist():
        known = [min(x, 20.0) for x in row if not math.isnan(x)]
        each = [{"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}[kind] for x in known]
        if how != "token" and each:
            value = {"seq_sum": sum(each), "seq_mean": sum(each) / len(each), "seq_max": max(each)}[how]
            each = [value] * len(each)
        rows += [each] if each else []
        stays.append([low <= value <= high for value in each] + [False] * (3 - len(each)))
    assert kept.tolist() == stays
    means, steps = [sum(each) / len(each) for each in rows], [value for each in rows for value in each]
    judged = steps if how == "token" else means
    expected = {
        "mean": sum(steps) / len(steps), "max": max(steps), "min": min(steps), "seq_mean": sum(means) / len(means),
        "seq_max": max(means), "seq_min": min(means), "seq_max_deviation": max(map(abs, means)),
        "fraction_high": sum(value > high for value in judged) / len(judged),
        "fraction_low": sum(value < low for value in judged) / len(judged),
        "seq_fraction_high": sum(value > high for value in means) / len(means),
        "masked_fraction": 1 - sum(map(sum, stays)) / len(steps),
    }  # fmt: skip
    assert {name: found[f"rollout_corr/rollout_rs_{rule}_{name}"] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("level", LEVELS.values())
def test_weights_are_products_over_what_counts_divided_by_their_mean(level):
    mask, options = ~WILD.isnan(), {"level": level, "upper": 1.5, "batch_normalise": True}
    weights, found = importance_weights(WILD, mask, **options)
    ratio = WILD.nan_to_num(0.0).sum(1, keepdim=True).expand_as(WILD) if level == "sample" else WILD
    expected = ratio.exp().clamp(max=1.5)
    rows = mask.any(1)
    mean = expected[mask].mean() if level == "step" else expected[rows, 0].mean()
    torch.testing.assert_close(weights, torch.where(mask, expected / mean, 0.0))
    apart = (expected.nan_to_num(0.0) * mask).sum(1)[rows] / mask.sum(1)[rows]
    assert found["rollout_corr/rollout_is_seq_max_deviation"] == pytest.approx(float((apart - 1).abs().max()))
    one = {"level": level, "upper": 1.0, "lower": 1.0}  # a ratio of 1 lies on both bounds
    weights, found = importance_weights(torch.zeros(1, 2), torch.ones(1, 2).bool(), **one)
    assert weights.tolist() == [[1, 1]]
    assert {value for name, value in found.items() if "fraction" in name or name.endswith(("oob_ratio", "std"))} == {0}


@pytest.mark.parametrize("spoil", [torch.nan, torch.inf, -1e30])
def test_what_does_not_count_is_never_read(spoil):
    ours, theirs, mask = ragged(0)
    dirty = torch.where(mask, ours, spoil)
    for level in LEVELS.values():
        for extra in ({}, {"lower": 0.5}, {"batch_normalise": True}):
            options = {"level": level, "upper": 1.5, **extra}
            clean, found = importance_weights(ours - theirs, mask, **options)
            spoilt, same_found = importance_weights(dirty - theirs, mask, **options)
            assert torch.equal(spoilt, clean)
            assert (clean[~mask] == 0).all()
            assert same_found == found
    for rule in RULES:
        options = {"rule": rule, "upper": 1.2 if rule.endswith("k1") else 0.05}
        clean, found = rejection(ours - theirs, mask, **options)
        spoilt, same_found = rejection(dirty - theirs, mask, **options)
        assert torch.equal(spoilt, clean)
        assert not clean[~mask].any()
        assert same_found == found
    assert correction_metrics(dirty, theirs, mask) == correction_metrics(ours, theirs, mask)


def test_weights_that_all_vanish_stay_finite():
    log_ratio = torch.full((2, 3), -9.0)
    options = {"level": "step", "lower": 0.5, "upper": 2.0, "batch_normalise": True}
    weights, found = importance_weights(log_ratio, everything(log_ratio), **options)
    assert (weights == 0).all()
    assert found["rollout_corr/rollout_is_eff_sample_size"] == 0
    assert found["rollout_corr/rollout_is_batch_norm_factor"] == 1
    weights, _ = importance_weights(log_ratio / 90, everything(log_ratio), **options)
    torch.testing.assert_close(weights, torch.ones(2, 3))
